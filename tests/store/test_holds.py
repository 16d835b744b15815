"""Holds: one undecided per thread, decided once."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast import ids
from holdfast.core.hold import HeldCall, Hold
from holdfast.core.messages import ToolCall
from holdfast.core.records import Run
from holdfast.store import holds
from holdfast.store.paging import Page
from holdfast.store.transaction import Database

from .world import NOW, add_agent, add_conversation, add_run, call, look


def a_hold() -> Hold:
    asked = HeldCall(ToolCall("call-1", "mail", '{"to": "ö"}'), asks=True, version=7)
    return Hold(ids.new("message"), ids.new("step"), (asked, HeldCall(ToolCall("call-2", "dice", "{}"), asks=False)))


async def ended_run(database: Database, agent_id: str, thread_id: str | None = None) -> Run:
    return await add_run(database, agent_id, thread_id, status="completed", stop_reason="requires_approval")


async def test_a_hold_comes_back_with_exactly_what_was_asked(database: Database) -> None:
    agent_id = await add_agent(database)
    run, hold = await ended_run(database, agent_id), a_hold()
    assert await call(database, holds.insert, run, hold, NOW)
    found = await look(database, holds.open_of_thread, agent_id)
    assert found == await look(database, holds.get, run.id)
    assert (found.run_id, found.agent_id, found.thread_id) == (run.id, agent_id, agent_id)
    assert (found.request_id, found.hold, found.asked_us, found.decided_us) == (hold.request_id, hold, NOW, None)


async def test_of_twenty_holds_on_one_thread_one_is_taken(database: Database) -> None:
    agent_id = await add_agent(database)
    waiting = [await ended_run(database, agent_id) for _ in range(20)]
    taken = await asyncio.gather(*(call(database, holds.insert, run, a_hold(), NOW) for run in waiting))
    assert Counter(taken) == {True: 1, False: 19}


async def test_a_hold_is_decided_by_exactly_one(database: Database) -> None:
    agent_id = await add_agent(database)
    run = await ended_run(database, agent_id)
    await call(database, holds.insert, run, a_hold(), NOW)
    decided = await asyncio.gather(*(call(database, holds.decide, run.id, NOW + n, f"run-{n}") for n in range(10)))
    assert Counter(decided) == {True: 1, False: 9}
    winner = decided.index(True)
    found = await look(database, holds.get, run.id)
    assert (found.decided_us, found.decided_by_run) == (NOW + winner, f"run-{winner}")
    assert await look(database, holds.open_of_thread, agent_id) is None


async def test_a_thread_can_wait_again_after_a_decision(database: Database) -> None:
    agent_id = await add_agent(database)
    first, second = await ended_run(database, agent_id), await ended_run(database, agent_id)
    await call(database, holds.insert, first, a_hold(), NOW)
    assert not await call(database, holds.insert, second, a_hold(), NOW)
    await call(database, holds.decide, first.id, NOW, None)
    assert await call(database, holds.insert, second, a_hold(), NOW)


async def test_open_holds_are_listed_by_agent_newest_first(database: Database) -> None:
    ada, bob = await add_agent(database), await add_agent(database)
    talk = await add_conversation(database, ada)
    waiting = [await ended_run(database, ada), await ended_run(database, ada, talk), await ended_run(database, bob)]
    for number, run in enumerate(waiting):
        await call(database, holds.insert, run, a_hold(), NOW + number)
    shown = [row.run_id for row in await look(database, holds.list_open)]
    assert shown == [run.id for run in reversed(waiting)]
    assert [row.run_id for row in await look(database, holds.list_open, ada)] == [waiting[1].id, waiting[0].id]
    page = Page(limit=1, after=waiting[2].id)
    assert [row.run_id for row in await look(database, holds.list_open, None, page)] == [waiting[1].id]
    await call(database, holds.decide, waiting[0].id, NOW, None)
    assert [row.run_id for row in await look(database, holds.list_open, ada)] == [waiting[1].id]


async def test_a_run_without_a_hold_has_none(database: Database) -> None:
    assert await look(database, holds.get, "run-none") is None
    assert await look(database, holds.open_of_thread, "conv-none") is None
