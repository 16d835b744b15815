"""Whole runs: the real loop, the real store, the offline model. Each flow from the request to what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.actions.threads.context import recompile_system
from holdfast.core.frames import (
    AbandonedFrame,
    CallFrame,
    CompactionFrame,
    ErrorFrame,
    Frame,
    MessageFrame,
    RetryFrame,
    StopFrame,
    TextFrame,
    UsageFrame,
)
from holdfast.core.messages import Approve, ClientReturn, Deny, Message, Summary, ToolReturn, content_text, text_of
from holdfast.core.run import OpenCall
from holdfast.core.tool_rules import ChildArguments, Children, ExitLoop, RequiredBeforeExit, RequiresApproval, Rule
from holdfast.errors import Busy, Conflict, Invalid, NothingToCancel, PendingApproval
from holdfast.llm.base import ModelInfo
from holdfast.store import agents, journal, runs, tools

from ..invariants import assert_invariants, stream_violations
from ..scenario import RULES, Node, World, eventually, sqlite_at, stop_of, world_at
from .recording import RecordingCatalog

CANCEL_S = 30.0  # of a provider that would never answer


def roles(rows: Sequence[Message]) -> list[str]:
    return [row.role for row in rows]


def returns_of(rows: Sequence[Message]) -> list[tuple[str, str, str]]:
    return [(part.name, part.status, content_text(part.content)) for row in rows for part in row.returns]


def kinds(frames: Sequence[Frame]) -> list[type[Frame]]:
    """Without repeats side by side."""
    found: list[type[Frame]] = []
    for frame in frames:
        if not found or found[-1] is not type(frame):
            found.append(type(frame))
    return found


@pytest.fixture
async def idle(world: World) -> AsyncIterator[None]:
    """After the test nothing is left running and nothing is broken."""
    yield
    await assert_invariants(world.database, idle=True)


pytestmark = pytest.mark.usefixtures("idle")


# --- answering -------------------------------------------------------------------------------------------------------


async def test_a_message_is_answered_and_everything_about_it_is_stored(world: World, node: Node) -> None:
    accepted = await node.send("hello")
    frames = await node.told(accepted)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason) == ("completed", "end_turn")
    assert run.ttft_ns is not None
    assert run.total_duration_ns is not None
    assert roles(await world.window()) == ["system", "user", "assistant"]
    assert kinds(frames) == [MessageFrame, StopFrame, UsageFrame]
    snapshot = await assert_invariants(world.database)
    (step,) = snapshot.steps.values()
    assert (step.status, step.stop_reason, step.usage.total_tokens > 0) == ("success", "end_turn", True)
    agent = await world.database.read(lambda tx: agents.get(tx, world.agent_id))
    assert agent.last_stop_reason == "end_turn"


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("tokens", [False, True])
async def test_what_listeners_are_shown_is_what_is_stored(
    world: World, node: Node, background: bool, tokens: bool
) -> None:
    for text in ("hello", "call the note tool, then call the lookup tool", "call the guarded tool and the note tool"):
        accepted = await node.send(text, background=background, stream_tokens=tokens)
        frames = await node.told(accepted)
        snapshot = await assert_invariants(world.database, idle=True)
        run = snapshot.runs[accepted.run.id]
        assert not list(stream_violations(snapshot, run, list(enumerate(frames, 1))))
        if background:
            assert [frame for _, frame in snapshot.frames[run.id]] == frames


async def test_tokens_are_shown_before_the_reply_is_finished(world: World, node: Node) -> None:
    accepted = await node.send("[[no_reasoning]][[say:one two]][[stall_after:2]]", stream_tokens=True)
    assert accepted.stream is not None
    shown = [frame for _, frame in await anext(accepted.stream.follow())]
    assert isinstance(shown[0], TextFrame)
    assert await node.cancel.one(accepted.run.id) == "cancelled"


async def test_a_listener_that_hangs_up_does_not_stop_the_run(world: World, node: Node) -> None:
    accepted = await node.send("call the slow tool", stream_tokens=True)
    assert accepted.stream is not None
    listener = asyncio.create_task(anext(accepted.stream.follow()))
    await listener
    await world.tools.waiting.wait()
    world.tools.let_go.set()
    await node.worker.stopped(accepted.run.id)
    assert (await world.run(accepted.run.id)).stop_reason == "end_turn"


async def test_an_empty_reply_stores_nothing_and_ends_the_turn(world: World, node: Node) -> None:
    assert (await node.ask("[[empty]]")).stop_reason == "end_turn"
    assert roles(await world.window()) == ["system", "user"]


async def test_an_answer_cut_by_the_output_limit_is_stored_and_told_and_the_run_says_why_it_failed(
    world: World, node: Node
) -> None:
    accepted = await node.send("[[finish:length]] hello")
    frames = await node.told(accepted)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason) == ("failed", "max_tokens_exceeded")
    error = run.metadata["error"]
    assert (error["error_type"], error["run_id"]) == ("max_tokens_exceeded", run.id)
    assert error["message"] and error["detail"]
    assert isinstance(frames[-1], UsageFrame)
    assert roles(await world.window()) == ["system", "user", "assistant"]


async def test_the_same_request_sent_again_is_the_same_run(world: World, node: Node) -> None:
    first = await node.send("hello", otid="otid-1")
    await node.worker.stopped(first.run.id)
    again = await node.send("hello", otid="otid-1")
    assert again.run.id == first.run.id
    assert again.stream is None
    assert roles(await world.window()) == ["system", "user", "assistant"]


async def test_a_thread_takes_one_request_at_a_time_and_threads_do_not_wait_for_each_other(
    world: World, node: Node
) -> None:
    running = await node.send("call the slow tool")
    await world.tools.waiting.wait()
    with pytest.raises(Busy) as refused:
        await node.send("hello")
    assert refused.value.run_id == running.run.id
    other = await world.add_thread()
    assert (await node.ask("hello", thread=other)).stop_reason == "end_turn"
    world.tools.let_go.set()
    await node.worker.stopped(running.run.id)


async def test_a_request_that_was_decided_on_a_thread_that_has_moved_on_looks_again(world: World, node: Node) -> None:
    """Between looking and writing another run came, asked for approval and went: the message must not slip in."""
    other = world.node()
    held_up, go_on = asyncio.Event(), asyncio.Event()
    find = node.catalog.find

    async def slow_find(handle: str) -> object:
        held_up.set()
        await go_on.wait()
        return await find(handle)

    await world.change_rules(RULES, handle="holdfast/other")
    node.catalog.find = slow_find  # type: ignore[method-assign, assignment]
    late = asyncio.create_task(node.send("hello", override_model="holdfast/offline"))
    await held_up.wait()
    await other.ask("call the guarded tool", override_model="holdfast/offline")
    go_on.set()
    with pytest.raises(PendingApproval):
        await late
    assert roles(await world.window()) == ["system", "user", "approval"]


async def test_a_system_prompt_that_was_compiled_anew_during_a_run_is_what_the_next_one_sends(world: World) -> None:
    catalog = RecordingCatalog()
    node = Node(world, catalog=catalog)
    await node.ask("hello")
    accepted = await node.send("hello [[ttft:0.2]]")
    await eventually(lambda: catalog.offline.model.open_streams == 1)
    await world.database.write(lambda tx: recompile_system(tx, world.agent_id, 1_000_000, update_timestamp=True))
    await node.worker.stopped(accepted.run.id)
    assert (await world.run(accepted.run.id)).stop_reason == "end_turn"
    await node.ask("hello again")
    _, told, told_anew = (request.system for request in catalog.asked)
    assert told != told_anew == text_of((await world.window())[0].parts)


# --- tools -----------------------------------------------------------------------------------------------------------


async def test_tools_are_run_and_their_returns_reported(world: World, node: Node) -> None:
    await node.ask("call the note tool and the failing tool")
    rows = await world.window()
    assert roles(rows) == ["system", "user", "assistant", "tool", "assistant"]
    assert returns_of(rows) == [("note", "success", "note was run"), ("failing", "error", "failing was run")]


async def test_an_unknown_tool_and_broken_arguments_are_refused_and_the_turn_goes_on(world: World, node: Node) -> None:
    run = await node.ask('[[call:explode {}]][[call:note {"x]] hello')
    assert run.stop_reason == "end_turn"
    first, second = returns_of(await world.window())
    assert first[2].startswith("[ToolConstraintError] Cannot call explode")
    assert "not valid JSON" in second[2]
    assert not world.tools.begun


async def test_the_run_ends_after_its_budget_of_steps(world: World, node: Node) -> None:
    run = await node.ask("call the note tool [[repeat]]", max_steps=2)
    assert (run.status, run.stop_reason) == ("completed", "max_steps")
    assert roles(await world.window()) == ["system", "user", *["assistant", "tool"] * 2]


async def test_a_tool_is_run_only_when_its_start_is_on_record(world: World, node: Node) -> None:
    on_record: list[str] = []

    async def look(call: OpenCall) -> ToolReturn:
        (run_id,) = {row.run_id for row in await world.window() if row.run_id}
        on_record.extend(await world.database.read(lambda tx: journal.load(tx, run_id)))
        return ToolReturn(call.call.id, "note", "success", "seen")

    world.tools.answers["note"] = look
    await node.ask("call the note tool")
    assert "tools_started" in on_record[-1]


async def test_an_executor_that_breaks_fails_the_run_in_order_and_keeps_what_others_returned(
    world: World, node: Node
) -> None:
    async def explode(call: OpenCall) -> ToolReturn:
        raise RuntimeError("the executor broke")

    world.tools.answers["lookup"] = explode
    accepted = await node.send("call the note tool and the lookup tool")
    frames = await node.told(accepted)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason) == ("failed", "error")
    assert run.metadata["error"]["detail"] == "RuntimeError: the executor broke"
    assert kinds(frames)[-2:] == [StopFrame, ErrorFrame]
    note, lookup = returns_of(await world.window())
    assert note == ("note", "success", "note was run")
    assert lookup[1] == "error"
    assert (await node.ask("hello")).stop_reason == "end_turn"


async def test_an_executor_that_answers_for_another_call_fails_the_run_in_order(world: World, node: Node) -> None:
    async def mistake(call: OpenCall) -> ToolReturn:
        return ToolReturn("c-other", "note", "success", "mine")

    world.tools.answers["note"] = mistake
    run = await node.ask("call the note tool")
    assert (run.status, run.stop_reason) == ("failed", "error")


# --- rules -----------------------------------------------------------------------------------------------------------


async def ruled(world: World, *rules: Rule) -> None:
    await world.change_rules((*RULES, *rules))


async def test_a_terminal_tool_ends_the_turn(world: World, node: Node) -> None:
    await ruled(world, ExitLoop(tool_name="finish"))
    run = await node.ask("call the finish tool")
    assert run.stop_reason == "tool_rule"
    assert roles(await world.window()) == ["system", "user", "assistant", "tool"]


async def test_a_required_tool_is_asked_for_until_it_is_called(world: World, node: Node) -> None:
    await ruled(world, RequiredBeforeExit(tool_name="note"))
    assert (await node.ask("hello")).stop_reason == "end_turn"
    rows = await world.window()
    assert roles(rows) == ["system", "user", "assistant", "user", "assistant", "tool", "assistant"]
    assert "ToolRuleViolated: You must call note" in text_of(rows[3].parts)


async def test_invalid_prefilled_arguments_end_the_run_with_an_error_return_and_an_answer(
    world: World, node: Node
) -> None:
    nodes = (ChildArguments("lookup", {"colour": "red"}),)
    await ruled(world, Children(tool_name="note", children=("lookup",), child_arg_nodes=nodes))
    accepted = await node.send("call the note tool, then call the lookup tool")
    frames = await node.told(accepted)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason) == ("failed", "invalid_tool_call")
    assert returns_of(await world.window())[1][2].startswith("Invalid prefilled tool arguments from tool rules")
    assert isinstance(frames[-1], UsageFrame)
    assert sum(world.tools.begun.values()) == 1


# --- approval --------------------------------------------------------------------------------------------------------


async def ask_for_approval(
    world: World, node: Node, text: str = "call the guarded tool and the note tool"
) -> list[str]:
    run = await node.ask(text)
    assert (run.status, run.stop_reason) == ("completed", "requires_approval")
    hold = await world.pending()
    assert hold is not None
    return list(hold.hold.asked_ids)


async def test_nothing_of_a_reply_runs_before_its_approval_and_all_of_it_after(world: World, node: Node) -> None:
    asked = await ask_for_approval(world, node)
    assert not world.tools.begun
    assert roles(await world.window()) == ["system", "user", "assistant", "approval"]
    with pytest.raises(PendingApproval):
        await node.send("hello")
    accepted = await node.send(decisions=[Approve(asked[0])])
    frames = await node.told(accepted)
    rows = await world.window()
    assert roles(rows) == ["system", "user", "assistant", "approval", "approval", "tool", "assistant"]
    assert [name for name, _, _ in returns_of(rows)] == ["guarded", "note"]
    first = frames[0]
    assert isinstance(first, MessageFrame)
    assert first.message.role == "tool", "the answer is not echoed"
    assert rows[5].step_id == rows[3].step_id
    assert rows[5].run_id == accepted.run.id


async def test_a_denial_is_told_to_the_model_with_its_reason(world: World, node: Node) -> None:
    asked = await ask_for_approval(world, node)
    run = await node.ask(decisions=[Deny(asked[0], "too dear")])
    assert run.stop_reason == "end_turn"
    guarded, note = returns_of(await world.window())
    assert guarded == ("guarded", "error", "Error: request to call tool denied. User reason: too dear")
    assert note[1] == "success"


async def test_a_client_tool_pauses_the_run_and_its_return_carries_it_on(world: World, node: Node) -> None:
    camera: dict[str, Any] = {"client_tools": [{"name": "camera", "description": "Takes a picture."}]}
    run = await node.ask("call the camera tool", **camera)
    assert run.stop_reason == "requires_approval"
    hold = await world.pending()
    assert hold is not None
    with pytest.raises(Invalid, match="must be answered with a tool return"):
        await node.send(decisions=[Approve(hold.hold.asked_ids[0])])
    run = await node.ask(decisions=[ClientReturn(hold.hold.asked_ids[0], "snap", "error")], **camera)
    assert run.stop_reason == "end_turn"
    assert returns_of(await world.window()) == [("camera", "error", "snap")]


async def test_messages_that_come_with_the_answer_stand_after_the_returns_and_are_answered(
    world: World, node: Node
) -> None:
    await ruled(world, RequiresApproval(tool_name="finish"), ExitLoop(tool_name="finish"))
    asked = await ask_for_approval(world, node, "call the finish tool")
    run = await node.ask("and now?", decisions=[Approve(asked[0])])
    assert run.stop_reason == "end_turn"
    rows = await world.window()
    assert roles(rows) == ["system", "user", "approval", "approval", "tool", "user", "assistant"]
    assert text_of(rows[-1].parts).startswith("You said: and now?")


async def test_the_answer_sent_again_does_not_run_the_tool_again(world: World, node: Node) -> None:
    asked = await ask_for_approval(world, node)
    await node.ask(decisions=[Approve(asked[0])])
    run = await node.ask(decisions=[Approve(asked[0])])
    assert run.stop_reason == "end_turn"
    assert set(world.tools.begun.values()) == {1}
    assert any("keep-alive" in text_of(row.parts) for row in await world.window())


async def test_of_two_answers_at_once_one_wins(world: World, node: Node) -> None:
    asked = await ask_for_approval(world, node)
    both = (node.send(decisions=[Approve(asked[0])]), node.send(decisions=[Deny(asked[0])]))
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    await node.settled()
    # One that comes when the other's run is over is a repeat: accepted, but it decides nothing.
    assert any(not isinstance(outcome, Exception) for outcome in outcomes)
    assert len([row for row in await world.window() if row.decisions]) == 1
    assert len(returns_of(await world.window())) == 2  # of the guarded call and of its sibling


async def test_a_tool_that_was_changed_after_it_was_asked_for_cannot_be_approved(world: World, node: Node) -> None:
    asked = await ask_for_approval(world, node)
    (guarded,) = [tool for tool in await _tools(world) if tool.name == "guarded"]
    changed = msgspec.structs.replace(guarded, version=guarded.version + 1)
    await world.database.write(lambda tx: tools.update_tool(tx, changed))
    with pytest.raises(Conflict, match="was changed after approval was asked"):
        await node.send(decisions=[Approve(asked[0])])
    assert (await node.ask(decisions=[Deny(asked[0])])).stop_reason == "end_turn"


async def test_a_tool_that_was_deleted_while_its_approval_was_pending_is_not_found(world: World, node: Node) -> None:
    asked = await ask_for_approval(world, node, "call the guarded tool")
    (guarded,) = [tool for tool in await _tools(world) if tool.name == "guarded"]
    await world.database.write(lambda tx: tools.delete_tool(tx, guarded.id))
    await node.ask(decisions=[Approve(asked[0])])
    assert returns_of(await world.window()) == [("guarded", "error", "Tool not found")]


async def test_an_answer_when_nothing_is_asked_is_refused_and_leaves_nothing_behind(world: World, node: Node) -> None:
    with pytest.raises(Invalid, match="No tool call is currently awaiting approval"):
        await node.send(decisions=[Approve("c1")])
    assert not (await assert_invariants(world.database)).runs


async def test_if_the_model_fails_after_an_approval_what_was_done_stays_and_the_agent_is_not_stuck(
    world: World, node: Node
) -> None:
    asked = await ask_for_approval(world, node, "call the guarded tool [[error:server@2]]")
    run = await node.ask(decisions=[Approve(asked[0])])
    assert (run.status, run.stop_reason) == ("failed", "llm_api_error")
    assert returns_of(await world.window()) == [("guarded", "success", "guarded was run")]
    assert (await node.ask("hello")).stop_reason == "end_turn"


async def test_the_first_words_of_a_reply_are_shown_before_the_rest_of_it_is_read(world: World, node: Node) -> None:
    accepted = await node.send("[[no_reasoning]] [[tokens:50]]", stream_tokens=True, background=True)
    assert accepted.stream is not None
    batches = [batch async for batch in accepted.stream.follow()]
    assert len(batches[0]) == 1


# --- cancelling ------------------------------------------------------------------------------------------------------


async def test_a_cancel_before_the_first_step_stores_the_input_and_calls_no_model(world: World, node: Node) -> None:
    accepted = await node.send("hello", background=True)
    node.worker.cancel(accepted.run.id)  # accepted, and not on record as running yet
    frames = await node.told(accepted)
    assert stop_of(frames) == "cancelled"
    assert roles(await world.window()) == ["system", "user"]
    assert kinds(frames) == [StopFrame, UsageFrame]
    snapshot = await assert_invariants(world.database)
    assert [(step.status, step.usage.total_tokens) for step in snapshot.steps.values()] == [("cancelled", 0)]


async def test_a_cancel_while_the_model_is_silent_closes_its_stream_at_once(world: World, node: Node) -> None:
    accepted = await node.send("[[stall]] hello")
    model = node.catalog.offline.model
    await eventually(lambda: model.open_streams == 1)
    assert await node.cancel.of_thread(world.agent_id) == {accepted.run.id: "cancelled"}
    assert model.open_streams == 0
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason, run.completed_us is not None) == ("cancelled", "cancelled", True)
    snapshot = await assert_invariants(world.database)
    assert [step.status for step in snapshot.steps.values()] == ["cancelled"]


async def test_a_cancel_while_a_provider_is_silent_about_its_models_ends_the_run_at_once(
    world: World, node: Node
) -> None:
    silent = asyncio.Event()

    async def find(handle: str) -> ModelInfo:
        silent.set()
        await asyncio.Event().wait()
        raise AssertionError(f"{handle} is never found")

    node.catalog.find = find  # type: ignore[method-assign]
    accepted = await node.send("hello", background=True)
    await silent.wait()
    async with asyncio.timeout(CANCEL_S):
        assert await node.cancel.one(accepted.run.id) == "cancelled"
    assert roles(await world.window()) == ["system", "user"]


@pytest.mark.parametrize("background", [False, True])
async def test_a_cancel_during_a_token_stream_keeps_what_was_delivered_under_the_same_id(
    world: World, node: Node, background: bool
) -> None:
    text = "[[no_reasoning]][[say:one two three]][[stall_after:2]]"
    accepted = await node.send(text, stream_tokens=True, background=background)
    stream = accepted.stream
    assert stream is not None
    while stream.last < 2:
        await stream.changed()
    assert await node.cancel.one(accepted.run.id) == "cancelled"
    kept = (await world.window())[-1]
    shown = [frame for frame in stream.frames if isinstance(frame, TextFrame)]
    assert {frame.message_id for frame in shown} == {kept.id}
    assert text_of(kept.parts) == "".join(frame.text for frame in shown) == "one two"


async def test_calls_that_were_cut_off_in_the_middle_are_replayed_and_not_stored(world: World, node: Node) -> None:
    text = '[[no_reasoning]][[call:note {"a": "b c d"}]][[stall_after:2]]'
    accepted = await node.send(text, stream_tokens=True, background=True)
    stream = accepted.stream
    assert stream is not None
    while stream.last < 2:
        await stream.changed()
    assert isinstance(stream.frames[0], CallFrame)
    await node.cancel.one(accepted.run.id)
    assert roles(await world.window()) == ["system", "user"]
    assert await node.replay(accepted.run.id) == list(enumerate(stream.frames, 1))


async def test_a_cancel_while_tools_run_kills_them_and_gives_every_call_its_return(world: World, node: Node) -> None:
    accepted = await node.send("call the note tool and the slow tool and the lookup tool")
    await world.tools.waiting.wait()
    assert await node.cancel.one(accepted.run.id) == "cancelled"
    assert sum(world.tools.killed.values()) == 1
    told = {name: (status, text) for name, status, text in returns_of(await world.window())}
    assert told["slow"][0] == "error"
    assert "may have taken effect in part" in told["slow"][1]
    assert "was not executed" in told["note"][1]
    frames = accepted.stream.frames if accepted.stream else []
    assert any(isinstance(frame, MessageFrame) and frame.message.role == "tool" for frame in frames)
    assert stop_of(frames) == "cancelled"
    assert (await node.ask("hello")).stop_reason == "end_turn"


async def test_a_tool_that_finished_before_the_cancel_keeps_its_real_return(world: World, node: Node) -> None:
    accepted = await node.send("call the note tool, then call the slow tool")
    await world.tools.waiting.wait()
    await node.cancel.one(accepted.run.id)
    note, slow = returns_of(await world.window())
    assert note == ("note", "success", "note was run")
    assert slow[1] == "error"


async def test_a_cancel_of_a_pending_approval_denies_it_in_one_go(world: World, node: Node) -> None:
    await ask_for_approval(world, node)
    hold = await world.pending()
    assert hold is not None
    assert await node.cancel.of_thread(world.agent_id) == {hold.run_id: "cancelled"}
    rows = await world.window()
    assert roles(rows) == ["system", "user", "assistant", "approval", "approval", "tool"]
    assert [name for name, _, _ in returns_of(rows)] == ["guarded", "note"]
    assert {row.run_id for row in rows[-2:]} == {hold.run_id}
    assert not world.tools.begun
    run = await world.run(hold.run_id)
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled")
    assert (await node.ask("hello")).stop_reason == "end_turn"


async def test_cancelling_what_has_ended_changes_nothing_and_says_so(world: World, node: Node) -> None:
    run = await node.ask("hello")
    assert await node.cancel.one(run.id) == "already_finished"
    assert await world.run(run.id) == run
    with pytest.raises(NothingToCancel):
        await node.cancel.of_thread(world.agent_id)
    assert await node.cancel.one("run-unknown") == "failed"


async def test_a_cancel_that_is_on_record_before_the_last_checkpoint_wins(world: World, node: Node) -> None:
    """The push is lost: only the database knows. The run has its answer ready and still ends cancelled."""
    accepted = await node.send("call the slow tool")
    await world.tools.waiting.wait()
    await world.database.write(lambda tx: runs.ask_cancel(tx, accepted.run.id, 5))
    world.tools.let_go.set()
    await node.worker.stopped(accepted.run.id)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled")
    assert returns_of(await world.window()) == [("slow", "success", "slow was run")]


# --- failing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason", "error_type"),
    [
        ("rate_limit", "llm_api_error", "llm_rate_limit"),
        ("timeout", "llm_api_error", "llm_timeout"),
        ("auth", "llm_api_error", "llm_authentication"),
        ("empty", "invalid_llm_response", "llm_empty_response"),
        ("runtime", "error", "internal_error"),
    ],
)
async def test_a_model_that_fails_fails_the_run_with_one_structured_error(
    world: World, node: Node, kind: str, reason: str, error_type: str
) -> None:
    accepted = await node.send(f"[[error:{kind}]][[message:told so]] hello")
    frames = await node.told(accepted)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason) == ("failed", reason)
    assert run.metadata["error"]["error_type"] == error_type
    assert "told so" in run.metadata["error"]["detail"]
    assert frames[-1] == ErrorFrame(run.metadata["error"])
    assert stop_of(frames) == reason
    snapshot = await assert_invariants(world.database)
    assert [step.status for step in snapshot.steps.values()] == ["failed"]


async def test_a_stream_that_breaks_off_fails_the_run_and_its_words_are_not_stored(world: World, node: Node) -> None:
    accepted = await node.send("[[cut:4]] hello", background=True, stream_tokens=True)
    await node.worker.stopped(accepted.run.id)
    assert (await world.run(accepted.run.id)).stop_reason == "llm_api_error"
    assert roles(await world.window()) == ["system", "user"]
    assert kinds([frame for _, frame in await node.replay(accepted.run.id)]) == [StopFrame, ErrorFrame]


async def test_what_a_failure_of_ours_cuts_off_is_left_out_of_the_replay(world: World, node: Node) -> None:
    text = "[[error:runtime]][[error_after:4]] hello"
    accepted = await node.send(text, background=True, stream_tokens=True)
    await node.worker.stopped(accepted.run.id)
    assert (await world.run(accepted.run.id)).stop_reason == "error"
    assert kinds([frame for _, frame in await node.replay(accepted.run.id)]) == [StopFrame, ErrorFrame]


async def test_steps_that_were_committed_stay_when_a_later_one_fails(world: World, node: Node) -> None:
    run = await node.ask("call the note tool [[error:server@2]]")
    assert run.status == "failed"
    assert roles(await world.window()) == ["system", "user", "assistant", "tool"]
    snapshot = await assert_invariants(world.database)
    assert [step.status for step in snapshot.steps.values()] == ["success", "failed"]


# --- compacting ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[World]:
    """An agent whose window is soon full."""
    directory = tmp_path / "small"
    directory.mkdir()
    async with world_at(sqlite_at(directory), context_window=2_000) as made:
        yield made
        await assert_invariants(made.database, idle=True)


LONG = "word " * 300


async def test_a_window_that_is_nearly_full_is_compacted_after_the_step(small: World) -> None:
    node = small.node()
    await node.ask("remember the first thing")
    accepted = await node.send("[[usage:1900,10]] hello", include_compaction_messages=True)
    frames = await node.told(accepted)
    assert stop_of(frames) == "end_turn"
    assert roles(await small.window())[:2] == ["system", "summary"]
    assert CompactionFrame in kinds(frames)
    shown = [frame.message.role for frame in frames if isinstance(frame, MessageFrame)]
    assert shown[-1] == "summary"
    snapshot = await assert_invariants(small.database)
    assert len(snapshot.threads[small.agent_id].history) == 6, "what was evicted stays in history"


async def test_a_failed_compaction_after_a_step_does_not_fail_the_run(small: World) -> None:
    run = await small.node().ask("[[usage:1900,10]][[summary_error:server]] hello")
    assert (run.status, run.stop_reason) == ("completed", "end_turn")
    assert "summary" not in roles(await small.window())


async def test_an_overflow_is_compacted_and_the_call_made_again(small: World) -> None:
    node = small.node()
    for _ in range(3):
        await node.ask(f"[[say:fine]] {LONG}")
    accepted = await node.send(f"[[say:fine]] {LONG}", background=True, stream_tokens=True)
    await node.worker.stopped(accepted.run.id)
    run = await small.run(accepted.run.id)
    assert run.stop_reason == "end_turn"
    assert "summary" in roles(await small.window())


async def test_the_fragments_of_a_call_that_overflowed_in_the_middle_are_given_up(small: World) -> None:
    node = small.node()
    await node.ask("remember the first thing")
    text = "[[error:context]][[error_after:3]][[error_times:1]] hello"
    accepted = await node.send(text, background=True, stream_tokens=True)
    await node.worker.stopped(accepted.run.id)
    assert (await small.run(accepted.run.id)).stop_reason == "end_turn"
    snapshot = await assert_invariants(small.database)
    assert any(isinstance(frame, AbandonedFrame) for _, frame in snapshot.frames[accepted.run.id])
    shown = [frame for _, frame in await node.replay(accepted.run.id)]
    ids = {frame.message_id for frame in shown if isinstance(frame, TextFrame)}
    assert len(ids) == 1
    (told,) = [frame for frame in shown if isinstance(frame, RetryFrame)]
    assert (told.attempt, told.max_attempts, told.retry_in_ms) == (2, 2, 0)
    assert len(told.abandoned_ids) == 1
    assert not ids & set(told.abandoned_ids), "who listened is told which words are void"


async def test_an_overflow_of_which_nothing_was_shown_is_no_retry(small: World) -> None:
    node = small.node()
    await node.ask("remember the first thing")
    frames = await node.told(await node.send("[[error:context]][[error_times:1]] hello", stream_tokens=True))
    assert stop_of(frames) == "end_turn"
    assert RetryFrame not in kinds(frames)


async def test_a_context_that_stays_too_long_fails_the_run_after_three_tries(small: World) -> None:
    node = small.node()
    for _ in range(4):
        await node.ask("remember this")
    run = await node.ask("[[error:context]] hello")
    assert run.status == "failed"
    snapshot = await assert_invariants(small.database)
    assert snapshot.states[run.id].compactions <= 3
    assert [step.status for step in snapshot.steps.values()][-1] == "failed"


async def test_an_overflow_is_told_with_the_tokens_of_the_request_that_did_not_fit(small: World) -> None:
    """Of the two requests of the run the first was small; what it was counted as is not what overflowed."""
    node = small.node()
    await node.ask(f"[[say:fine]] {LONG}")
    text = "call the note tool [[usage:60,5]] [[error:context@2]][[error_times:1]]"
    accepted = await node.send(text, include_compaction_messages=True)
    frames = await node.told(accepted)
    (began,) = [frame for frame in frames if isinstance(frame, CompactionFrame)]
    assert began.trigger == "context_window_exceeded"
    assert began.context_token_estimate is not None and began.context_token_estimate > 400
    (summary,) = [row for row in await small.window() if row.role == "summary"]
    (part,) = summary.parts
    assert isinstance(part, Summary) and part.stats is not None
    assert part.stats.context_tokens_before == began.context_token_estimate


async def test_a_cancel_during_compaction_discards_it_whole(small: World) -> None:
    node = small.node()
    accepted = await node.send("call the slow tool [[usage:1900,10]]")
    await small.tools.waiting.wait()
    before = await small.window()
    await small.database.write(lambda tx: runs.ask_cancel(tx, accepted.run.id, 5))
    small.tools.let_go.set()
    await node.worker.stopped(accepted.run.id)
    assert (await small.run(accepted.run.id)).status == "cancelled"
    assert roles(await small.window()) == [*roles(before), "tool"]


async def _tools(world: World) -> list[tools.Tool]:
    return await world.database.read(lambda tx: tools.of_agent(tx, world.agent_id))
