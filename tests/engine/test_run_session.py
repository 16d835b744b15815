"""The working set of one run, without a database: what each fact drafts, and what survives starting over."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.deltas import NOTHING_SAID, Reply
from holdfast.core.events import CancelAsked, RunStarted
from holdfast.core.failures import classify
from holdfast.core.frames import MessageFrame
from holdfast.core.messages import Approve, ClientReturn, Message, Text, ToolCall, ToolReturn, text_of
from holdfast.core.records import Agent, ModelChoice, Run, Step, Thread
from holdfast.core.run import NEW, CallModel, CallTools, Compact, Done, Park, Phase, Settle, apply, plan
from holdfast.core.spec import RunSpec
from holdfast.core.tool_rules import RequiredBeforeExit
from holdfast.core.usage import Usage
from holdfast.engine.clock import SystemClock
from holdfast.engine.run_loading import LoadedRun
from holdfast.engine.run_session import Session
from holdfast.engine.streams import RunStream
from holdfast.errors import ContextTooLong, ModelUnavailable

from ..core.machine import judged, spec, started

MODEL = ModelChoice(handle="holdfast/offline", context_window=1_000)
BROKEN = classify(RuntimeError("it broke"), "run-1")
OVERFLOW = classify(ContextTooLong("too long"), "run-1")
SPOKE = Reply((Text("words"),), "stop", Usage(5, 1))


def session_of(event: RunStarted | None = None, *answers: Message, given: RunSpec | None = None) -> Session:
    system = Message(id="message-system", role="system", parts=(Text("Be brief."),), created_us=0)
    asked = Message(id="message-in", role="user", parts=(Text("hello"),), created_us=0, run_id="run-1")
    loaded = LoadedRun(
        run=Run(id="run-1", agent_id="agent-1", thread_id="agent-1", status="running", lease=1),
        agent=Agent(id="agent-1", name="ada", agent_type="letta_v1_agent", system="", model=MODEL),
        thread=Thread(id="agent-1", agent_id="agent-1"),
        state=apply(NEW, event or started(given)),
        window=[system, asked, *answers],
        blocks=[],
        directories="",
        system_digest=None,
        journalled=1,
        next_position=2,
    )
    return Session(loaded, RunStream("run-1"), SystemClock())


def think(session: Session, *calls: str, text: str = "words", usage: Usage | None = None) -> None:
    """The model is called and replies, as the runner would have it."""
    intent = plan(session.state)
    assert isinstance(intent, CallModel)
    step = session.begin_step(intent, "holdfast", None)
    attempt = session.begin_attempt(step)
    parts = (*((Text(text),) if text else ()), *(ToolCall(f"c-{name}", name, "{}") for name in calls))
    session.replied(attempt, Reply(parts, "tool_calls" if calls else "stop", usage or Usage(5, 1)), intent)


def start_tools(session: Session) -> None:
    intent = plan(session.state)
    assert isinstance(intent, CallTools)
    session.tools_started(intent.calls)


def give_back(session: Session, *names: str) -> None:
    session.ran_tools(7)
    session.returned([ToolReturn(f"c-{name}", name, "success", "out") for name in names])


def settle(session: Session) -> None:
    intent = plan(session.state)
    assert isinstance(intent, Settle)
    session.settle(intent.calls)


def roles(rows: Sequence[Message]) -> list[str]:
    return [row.role for row in rows]


def the_step(session: Session) -> Step:
    assert session.step is not None
    return session.step


def test_a_reply_is_drafted_as_event_row_step_and_frame_together() -> None:
    session = session_of()
    think(session)
    assert [type(event).__name__ for event in session.draft.events] == ["ModelReplied"]
    assert roles(session.draft.rows) == ["assistant"]
    assert the_step(session).status == "success"
    assert isinstance(session.draft.frames[0], MessageFrame)
    assert session.window[-1] == session.draft.rows[0]


def test_in_token_mode_the_row_is_not_streamed_again() -> None:
    session = session_of(given=spec(stream_tokens=True))
    think(session)
    assert session.draft.frames == []


def test_a_reply_without_usage_is_estimated_and_says_so() -> None:
    session = session_of()
    intent = plan(session.state)
    assert isinstance(intent, CallModel)
    attempt = session.begin_attempt(session.begin_step(intent, "holdfast", None))
    session.replied(attempt, Reply((Text("x" * 40),), "stop", None), intent)
    assert the_step(session).usage == Usage(completion_tokens=10, estimated=True)


def test_calls_are_part_of_what_a_reply_without_usage_is_estimated_to_cost() -> None:
    session = session_of()
    intent = plan(session.state)
    assert isinstance(intent, CallModel)
    attempt = session.begin_attempt(session.begin_step(intent, "holdfast", None))
    call = ToolCall("call-1", "note", "x" * 36)
    session.replied(attempt, Reply((Text("x" * 40), call), "tool_calls", None), intent)
    assert the_step(session).usage == Usage(completion_tokens=20, estimated=True)


def test_returns_of_one_step_gather_in_one_row_in_the_order_of_the_calls() -> None:
    session = session_of()
    think(session, "note", "lookup")
    start_tools(session)
    session.committed()
    give_back(session, "lookup")
    assert session.draft.frames == [], "half a row is not shown"
    session.committed()
    give_back(session, "note")
    (row,) = session.draft.changed.values()
    assert [part.name for part in row.returns] == ["note", "lookup"]
    assert session.draft.rows == []
    assert isinstance(session.draft.frames[0], MessageFrame)
    assert the_step(session).tool_execution_ns == 14


def test_a_required_tool_that_was_not_called_is_asked_for_by_a_heartbeat() -> None:
    session = session_of(given=spec(RequiredBeforeExit(tool_name="note")))
    think(session)
    assert roles(session.draft.rows) == ["assistant", "user"]
    assert "You must call note at least once" in text_of(session.draft.rows[1].parts)
    assert not any(isinstance(f, MessageFrame) and f.message.role == "user" for f in session.draft.frames)


def test_no_heartbeat_follows_the_last_permitted_step() -> None:
    session = session_of(given=spec(RequiredBeforeExit(tool_name="note"), max_steps=1))
    think(session)
    assert roles(session.draft.rows) == ["assistant"]
    assert plan(session.state) == Done("max_steps")


def test_parking_drafts_the_hold_about_the_request_that_was_written() -> None:
    session = session_of()
    think(session, "note", "guarded")
    assert isinstance(plan(session.state), Park)
    session.park()
    hold = session.draft.hold
    assert hold is not None
    assert hold.request_id == session.window[-1].id
    assert hold.step_id == the_step(session).id
    assert hold.asked_ids == ("c-guarded",)


def test_a_cancel_during_the_model_call_keeps_what_a_token_stream_delivered() -> None:
    for tokens, kept in ((True, ["assistant"]), (False, [])):
        session = session_of(given=spec(stream_tokens=tokens))
        intent = plan(session.state)
        assert isinstance(intent, CallModel)
        step = session.begin_step(intent, "holdfast", None)
        session.committed()
        attempt = session.begin_attempt(step)
        session.cancel(Reply((Text("half"), ToolCall("c1", "note", '{"x')), None, None))
        assert roles(session.draft.rows) == kept
        assert [row.id for row in session.draft.rows] == [attempt.reply_id] * len(kept)
        assert all(not row.calls for row in session.draft.rows)
        assert (the_step(session).status, the_step(session).stop_reason) == ("cancelled", "cancelled")
        assert the_step(session).usage == Usage(completion_tokens=3, estimated=True)
        assert plan(session.state) == Done("cancelled")


def test_a_cancel_that_overtakes_the_checkpoint_of_a_reply_keeps_its_words_and_drops_its_calls() -> None:
    session = session_of(given=spec(stream_tokens=True))
    think(session, "note")
    start_tools(session)
    session.cancel(None)
    assert roles(session.draft.rows) == ["assistant"]
    assert not session.draft.rows[0].calls
    assert session.draft.events == [CancelAsked(usage=Usage(5, 1))]


def test_a_cancel_while_tools_run_keeps_what_has_returned_and_settles_the_rest() -> None:
    session = session_of()
    think(session, "note", "lookup")
    start_tools(session)
    session.committed()
    give_back(session, "note")
    session.cancel(None)
    settle(session)
    assert plan(session.state) == Done("cancelled")
    told = {part.name: part.status for part in session.window[-1].returns}
    assert told == {"note": "success", "lookup": "error"}


def test_a_cancel_between_two_steps_leaves_the_step_that_ended_as_it_was() -> None:
    session = session_of()
    think(session, "note", usage=Usage(20, 3))
    start_tools(session)
    give_back(session, "note")
    session.committed()
    session.cancel(None)
    assert (the_step(session).status, the_step(session).usage) == ("success", Usage(20, 3))
    assert plan(session.state) == Done("cancelled")


def test_a_cancel_during_compaction_leaves_the_step_that_ended_as_it_was() -> None:
    session = session_of()
    think(session, usage=Usage(990, 5))
    session.committed()
    assert isinstance(plan(session.state), Compact)
    session.cancel(None)
    assert the_step(session).status == "success"
    assert plan(session.state) == Done("cancelled")


def test_a_failure_keeps_tools_that_have_returned() -> None:
    session = session_of()
    think(session, "note", "lookup")
    start_tools(session)
    session.committed()
    give_back(session, "note")
    session.failed(BROKEN)
    settle(session)
    assert plan(session.state) == Done("error")
    assert [part.status for part in session.window[-1].returns] == ["success", "error"]
    assert the_step(session).status == "failed"
    assert the_step(session).error_type == "RuntimeError"


def test_a_failure_before_the_next_step_began_does_not_blame_the_step_before() -> None:
    session = session_of()
    think(session, "note")
    start_tools(session)
    give_back(session, "note")
    session.committed()
    session.failed(BROKEN)
    assert the_step(session).status == "success"
    assert plan(session.state) == Done("error")


def test_a_return_that_makes_no_sense_does_not_keep_a_run_from_failing_in_order() -> None:
    session = session_of()
    think(session, "note")
    start_tools(session)
    session.committed()
    session.draft.returns.append(ToolReturn("c-unknown", "unknown", "success", ""))
    session.failed(BROKEN)
    settle(session)
    assert plan(session.state) == Done("error")


def test_an_overflow_that_cannot_be_compacted_fails_the_step_that_overflowed() -> None:
    session = session_of()
    intent = plan(session.state)
    assert isinstance(intent, CallModel)
    session.begin_step(intent, "holdfast", None)
    session.model_failed(OVERFLOW, NOTHING_SAID)
    assert the_step(session).status == "pending"
    session.compaction_failed(classify(ModelUnavailable("gone"), "run-1"))
    assert the_step(session).status == "failed"
    assert plan(session.state) == Done("llm_api_error")


def test_a_failed_compaction_after_a_good_step_leaves_the_step_good() -> None:
    session = session_of()
    think(session, usage=Usage(990, 5))
    session.compaction_failed(classify(ModelUnavailable("gone"), "run-1"))
    assert the_step(session).status == "success"
    assert plan(session.state) == Done("end_turn")


def test_a_summary_takes_the_place_of_what_it_summarises() -> None:
    session = session_of()
    think(session, "note", usage=Usage(990, 5))
    start_tools(session)
    give_back(session, "note")
    session.committed()
    summary = Message(id="message-summary", role="summary", parts=(), created_us=0)
    session.compacted(summary, session.window[1:3], 50)
    assert roles(session.window) == ["system", "summary", "tool"]
    assert session.draft.frames == [], "nobody asked to see it"
    assert session.state.context_tokens == 50


def test_answers_to_a_hold_are_settled_with_the_clients_returns_and_the_reasons_of_denials() -> None:
    answer = Message(
        id="message-answer",
        role="approval",
        parts=(ClientReturn("c-camera", "snap"), Approve("c-guarded")),
        created_us=0,
        run_id="run-1",
    )
    resumed = started(
        None, judged("camera", "answered"), judged("guarded"), judged("finish", "denied", note="too dear")
    )
    session = session_of(resumed, answer)
    settle(session)
    start_tools(session)
    give_back(session, "guarded")
    row = session.window[-1]
    assert row.step_id == "step-paused"
    assert [(part.name, part.status, part.content) for part in row.returns] == [
        ("camera", "success", "snap"),
        ("guarded", "success", "out"),
        ("finish", "error", "Error: request to call tool denied. User reason: too dear"),
    ]


def test_returns_stand_before_the_messages_that_came_with_the_approval() -> None:
    answer = Message(id="message-answer", role="approval", parts=(Approve("c-guarded"),), created_us=0, run_id="run-1")
    follow_up = Message(id="message-more", role="user", parts=(Text("and?"),), created_us=0, run_id="run-1")
    session = session_of(started(None, judged("guarded"), return_position=7))
    session.window = [session.window[0], answer, follow_up]
    start_tools(session)
    give_back(session, "guarded")
    assert roles(session.window) == ["system", "approval", "tool", "user"]
    assert list(session.draft.positions.values()) == [7]


def test_every_attempt_has_ids_of_its_own_and_another_workers_attempt_too() -> None:
    session = session_of()
    intent = plan(session.state)
    assert isinstance(intent, CallModel)
    step = session.begin_step(intent, "holdfast", None)
    first = session.begin_attempt(step)
    session.model_failed(OVERFLOW, NOTHING_SAID)
    second = session.begin_attempt(step)
    other = session_of()
    other.run = Run(id="run-1", agent_id="agent-1", thread_id="agent-1", status="running", lease=2)
    third = other.begin_attempt(step)
    ids = {first.reply_id, first.held_id, second.reply_id, second.held_id, third.reply_id, third.held_id}
    assert len(ids) == 6


def test_a_withdrawn_hold_denies_what_was_asked_first_and_its_siblings_after() -> None:
    session = session_of()
    think(session, "note", "guarded")
    session.park()
    session.committed()
    session.cancel(None)
    settle(session)
    assert session.state.phase is Phase.DONE
    denial, returns = session.window[-2:]
    assert [decision.call_id for decision in denial.decisions] == ["c-guarded"]
    assert [part.name for part in returns.returns] == ["guarded", "note"]
