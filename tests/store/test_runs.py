"""Runs: one active per thread, ends that happen once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from holdfast.core.messages import Role, Text, ToolCall
from holdfast.core.records import Run
from holdfast.core.usage import Usage
from holdfast.errors import Busy, NotFound
from holdfast.store import frames, journal, leases, messages, runs
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.transaction import Database

from .world import NOW, a_message, a_run, add_agent, add_conversation, add_run, add_step, call, end_run, look, say, walk

SECOND = 1_000_000


async def stored(database: Database, run: Run) -> Run:
    return await look(database, runs.get, run.id)


async def test_a_run_comes_back_as_it_was_stored(database: Database) -> None:
    agent_id = await add_agent(database)
    run = await add_run(
        database,
        agent_id,
        background=True,
        metadata={"run_type": "send_message", "nested": {"a": [1, None]}},
        request_config={"use_assistant_message": True},
        request_key="key",
        callback_url="http://localhost/done",
        lease=3,
        lease_owner="worker",
        lease_expires_us=NOW + 5,
    )
    assert await stored(database, run) == run
    assert await look(database, runs.find, run.id) == run


async def test_an_unknown_run_is_not_found(database: Database) -> None:
    assert await look(database, runs.find, "run-none") is None
    with pytest.raises(NotFound, match="Run not found"):
        await look(database, runs.get, "run-none")


async def is_admitted(database: Database, run: Run) -> bool:
    try:
        await database.write(lambda tx: runs.insert(tx, run, otherwise=Busy(None)))
    except Busy:
        return False
    return True


async def test_of_twenty_runs_admitted_at_once_one_wins(database: Database) -> None:
    agent_id = await add_agent(database)
    admitted = await asyncio.gather(*(is_admitted(database, a_run(agent_id)) for _ in range(20)))
    assert Counter(admitted) == {True: 1, False: 19}
    active = await look(database, runs.active_of_thread, agent_id)
    assert active is not None and active.is_active


async def test_threads_of_one_agent_run_side_by_side(database: Database) -> None:
    agent_id = await add_agent(database)
    conversation = await add_conversation(database, agent_id)
    default, named = await add_run(database, agent_id), await add_run(database, agent_id, conversation)
    for thread_id, run in ((agent_id, default), (conversation, named)):
        assert (await look(database, runs.active_of_thread, thread_id)).id == run.id


async def test_a_thread_is_free_again_once_its_run_has_ended(database: Database) -> None:
    agent_id = await add_agent(database)
    first = await add_run(database, agent_id)
    assert not await is_admitted(database, a_run(agent_id))
    await end_run(database, first)
    assert await look(database, runs.active_of_thread, agent_id) is None
    await add_run(database, agent_id)


async def test_of_twenty_requests_with_one_key_one_becomes_a_run(database: Database) -> None:
    agent_id = await add_agent(database)
    ended = [a_run(agent_id, status="completed", request_key="same") for _ in range(20)]
    admitted = await asyncio.gather(*(is_admitted(database, run) for run in ended))
    assert Counter(admitted) == {True: 1, False: 19}
    winner = ended[admitted.index(True)]
    assert await look(database, runs.by_request_key, agent_id, "same") == winner
    assert await look(database, runs.by_request_key, agent_id, "other") is None


async def test_the_same_key_in_another_thread_is_another_request(database: Database) -> None:
    agent_id = await add_agent(database)
    conversation = await add_conversation(database, agent_id)
    mine = await add_run(database, agent_id, request_key="same")
    theirs = await add_run(database, agent_id, conversation, request_key="same")
    for thread_id, run in ((agent_id, mine), (conversation, theirs)):
        assert (await look(database, runs.by_request_key, thread_id, "same")).id == run.id


async def test_a_run_is_found_by_any_otid_it_was_sent_and_the_newest_wins(database: Database) -> None:
    agent_id = await add_agent(database)
    old = await add_run(database, agent_id, status="completed", created_us=NOW)
    new = await add_run(database, agent_id, created_us=NOW + 1)
    await call(database, runs.add_otids, agent_id, old.id, ["a", "b", "b"])
    await call(database, runs.add_otids, agent_id, old.id, ["a"])
    await call(database, runs.add_otids, agent_id, new.id, ["b"])
    assert (await look(database, runs.by_otid, agent_id, "a")).id == old.id
    assert (await look(database, runs.by_otid, agent_id, "b")).id == new.id
    assert await look(database, runs.by_otid, agent_id, "c") is None
    assert await look(database, runs.by_otid, "agent-other", "a") is None


async def test_a_checkpoint_changes_what_it_names_and_nothing_else(database: Database) -> None:
    run = await add_run(database, await add_agent(database), metadata={"kept": 1, "error": "old"})
    await call(
        database, runs.checkpoint, run, 1, status="running", started_us=NOW + 1, ttft_ns=5, unless_cancelling=True
    )
    await call(
        database,
        runs.checkpoint,
        run,
        2,
        status="failed",
        stop_reason="error",
        completed_us=NOW + 9,
        total_duration_ns=8_000,
        metadata_merge={"error": {"message": "new"}},
        unless_cancelling=True,
    )
    expected = msgspec.structs.replace(
        run,
        checkpoints=2,
        status="failed",
        stop_reason="error",
        started_us=NOW + 1,
        ttft_ns=5,
        completed_us=NOW + 9,
        total_duration_ns=8_000,
        metadata={"kept": 1, "error": {"message": "new"}},
    )
    assert await stored(database, run) == expected


async def test_a_checkpoint_under_an_old_lease_is_fenced_and_changes_nothing(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    mine = await call(database, leases.claim, run.id, "me", NOW, SECOND)
    taken = await call(database, leases.claim, run.id, "you", NOW + SECOND, SECOND)
    outcome = await call(
        database, runs.checkpoint, mine, 1, status="completed", metadata_merge={"x": 1}, unless_cancelling=False
    )
    assert outcome == "fenced"
    assert await stored(database, run) == taken


async def test_a_run_ends_once(database: Database) -> None:
    run = await add_run(database, await add_agent(database))

    async def end(status: str) -> str:
        return await call(database, runs.checkpoint, run, 1, status=status, unless_cancelling=False)

    outcomes = await asyncio.gather(*(end(status) for status in ("completed", "failed", "cancelled") * 5))
    assert Counter(outcomes) == {"ok": 1, "repeated": 14}
    assert await call(database, runs.checkpoint, run, 2, status="failed", unless_cancelling=False) == "fenced"
    assert await call(database, runs.checkpoint, a_run(run.agent_id), 1, unless_cancelling=False) == "fenced"


async def test_a_checkpoint_that_was_written_already_is_told_as_repeated_and_changes_nothing(
    database: Database,
) -> None:
    run = await add_run(database, await add_agent(database))
    assert await call(database, runs.checkpoint, run, 1, status="running", unless_cancelling=True) == "ok"
    await call(database, runs.ask_cancel, run.id, NOW)
    before = await stored(database, run)
    again = await call(database, runs.checkpoint, run, 1, status="completed", unless_cancelling=True)
    assert (again, await stored(database, run)) == ("repeated", before)
    assert await call(database, runs.checkpoint, run, 2, unless_cancelling=True) == "cancelling"


async def test_a_cancel_on_record_stops_every_checkpoint_but_the_one_that_carries_it_out(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    asked = await call(database, runs.ask_cancel, run.id, NOW + 1)
    assert asked.cancel_asked_us == NOW + 1
    assert (await call(database, runs.ask_cancel, run.id, NOW + 2)).cancel_asked_us == NOW + 1
    refused = await call(database, runs.checkpoint, run, 1, status="completed", unless_cancelling=True)
    assert refused == "cancelling"
    assert (await stored(database, run)).status == "created"
    assert await call(database, runs.checkpoint, run, 1, status="cancelled", unless_cancelling=False) == "ok"
    assert await call(database, runs.ask_cancel, run.id, NOW + 3) is None


async def test_a_cancel_and_an_end_at_the_same_moment_are_ordered_by_the_database(database: Database) -> None:
    for _ in range(10):
        run = await add_run(database, await add_agent(database))
        ended, asked = await asyncio.gather(
            call(database, runs.checkpoint, run, 1, status="completed", unless_cancelling=True),
            call(database, runs.ask_cancel, run.id, NOW),
        )
        assert (ended, asked is None) in {("ok", True), ("cancelling", False)}


async def test_a_parked_run_is_cancelled_exactly_once(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    assert not await call(database, runs.end_parked, run.id)
    await end_run(database, run, stop_reason="requires_approval")
    ended = await asyncio.gather(*(call(database, runs.end_parked, run.id) for _ in range(10)))
    assert Counter(ended) == {True: 1, False: 9}
    now = await stored(database, run)
    assert (now.status, now.stop_reason, now.completed_us) == ("cancelled", "cancelled", NOW + 1)


async def test_a_run_that_completed_otherwise_cannot_become_cancelled(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    await end_run(database, run)
    assert not await call(database, runs.end_parked, run.id)
    assert (await stored(database, run)).status == "completed"


async def test_deleting_a_run_takes_its_parts_but_leaves_its_messages(database: Database) -> None:
    agent_id = await add_agent(database)
    run = await add_run(database, agent_id)
    await add_step(database, run)
    await call(database, journal.append, run.id, 1, ["{}"], NOW)
    await call(database, frames.append, run.id, 1, 1, b"x")
    (said,) = await say(database, agent_id, agent_id, [a_message(run_id=run.id)])
    await call(database, runs.delete, run.id)
    assert await look(database, journal.load, run.id) == []
    assert await look(database, frames.last_seq, run.id) == 0
    assert (await look(database, messages.get, said)).id == said
    with pytest.raises(NotFound):
        await call(database, runs.delete, run.id)


@pytest.fixture
async def many(database: Database) -> dict[str, Run]:
    """Five runs of two agents, told apart by every filter."""
    ada, bob = await add_agent(database), await add_agent(database)
    talk = await add_conversation(database, ada)
    fields: dict[str, tuple[str, str, dict[str, Any]]] = {
        "done": (ada, ada, {"status": "completed", "stop_reason": "end_turn"}),
        "failed": (ada, ada, {"status": "failed", "stop_reason": "error"}),
        "live": (ada, ada, {"status": "running", "background": True}),
        "new": (ada, talk, {"status": "created"}),
        "bobs": (bob, bob, {"status": "completed", "stop_reason": "max_steps", "background": True}),
    }
    return {
        name: await add_run(database, agent, thread, created_us=NOW + number // 2, **given)
        for number, (name, (agent, thread, given)) in enumerate(fields.items())
    }


async def test_every_filter_of_the_run_list_narrows_it(database: Database, many: dict[str, Run]) -> None:
    names = {run.id: name for name, run in many.items()}

    async def shown(**filters: Any) -> set[str]:
        found = await look(database, runs.list_runs, RunFilter(**filters), Page())
        return {names[run.id] for run in found}

    ada, bob = many["done"].agent_id, many["bobs"].agent_id
    assert await shown() == set(many)
    assert await shown(agent_ids=(bob,)) == {"bobs"}
    assert await shown(agent_ids=(ada, bob)) == set(many)
    assert await shown(agent_ids=()) == set()
    assert await shown(thread_id=many["new"].thread_id) == {"new"}
    assert await shown(statuses=("completed", "failed")) == {"done", "failed", "bobs"}
    assert await shown(active=True) == {"live", "new"}
    assert await shown(active=True, statuses=("failed",)) == {"failed"}
    assert await shown(background=True) == {"live", "bobs"}
    assert await shown(background=False) == {"done", "failed", "new"}
    assert await shown(stop_reason="max_steps") == {"bobs"}


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_iterating_runs_yields_each_once_even_when_one_ends_meanwhile(
    database: Database, many: dict[str, Run], order: Any
) -> None:
    filters = RunFilter(agent_ids=(many["done"].agent_id,))

    async def fetch(**cursors: Any) -> list[Run]:
        page = Page(limit=1, order=order, **cursors)
        found: list[Run] = await look(database, runs.list_runs, filters, page)
        if found and found[0].id == many["live"].id:
            await end_run(database, many["live"])
        return found

    walked = await walk(fetch)
    expected = sorted((run.created_us, run.id) for name, run in many.items() if name != "bobs")
    assert walked == [run_id for _, run_id in (expected if order == "asc" else expected[::-1])]


async def test_a_due_callback_is_taken_once_and_comes_back_if_nothing_is_heard(database: Database) -> None:
    run = await add_run(database, await add_agent(database), callback_url="http://localhost/done")
    assert await call(database, runs.callbacks_due, NOW, 10, SECOND) == []
    await end_run(database, run, callback_due_us=NOW)
    taken = await asyncio.gather(*(call(database, runs.callbacks_due, NOW, 10, SECOND) for _ in range(10)))
    (only,) = [each for found in taken for each in found]
    assert (only[0].id, only[1]) == (run.id, 1)
    assert await call(database, runs.callbacks_due, NOW + SECOND - 1, 10, SECOND) == []
    ((_, attempt),) = await call(database, runs.callbacks_due, NOW + SECOND, 10, SECOND)
    assert attempt == 2


async def test_the_outcome_of_a_callback_is_recorded_and_decides_whether_it_is_tried_again(database: Database) -> None:
    run = await add_run(database, await add_agent(database), callback_url="http://localhost/done")
    await end_run(database, run, callback_due_us=NOW)
    await call(database, runs.callbacks_due, NOW, 10, SECOND)
    again = NOW + 5 * SECOND
    tried: dict[str, Any] = {"sent_us": NOW, "status_code": None, "error": "refused"}
    await call(database, runs.record_callback_attempt, run.id, **tried, again_us=again)
    assert (await stored(database, run)).callback_error == "refused"
    assert len(await call(database, runs.callbacks_due, again, 10, SECOND)) == 1
    await call(
        database, runs.record_callback_attempt, run.id, sent_us=again, status_code=200, error=None, again_us=None
    )
    now = await stored(database, run)
    assert (now.callback_sent_us, now.callback_status_code, now.callback_error) == (again, 200, None)
    assert await call(database, runs.callbacks_due, again + 60 * SECOND, 10, SECOND) == []


async def test_cost_is_summed_over_the_steps_whose_price_was_known(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    await add_step(database, run, 1)
    assert (await look(database, runs.totals, run.id)).cost_usd is None
    await add_step(database, run, 2, cost_usd=0.25, usage=Usage(10, 2))
    await add_step(database, run, 3, cost_usd=0.5, usage=Usage(1, 1, estimated=True))
    spent = await look(database, runs.totals, run.id)
    assert (spent.cost_usd, spent.steps, spent.usage) == (0.75, 3, Usage(11, 3, estimated=True))


async def test_usage_is_summed_over_all_steps_and_silence_stays_silence(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    assert await look(database, runs.usage, run.id) == (Usage(), 0)
    spent = [Usage(3_000_000_000, 2, 0, None, None), Usage(5, 7, 4, None, None, True)]
    for number in range(120):
        await add_step(database, run, number, usage=spent[number % 2])
    total = Usage(60 * 3_000_000_005, 60 * 9, 60 * 4, None, None, True)
    assert await look(database, runs.usage, run.id) == (total, 120)


async def test_metrics_name_the_tools_that_were_called(database: Database) -> None:
    agent_id = await add_agent(database)
    run = await add_run(database, agent_id)
    for number in range(3):
        await add_step(database, run, number)
    assert await look(database, runs.metrics, run.id) == (3, [])
    calls: list[tuple[Role, tuple[str, ...]]] = [
        ("assistant", ("dice", "mail")),
        ("approval", ("secret",)),
        ("assistant", ("dice",)),
    ]
    rows = [
        a_message(role=role, parts=(Text("x"), *(ToolCall("call", name, "{}") for name in named)), run_id=run.id)
        for role, named in calls
    ]
    await say(database, agent_id, agent_id, rows)
    assert await look(database, runs.metrics, run.id) == (3, ["dice", "mail", "secret"])


async def test_a_run_began_when_its_first_checkpoint_said_so(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    for number in (1, 2):
        written = await call(database, runs.checkpoint, run, number, started_us=NOW + number, unless_cancelling=True)
        assert written == "ok"
    assert (await look(database, runs.get, run.id)).started_us == NOW + 1
