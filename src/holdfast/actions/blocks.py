"""Write memory blocks over REST. A limit is a promise to the model, so it holds here as it does for its tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast import ids
from holdfast.core.records import Block
from holdfast.errors import Conflict, Unprocessable
from holdfast.store import blocks as block_rows
from holdfast.store.transaction import Database, IntegrityError, Transaction
from holdfast.wire.blocks import BlockUpdate, CreateBlock, block_changes, new_block


async def create_block(database: Database, request: CreateBlock, now_us: int) -> Block:
    block = new_block(request, ids.new("block"), now_us)
    check_limit(block)
    await database.write(lambda tx: block_rows.insert(tx, block))
    return block


async def update_block(database: Database, block_id: str, request: BlockUpdate, now_us: int) -> Block:
    async def find(tx: Transaction) -> str:
        return block_id

    return await update_found_block(database, find, request, now_us)


async def update_found_block(
    database: Database, find: Callable[[Transaction], Awaitable[str]], request: BlockUpdate, now_us: int
) -> Block:
    """`find` gives the id of the block inside the transaction that changes it."""

    async def write(tx: Transaction) -> Block:
        return await _update(tx, await find(tx), request, now_us)

    try:
        return await database.write(write)
    except IntegrityError as error:
        if request.label is None:
            raise
        taken = f"An agent that has this block already has another with the label {request.label!r}."
        raise Conflict(taken) from error


async def _update(tx: Transaction, block_id: str, request: BlockUpdate, now_us: int) -> Block:
    """What is already so is left alone: only a real change makes a new version."""
    block = await block_rows.get(tx, block_id, lock=True)
    changes = {name: value for name, value in block_changes(request).items() if value != getattr(block, name)}
    if not changes:
        return block
    changed = _changed(block, changes, now_us)
    check_limit(changed)
    await block_rows.update_block(tx, changed, label_before=block.label)
    return changed


def check_limit(block: Block) -> None:
    if len(block.value) > block.limit:
        raise Unprocessable(
            f"The value of block {block.label!r} has {len(block.value)} characters, which exceeds its limit of "
            f"{block.limit}: shorten the value or raise the limit."
        )


def _changed(block: Block, changes: dict[str, Any], now_us: int) -> Block:
    return msgspec.structs.replace(block, **changes, version=block.version + 1, updated_us=now_us)
