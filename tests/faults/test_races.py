"""Many at once: one wins, the others are told so, and nobody is lost or served twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from holdfast.actions.threads.compact import compact_thread
from holdfast.core.frames import StopFrame
from holdfast.core.messages import text_of
from holdfast.core.records import Run
from holdfast.engine.compacting import Compactor
from holdfast.engine.streams import Numbered
from holdfast.errors import Conflict, NothingToCancel
from holdfast.store.transaction import Job, Transaction
from holdfast.wire.conversations import CompactionSettingsInput
from tests.invariants import assert_invariants, stream_violations
from tests.postgres import WAITING_FOR_LOCKS
from tests.scenario import Node, World
from tests.served import ServedClient, served

from .asking import GUARDED, history
from .scenes import MODES, Mode, on_both_databases
from .templates import Template, world_from

ANSWERS = 30
SENDERS = 20
INTERLEAVINGS = 100


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[ServedClient]:
    async with served(tmp_path, queue_wait_s=100) as made:
        yield made


async def paused(client: ServedClient) -> tuple[str, str]:
    """An agent that waits for one decision, and the call it is about."""
    agent = await client.guarded_agent(GUARDED)
    answer = await client.say(agent.id, "Call guarded with what 'x'")
    return agent.id, answer.messages[-1].tool_call.tool_call_id


def decision(call_id: str, *, approve: bool = True, otid: str | None = None) -> dict[str, Any]:
    given = {"type": "approval", "approve": approve, "tool_call_id": call_id}
    return {"messages": [{"type": "approval", "approvals": [given], "otid": otid}]}


async def check_one_execution(client: ServedClient, agent_id: str, answers: list[httpx.Response]) -> list[Any]:
    """One answer was stored and acted on; the others were refused, or repeated what is known."""
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses[200] >= 1
    assert set(statuses) <= {200, 400, 409}, statuses
    rows = await history(client, agent_id)
    kinds = Counter(row.message_type for row in rows)
    assert kinds["approval_response_message"] == 1
    assert kinds["tool_return_message"] == 1
    await assert_invariants(client.deps.database, idle=True)
    return rows


async def test_thirty_concurrent_answers_to_one_approval_run_the_tool_once(client: ServedClient) -> None:
    agent_id, call_id = await paused(client)
    path = f"/v1/agents/{agent_id}/messages"
    answers = await asyncio.gather(*(client.http.post(path, json=decision(call_id)) for _ in range(ANSWERS)))
    await check_one_execution(client, agent_id, answers)


async def test_thirty_repeats_of_one_answer_are_one_request(client: ServedClient) -> None:
    agent_id, call_id = await paused(client)
    path = f"/v1/agents/{agent_id}/messages"
    body = decision(call_id, otid="the-same")
    answers = await asyncio.gather(*(client.http.post(path, json=body) for _ in range(ANSWERS)))
    rows = await check_one_execution(client, agent_id, answers)
    assert {answer.status_code for answer in answers} == {200}
    runs = {message["run_id"] for answer in answers for message in answer.json()["messages"]}
    assert len(runs) == 1
    assert sum(row.message_type == "user_message" for row in rows) == 1


async def test_of_an_approval_and_a_denial_at_once_one_is_carried_out(client: ServedClient) -> None:
    agent_id, call_id = await paused(client)
    path = f"/v1/agents/{agent_id}/messages"
    answers = await asyncio.gather(
        *(client.http.post(path, json=decision(call_id, approve=number % 2 == 0)) for number in range(10))
    )
    rows = await check_one_execution(client, agent_id, answers)
    (answered,) = [row for row in rows if row.message_type == "approval_response_message"]
    (returned,) = [row for row in rows if row.message_type == "tool_return_message"]
    assert returned.status == ("success" if answered.approvals[0].approve else "error")


async def test_an_answer_and_a_cancel_at_once_leave_one_outcome(client: ServedClient) -> None:
    for _ in range(10):
        agent_id, call_id = await paused(client)
        path = f"/v1/agents/{agent_id}/messages"
        await asyncio.gather(
            client.http.post(path, json=decision(call_id)), client.http.post(f"{path}/cancel", json={})
        )
        rows = await history(client, agent_id)
        kinds = Counter(row.message_type for row in rows)
        assert (kinds["approval_response_message"], kinds["tool_return_message"]) == (1, 1)
        assert (await client.say(agent_id, "Hello again")).stop_reason.stop_reason == "end_turn"
    await assert_invariants(client.deps.database, idle=True)


async def test_twenty_concurrent_sends_to_one_agent_lose_nothing_and_do_not_mix(client: ServedClient) -> None:
    agent = await client.agent()
    texts = [f"message {number} [[delay:0.001]]" for number in range(SENDERS)]
    answers = await asyncio.gather(*(client.say(agent.id, text) for text in texts))
    for number, answer in enumerate(answers):
        assert answer.messages[-1].content == f"You said: message {number}"
    rows = await history(client, agent.id)
    turns = [row for row in rows if row.message_type in ("user_message", "assistant_message")]
    assert len(turns) == 2 * SENDERS
    for asked, answered in zip(turns[::2], turns[1::2], strict=True):
        assert asked.run_id == answered.run_id
        assert answered.content == f"You said: {asked.content.partition(' [[')[0]}"
    await assert_invariants(client.deps.database, idle=True)


async def test_of_twenty_concurrent_streams_to_one_agent_one_runs_and_the_rest_are_told_by_whom(
    client: ServedClient,
) -> None:
    agent = await client.agent()
    path = f"/v1/agents/{agent.id}/messages/stream"
    body = {"input": "Hello [[stall]]", "stream_tokens": True, "background": True}
    asking = [asyncio.create_task(client.http.post(path, json=body)) for _ in range(SENDERS)]
    *refused, accepted = asyncio.as_completed(asking)
    answers = [await each for each in refused]
    await client.agents.messages.cancel(agent.id)
    shown = await accepted
    assert [answer.status_code for answer in answers] == [409] * (SENDERS - 1)
    assert shown.status_code == 200
    assert all(answer.json()["run_id"] in shown.text for answer in answers if "run_id" in answer.json())
    await assert_invariants(client.deps.database, idle=True)


async def race_the_last_commit(node: Node, world: World, mode: Mode, turns: int) -> tuple[Run, list[Numbered]]:
    """The cancel sets out so many turns of the loop after the message; what becomes of it is up to the database."""
    thread = await world.add_thread()
    accepted = await node.send(
        "Hi [[no_reasoning]] [[say:Hello.]]",
        thread=thread,
        stream_tokens=mode.tokens,
        background=mode.background,
    )
    assert accepted.stream is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    try:
        answer = (await node.cancel.of_thread(thread))[accepted.run.id]
    except NothingToCancel:
        answer = "already_finished"
    shown = [numbered async for batch in accepted.stream.follow() for numbered in batch]
    await node.worker.stopped(accepted.run.id)
    run = await world.run(accepted.run.id)
    assert (run.status, answer) in (("cancelled", "cancelled"), ("completed", "already_finished"))
    stops = [frame.stop_reason for _, frame in shown if isinstance(frame, StopFrame)]
    assert stops == [run.stop_reason]
    return run, shown


@on_both_databases
async def test_a_cancel_racing_the_last_commit_and_everyone_agreeing_who_won(
    template: Template, tmp_path: Path
) -> None:
    """Whoever loses is given a start in the next race, so that however fast the machine is, they stay close."""
    races: list[tuple[Run, list[Numbered]]] = []
    async with world_from(template, tmp_path) as world:
        node, turns = world.node(), dict.fromkeys(MODES, 0)
        for mode in islice(cycle(MODES), INTERLEAVINGS):
            races.append(await race_the_last_commit(node, world, mode, turns[mode]))
            slower = races[-1][0].status == "cancelled"
            turns[mode] = turns[mode] * 2 + 1 if slower else turns[mode] * 2 // 3
        snapshot = await assert_invariants(world.database, idle=True)
        assert not [broken for run, shown in races for broken in stream_violations(snapshot, run, shown)]
        assert node.catalog.offline.model.open_streams == 0
    outcomes = Counter(run.status for run, _ in races)
    assert outcomes["cancelled"] and outcomes["completed"], outcomes


@pytest.mark.parametrize("template", ["postgres"], indirect=True)
async def test_a_summary_waits_for_a_message_that_is_being_accepted_and_gives_way_to_it(
    template: Template, tmp_path: Path
) -> None:
    """On SQLite there is one writer, so that one is all done before the other looks.

    The run stalls: whoever waits for a lock may get it last, and would find that the run has ended and the messages
    have changed."""
    written, go_on = asyncio.Event(), asyncio.Event()
    async with world_from(template, tmp_path) as world:
        node = world.node()
        await node.ask("one")
        await node.ask("two")
        write: Any = node.database.write

        async def slow_write(job: Job[Any], performed: Any = None, settled: Any = None) -> Any:
            async def slow(tx: Transaction) -> Any:
                done = await job(tx)
                await tx.fetch_one(text("SELECT 1"))  # before which all that was put off is sent
                written.set()
                await go_on.wait()
                return done

            return await write(slow, performed, settled)

        node.database.write = slow_write  # type: ignore[method-assign]
        sending = asyncio.create_task(node.send("three [[stall]]"))
        await written.wait()
        node.database.write = write
        compacting = asyncio.create_task(
            compact_thread(
                world.agent_id,
                CompactionSettingsInput(mode="all"),
                database=world.database,
                catalog=node.catalog,
                compactor=Compactor(node.catalog, world.clock, node.ratios, world.retry_policy),
                clock=world.clock,
                refuse_empty=False,
            )
        )
        while not await world.database.read(_somebody_waits):
            pass
        go_on.set()
        with pytest.raises(Conflict, match="is active"):
            await compacting
        run_id = (await sending).run.id
        await node.cancel.of_thread(world.agent_id)
        await node.worker.stopped(run_id)
        await assert_invariants(world.database, idle=True)


@on_both_databases
async def test_a_turn_that_comes_and_goes_while_a_message_is_accepted_is_part_of_its_history(
    template: Template, tmp_path: Path
) -> None:
    """The window is read after the head of the thread, in a transaction of its own."""
    async with world_from(template, tmp_path) as world:
        node, other = world.node(), world.node()
        await node.ask("one")
        await other.ask("two")  # so that the first one has to read the window
        read_one = node.database.read_one

        async def read_and_be_overtaken(job: Job[Any]) -> Any:
            head = await read_one(job)
            node.database.read_one = read_one
            await other.ask("three")
            return head

        node.database.read_one = read_and_be_overtaken  # type: ignore[method-assign]
        await node.ask("four")
        said = [text_of(message.parts) for message in await world.window() if message.role == "user"]
        assert said == ["one", "two", "three", "four"]
        await assert_invariants(world.database, idle=True)


async def _somebody_waits(tx: Transaction) -> bool:
    row = await tx.fetch_one(text(WAITING_FOR_LOCKS))
    return row is not None and row["waiting"] > 0
