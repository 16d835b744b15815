from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from holdfast import ids
from holdfast.core import memory
from holdfast.core.memory import MemoryChange
from holdfast.core.records import Block
from holdfast.errors import HoldfastError
from holdfast.store import blocks, memory_edits
from holdfast.store.transaction import Database, Transaction

from .world import NOW, add_agent, call, look

LATER = NOW + 1


class Overtaken(HoldfastError):
    pass


async def add_block(database: Database, agent_id: str | None, label: str, value: str = "", **more: Any) -> Block:
    block = Block(id=ids.new("block"), label=label, value=value, created_us=NOW, updated_us=NOW, **more)

    async def job(tx: Transaction) -> None:
        await blocks.insert(tx, block)
        if agent_id is not None:
            await blocks.attach(tx, agent_id, block)

    await database.write(job)
    return block


def compute(tool: str, in_view: list[Block], **arguments: Any) -> MemoryChange:
    return memory.edit(tool, arguments, in_view, new_id=lambda: ids.new("block"), now_us=NOW)[0]


async def write(database: Database, agent_id: str, *changes: MemoryChange) -> bool:
    """As a checkpoint does: all of it, or nothing and False."""

    async def job(tx: Transaction) -> None:
        for change in changes:
            if not await memory_edits.apply(tx, agent_id, change, change.versions(), LATER):
                raise Overtaken("overtaken")

    try:
        await database.write(job)
    except Overtaken:
        return False
    return True


async def shown(database: Database, agent_id: str) -> dict[str, str]:
    return {block.label: block.value for block in await look(database, blocks.of_agent, agent_id)}


async def test_an_edit_makes_a_new_version_and_keeps_all_else(database: Database) -> None:
    agent_id = await add_agent(database)
    block = await add_block(database, agent_id, "human", "Ann", limit=50, description="who", tags=("t",))
    assert await write(database, agent_id, compute("core_memory_append", [block], label="human", content="tea"))
    after = await look(database, blocks.get, block.id)
    assert after == Block(
        id=block.id,
        label="human",
        value="Ann\ntea",
        limit=50,
        description="who",
        tags=("t",),
        version=2,
        created_us=NOW,
        updated_us=LATER,
    )


async def test_an_edit_of_a_block_that_has_changed_writes_nothing(database: Database) -> None:
    agent_id = await add_agent(database)
    block = await add_block(database, agent_id, "human", "Ann")
    other = await add_block(database, agent_id, "persona")
    stale = compute("core_memory_append", [block], label="human", content="stale")
    assert await write(database, agent_id, compute("core_memory_append", [block], label="human", content="first"))
    fresh = compute("core_memory_append", [other], label="persona", content="x")
    assert not await write(database, agent_id, fresh, stale)
    assert await shown(database, agent_id) == {"human": "Ann\nfirst", "persona": ""}


async def test_an_edit_of_a_block_that_is_gone_writes_nothing(database: Database) -> None:
    agent_id = await add_agent(database)
    block = await add_block(database, agent_id, "human")
    await call(database, blocks.delete_block, block.id)
    assert not await write(database, agent_id, compute("core_memory_append", [block], label="human", content="x"))


async def test_edits_of_one_checkpoint_build_on_each_other(database: Database) -> None:
    agent_id = await add_agent(database)
    block = await add_block(database, agent_id, "human")
    edit = partial(memory.edit, new_id=lambda: ids.new("block"), now_us=NOW)
    first, view = edit("memory", {"command": "create", "path": "a", "description": "d"}, [block])
    second, view = edit("memory_insert", {"label": "a", "new_string": "x"}, view)
    third, view = edit("memory_insert", {"label": "a", "new_string": "y"}, view)
    assert await write(database, agent_id, first, second, third)
    assert await shown(database, agent_id) == {"human": "", "a": "x\ny"}
    assert [(block.id, block.version) for block in await look(database, blocks.of_agent, agent_id)] == [
        (block.id, block.version) for block in sorted(view, key=lambda block: (block.created_us, block.id))
    ]


async def test_a_created_block_is_stored_and_attached(database: Database) -> None:
    agent_id = await add_agent(database)
    change = compute("memory", [], command="create", path="tasks", description="to do", file_text="one")
    assert await write(database, agent_id, change)
    (block,) = await look(database, blocks.of_agent, agent_id)
    assert (block.label, block.value, block.description, block.limit) == ("tasks", "one", "to do", 100_000)


