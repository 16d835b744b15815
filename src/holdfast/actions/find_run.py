"""Which run a client means when it asks for a conversation's stream."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.actions.threads.find import require_thread
from holdfast.core.records import Run
from holdfast.errors import Invalid, NotFound
from holdfast.store import runs
from holdfast.store.transaction import Database, Transaction

# A client may ask for the stream of a message whose request is still on its way here.
_OTID_WAITS_S: Final = (0.25, 0.5, 1.0)


async def find_streamed_run(database: Database, thread_id: str, run_id: str | None, otid: str | None) -> Run:
    """By the run's id, else by a client's own key of one of its messages, else the thread's active run."""

    async def named(tx: Transaction) -> Run | None:
        await require_thread(tx, thread_id)
        return await runs.get(tx, run_id) if run_id else None

    found = await database.read(named)
    if found is not None:
        return found
    if otid:
        return await _of_otid(database, thread_id, otid)
    active = await database.read(lambda tx: runs.active_of_thread(tx, thread_id))
    if active is None:
        raise Invalid("No active runs found for this conversation.")
    return active


async def _of_otid(database: Database, thread_id: str, otid: str) -> Run:
    for wait_s in (*_OTID_WAITS_S, None):
        found = await database.read(lambda tx: runs.by_otid(tx, thread_id, otid))
        if found is not None:
            return found
        if wait_s is not None:
            await asyncio.sleep(wait_s)
    raise NotFound(f"No run found for otid={otid}")
