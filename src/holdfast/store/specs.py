"""The parts of specs that runs share, each stored once under the hash of its text (decision 19).

A foreign key refuses to delete one that a journal refers to, and refuses a journal that refers to a missing one.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import BigInteger, bindparam, delete, exists, select

from holdfast.store.statements import in_array, insert_or_update
from holdfast.store.tables import run_events, specs
from holdfast.store.transaction import Transaction

_KEEP = insert_or_update(specs, ["hash"], ["used_us"])
_is_unused = ~exists().where(run_events.c.spec_hash == specs.c.hash)
_is_old = specs.c.used_us < bindparam("before_us", type_=BigInteger())
_FIND_UNUSED = select(specs.c.hash).where(_is_old, _is_unused).limit(bindparam("at_most"))
_LOCK = select(specs.c.hash).where(in_array(specs.c.hash, "hashes"), _is_old).with_for_update(skip_locked=True)
_DELETE_UNUSED = delete(specs).where(in_array(specs.c.hash, "hashes"), _is_unused)


class SharedSpec(msgspec.Struct, frozen=True):
    hash: str
    text: str  # a JSON object


async def keep(tx: Transaction, shared: SharedSpec, now_us: int) -> None:
    """Stores it, or marks the stored one as used now. Its row is locked until the transaction ends, and `delete_unused`
    skips locked rows."""
    await tx.execute(_KEEP, {"hash": shared.hash, "spec": shared.text, "used_us": now_us})


async def find_unused(tx: Transaction, before_us: int, limit: int) -> list[str]:
    """Those that no journal refers to, and that no server began to use since then."""
    return [row["hash"] for row in await tx.fetch_all(_FIND_UNUSED, {"before_us": before_us, "at_most": limit})]


async def delete_unused(tx: Transaction, before_us: int, hashes: list[str]) -> int:
    """How many of these were still unused. First they are locked: a run that refers to one of them either has begun
    before, and is seen by the statement that deletes, or must wait for it and then finds that the spec is gone."""
    locked = [row["hash"] for row in await tx.fetch_all(_LOCK, {"before_us": before_us, "hashes": hashes})]
    return await tx.execute(_DELETE_UNUSED, {"hashes": locked}) if locked else 0