async def test_creating_a_block_whose_label_was_taken_meanwhile_writes_nothing(database: Database) -> None:
    agent_id = await add_agent(database)
    change = compute("memory", [], command="create", path="tasks", description="to do")
    await add_block(database, agent_id, "tasks", "theirs")
    assert not await write(database, agent_id, change)
    assert await shown(database, agent_id) == {"tasks": "theirs"}
    assert await look(database, blocks.count_blocks, blocks.BlockFilter()) == 1


async def test_a_deleted_block_is_detached_from_this_agent_only(database: Database) -> None:
    agent_id, other_id = await add_agent(database), await add_agent(database)
    block = await add_block(database, agent_id, "human", "Ann")
    await call(database, blocks.attach, other_id, block)
    assert await write(database, agent_id, compute("memory", [block], command="delete", path="human"))
    assert await shown(database, agent_id) == {}
    assert await shown(database, other_id) == {"human": "Ann"}


async def test_deleting_a_block_that_has_changed_or_is_detached_writes_nothing(database: Database) -> None:
    agent_id = await add_agent(database)
    block = await add_block(database, agent_id, "human")
    stale = compute("memory", [block], command="delete", path="human")
    assert await write(database, agent_id, compute("memory_insert", [block], label="human", new_string="x"))
    assert not await write(database, agent_id, stale)
    assert await shown(database, agent_id) == {"human": "x"}
    await call(database, blocks.detach, agent_id, block.id)
    current = await look(database, blocks.get, block.id)
    assert not await write(database, agent_id, compute("memory", [current], command="delete", path="human"))


async def test_a_renamed_block_is_renamed_for_every_agent_that_has_it(database: Database) -> None:
    agent_id, other_id = await add_agent(database), await add_agent(database)
    block = await add_block(database, agent_id, "human", "Ann")
    await call(database, blocks.attach, other_id, block)
    assert await write(database, agent_id, compute("memory", [block], command="rename", old_path="human", new_path="u"))
    assert await shown(database, other_id) == {"u": "Ann"}
    assert (await look(database, blocks.of_label, agent_id, "u")).version == 2


async def test_a_label_that_another_sharer_uses_is_refused_before_and_at_the_write(database: Database) -> None:
    agent_id, other_id = await add_agent(database), await add_agent(database)
    block = await add_block(database, agent_id, "human", "Ann")
    await call(database, blocks.attach, other_id, block)
    change = compute("memory", [block], command="rename", old_path="human", new_path="user")
    assert await look(database, memory_edits.refused_rename, agent_id, change) is None
    await add_block(database, other_id, "user", "theirs")
    refused = await look(database, memory_edits.refused_rename, agent_id, change)
    assert (refused.label_before, refused.block.label) == ("human", "user")
    assert not await write(database, agent_id, change)
    assert await shown(database, other_id) == {"human": "Ann", "user": "theirs"}


async def test_an_edit_that_renames_nothing_cannot_be_refused(database: Database) -> None:
    agent_id = await add_agent(database)
    change = compute("memory", [], command="create", path="tasks", description="to do")
    assert await look(database, memory_edits.refused_rename, agent_id, change) is None


async def test_two_blocks_can_trade_labels(database: Database) -> None:
    agent_id = await add_agent(database)
    both = [await add_block(database, agent_id, "a", "1"), await add_block(database, agent_id, "b", "2")]
    moves = (("a", "x"), ("b", "a"), ("x", "b"))
    patch = "\n".join(f"*** Update Block: {old}\n*** Move to: {new}" for old, new in moves)
    assert await write(database, agent_id, compute("memory_apply_patch", both, patch=patch))
    assert await shown(database, agent_id) == {"b": "1", "a": "2"}


async def test_a_conversations_own_copy_is_edited_without_being_attached(database: Database) -> None:
    agent_id = await add_agent(database)
    shared = await add_block(database, agent_id, "human", "shared")
    private = await add_block(database, None, "human", "private")
    assert await write(database, agent_id, compute("memory_rethink", [private], label="human", new_memory="own"))
    assert (await look(database, blocks.get, private.id)).value == "own"
    assert await look(database, blocks.of_agent, agent_id) == [shared]


@pytest.mark.parametrize("writers", [12])
async def test_of_concurrent_edits_none_is_lost_when_each_loser_computes_again(
    database: Database, writers: int
) -> None:
    agent_id = await add_agent(database)
    block = await add_block(database, agent_id, "human")

    async def append(number: int) -> None:
        while True:
            current = await look(database, blocks.get, block.id)
            change = compute("core_memory_append", [current], label="human", content=str(number))
            if await write(database, agent_id, change):
                return

    await asyncio.gather(*(append(number) for number in range(writers)))
    after = await look(database, blocks.get, block.id)
    assert sorted(map(int, after.value.split())) == list(range(writers))
    assert after.version == writers + 1
