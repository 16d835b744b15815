"""Whatever happens to a run, in whatever order: what is written of it fits together. No database, no clock."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import transitions
from holdfast.core.deltas import NOTHING_SAID, Reply
from holdfast.core.events import AnyEvent
from holdfast.core.failures import Failure
from holdfast.core.frames import AbandonedFrame, MessageFrame, RetryFrame
from holdfast.core.hold import NO_TOOLS
from holdfast.core.messages import Approve, Message, Text, ToolCall, ToolReturn, text_of
from holdfast.core.model_history import history
from holdfast.core.run import (
    NEW,
    CallModel,
    CallTools,
    Compact,
    Done,
    OpenCall,
    Park,
    Phase,
    RunState,
    Settle,
    Wait,
    apply,
    plan,
    replay,
)
from holdfast.core.spec import HeartbeatLoop, RunSpec, Speaking
from holdfast.core.tool_rules import RequiredBeforeExit
from holdfast.core.transitions import Attempt, Change, Replied, RunView, StepChange, Undone
from holdfast.core.usage import Usage

from .machine import FAILURE, WINDOW, judged, spec, started
from .test_context import assert_well_formed

BROKEN = Failure("RuntimeError", "error", FAILURE | {"detail": "RuntimeError: it broke"})
OVERFLOW = msgspec.structs.replace(BROKEN, kind="ContextTooLong", overflow=True)
ATTEMPT = Attempt("message-reply", "message-held")
SYSTEM = Message(id="message-system", role="system", parts=(Text("Be brief."),), created_us=0)
ASKED = Message(id="message-in", role="user", parts=(Text("hello"),), created_us=0, run_id="run-1")
HEARTBEAT = '{"thinking": "more", "request_heartbeat": true}'
NAMES = ("note", "lookup", "remember", "guarded", "camera", "finish", "no_such_tool")


class Driven:
    """A run that is driven by hand, and the record that its changes make: what a database would hold."""

    def __init__(self, given: RunSpec | None = None) -> None:
        self.events: list[AnyEvent] = [started(given)]
        self.state: RunState = apply(NEW, self.events[0])
        self.window: list[Message] = [SYSTEM, ASKED]
        self.stored: dict[str, Message] = {row.id: row for row in self.window}
        self.shown: list[tuple[str, int | None]] = []
        self.step_number: int | None = None
        self.now_us = 0

    @property
    def view(self) -> RunView:
        self.now_us += 1
        return RunView("run-1", 1, self.state, tuple(self.window), self.step_number, self.now_us)

    def take(self, change: Change) -> Change:
        for row in change.rows:
            assert row.id not in self.stored, "a new row has a new id"
            self.stored[row.id] = row
        for row in change.changed:
            assert row.id in self.stored, "only a row that is there can change"
            assert msgspec.structs.replace(self.stored[row.id], parts=()) == msgspec.structs.replace(row, parts=())
            self.stored[row.id] = row
        evicted = change.cut.evicted_ids if change.cut else ()
        self.events.extend(change.events)
        self.state, self.window = change.state, change.window
        self.shown += [(frame.message.id, frame.index) for frame in change.frames if isinstance(frame, MessageFrame)]
        assert all(row == self.stored[row.id] for row in self.window), "the window holds rows as they are stored"
        assert not {row.id for row in self.window}.intersection(evicted)
        assert replay(self.events) == self.state, "the journal alone gives the state"
        return change

    def reply(self, *calls: str, text: str = "words", arguments: str = "{}", usage: Usage | None = None) -> Change:
        intent = plan(self.state)
        assert isinstance(intent, CallModel)
        self.step_number = intent.number
        made = tuple(ToolCall(f"call-{intent.number}-{place}", name, arguments) for place, name in enumerate(calls))
        reply = Reply((Text(text), *made), "tool_calls" if calls else "stop", usage or Usage(5, 1))
        attempt = Attempt(f"message-reply-{intent.number}", f"message-held-{intent.number}")
        return self.take(transitions.replied(self.view, intent, attempt, reply, reply.usage or Usage()))

    def run_tools(self, calls: Sequence[OpenCall]) -> None:
        self.take(transitions.tools_started(self.view, calls))
        for call in calls:
            self.take(transitions.returned(self.view, [success(call)]))

    def settle(self) -> Change:
        intent = plan(self.state)
        assert isinstance(intent, Settle)
        return self.take(transitions.settled(self.view, intent.calls))

    @property
    def roles(self) -> list[str]:
        return [row.role for row in self.window]


def success(call: OpenCall | ToolCall) -> ToolReturn:
    made = call.call if isinstance(call, OpenCall) else call
    return ToolReturn(made.id, made.name, "success", "out")


def summary_of(run: Driven) -> Message:
    return Message(id=f"message-summary-{run.now_us}", role="summary", parts=(Text("before"),), created_us=0)


@given(st.data())
def test_whatever_happens_the_record_fits_together(data: st.DataObject) -> None:
    given_spec = spec(
        *((RequiredBeforeExit(tool_name="note"),) if data.draw(st.booleans(), "requires a tool") else ()),
        max_steps=data.draw(st.integers(1, 4), "max_steps"),
        stream_tokens=data.draw(st.booleans(), "tokens"),
        include_compaction=data.draw(st.booleans(), "shows compaction"),
        heartbeats=data.draw(st.sampled_from([None, HeartbeatLoop(thinking=True, speaking=Speaking("note"))]), "loop"),
        retries=1,
    )
    run = Driven(given_spec)
    for _ in range(40):
        intent = plan(run.state)
        if isinstance(intent, (Done, Wait)):
            break
        if not data.draw(st.integers(0, 12), "cancel?"):
            run.take(transitions.cancelled(run.view, Undone(), None, None, 0))
        elif not data.draw(st.integers(0, 20), "failure?"):
            run.take(transitions.failed(run.view, BROKEN, Undone()))
        else:
            perform(run, intent, data)
    ended = plan(run.state)
    assert isinstance(ended, (Done, Wait))
    if isinstance(ended, Wait):
        run.take(transitions.cancelled(run.view, Undone(), None, None, 0))
        run.settle()
    calls = [call.id for row in run.stored.values() for call in row.calls]
    answers = [answer.call_id for row in run.stored.values() for answer in row.returns]
    assert sorted(answers) == sorted(calls), "every call has exactly one return"
    assert_well_formed(history(run.window, model_handle="holdfast/offline", context_window=WINDOW))
    assert len(set(run.shown)) == len(run.shown), "no part of a row is shown twice"


def perform(run: Driven, intent: object, data: st.DataObject) -> None:
    match intent:
        case CallModel(number=number):
            run.step_number = number
            if not data.draw(st.integers(0, 5), "the model fails?"):
                failure = data.draw(st.sampled_from([BROKEN, OVERFLOW]), "how")
                retries = run.state.failures < run.view.spec.retries and not failure.overflow
                pause = data.draw(st.sampled_from([None, 5]), "again in") if retries else None
                run.take(transitions.model_failed(run.view, failure, NOTHING_SAID, pause, ()))
            else:
                names = data.draw(st.lists(st.sampled_from(NAMES), max_size=3), "calls")
                arguments = data.draw(st.sampled_from(["{}", HEARTBEAT, '{"message": "hi"}', "{"]), "arguments")
                used = Usage(data.draw(st.sampled_from([5, WINDOW]), "tokens used"), 1)
                run.reply(*names, arguments=arguments, usage=used)
        case CallTools(calls):
            inline = [call for call in calls if call.call.name == "remember"]
            if inline:
                run.take(transitions.inline_tool_returned(run.view, inline[0], success(inline[0])))
            else:
                run.run_tools(calls)
        case Settle():
            run.settle()
        case Compact() if data.draw(st.booleans(), "the summary fails"):
            run.take(transitions.compaction_failed(run.view, BROKEN))
        case Compact():
            evicted = run.window[1 : data.draw(st.integers(1, len(run.window)), "evicted up to")]
            run.take(transitions.compacted(run.view, summary_of(run), evicted, 10))
        case Park():
            change = run.take(transitions.parked(run.view, NO_TOOLS))
            assert change.hold is not None
        case _:
            raise AssertionError(f"{intent} is not expected")


def test_a_reply_is_event_row_step_and_frame_together() -> None:
    change = Driven().reply()
    assert [type(event).__name__ for event in change.events] == ["ModelReplied"]
    assert [row.role for row in change.rows] == ["assistant"]
    assert change.step == StepChange(status="success", usage=Usage(5, 1))
    assert isinstance(change.frames[0], MessageFrame)
    assert change.shows_content


def test_a_reply_that_was_shown_token_by_token_is_not_shown_again() -> None:
    change = Driven(spec(stream_tokens=True)).reply()
    assert not change.frames
    assert not change.shows_content


def test_a_model_is_told_which_required_tools_it_has_not_called() -> None:
    change = Driven(spec(RequiredBeforeExit(tool_name="note"))).reply()
    assert [row.role for row in change.rows] == ["assistant", "user"]
    assert "note" in text_of(change.rows[1].parts)


def test_returns_of_one_step_share_a_row_that_is_shown_when_the_last_is_there() -> None:
    run = Driven()
    run.reply("note", "lookup")
    intent = plan(run.state)
    assert isinstance(intent, CallTools)
    run.take(transitions.tools_started(run.view, intent.calls))
    second, first = intent.calls[1], intent.calls[0]
    early = run.take(transitions.returned(run.view, [success(second)]))
    assert not early.frames
    late = run.take(transitions.returned(run.view, [success(first)]))
    assert not late.rows
    (row,) = late.changed
    assert [answer.call_id for answer in row.returns] == [first.call.id, second.call.id], "in the order of the calls"
    assert [frame.message for frame in late.frames if isinstance(frame, MessageFrame)] == [row]


def test_the_return_after_an_approval_has_the_place_that_was_reserved_for_it() -> None:
    event = started(None, judged("guarded"), return_position=7)
    answer = Message(id="message-answer", role="approval", parts=(Approve("c-guarded"),), created_us=0, run_id="run-1")
    late = Message(id="message-late", role="user", parts=(Text("and?"),), created_us=0, run_id="run-1")
    view = RunView("run-1", 1, apply(NEW, event), [SYSTEM, answer, late], None, 1)
    intent = plan(view.state)
    assert isinstance(intent, CallTools)
    begun = transitions.tools_started(view, intent.calls)
    view = msgspec.structs.replace(view, state=begun.state, window=begun.window)
    change = transitions.returned(view, [success(intent.calls[0])])
    (row,) = change.rows
    assert change.positions == {row.id: 7}
    assert [known.id for known in change.window] == ["message-system", "message-answer", row.id, "message-late"]
    assert row.returns[0].was_asked


def test_a_failed_try_voids_what_was_shown_of_it_and_says_what_follows() -> None:
    run = Driven(spec(retries=2))
    run.step_number = 1
    change = run.take(transitions.model_failed(run.view, BROKEN, NOTHING_SAID, 50, ("message-reply",)))
    abandoned, retry = change.frames
    assert abandoned == AbandonedFrame("message-reply")
    assert isinstance(retry, RetryFrame)
    assert (retry.attempt, retry.max_attempts, retry.retry_in_ms) == (2, 3, 50)
    assert retry.abandoned_ids == ("message-reply",)
    assert change.step == StepChange(usage=Usage())


def test_a_failed_try_that_is_the_last_fails_the_step() -> None:
    run = Driven()
    run.step_number = 1
    change = run.take(transitions.model_failed(run.view, BROKEN, NOTHING_SAID, None, ()))
    assert change.step == StepChange("failed", "error", Usage(), BROKEN)
    assert change.state.phase is Phase.DONE


def test_a_failure_keeps_what_tools_returned_and_leaves_out_what_makes_no_sense() -> None:
    run = Driven()
    run.reply("note")
    intent = plan(run.state)
    assert isinstance(intent, CallTools)
    run.take(transitions.tools_started(run.view, intent.calls))
    odd = ToolReturn("call-unknown", "note", "success", "?")
    change = run.take(transitions.failed(run.view, BROKEN, Undone(returns=[success(intent.calls[0]), odd])))
    assert [answer.call_id for row in change.rows for answer in row.returns] == [intent.calls[0].call.id]
    assert change.step == StepChange("failed", "error", None, BROKEN)


def test_a_cancel_keeps_the_words_that_a_token_stream_has_shown() -> None:
    run = Driven(spec(stream_tokens=True))
    run.step_number = 1
    partial = Reply((Text("half a"), ToolCall("call-1", "note", "{")), None, None)
    change = run.take(transitions.cancelled(run.view, Undone(), partial, ATTEMPT, prompt_tokens=11))
    assert change.keeps_partial_reply
    assert [(row.id, text_of(row.parts), row.calls) for row in change.rows] == [("message-reply", "half a", ())]
    assert change.step == StepChange("cancelled", "cancelled", Usage(11, 3, estimated=True))


def test_a_cancel_keeps_no_words_that_nobody_has_seen() -> None:
    run = Driven()
    run.step_number = 1
    partial = Reply((Text("half a"),), None, Usage(3, 2))
    change = run.take(transitions.cancelled(run.view, Undone(), partial, ATTEMPT, prompt_tokens=11))
    assert not change.rows
    assert not change.keeps_partial_reply
    assert change.step == StepChange("cancelled", "cancelled", Usage(3, 2)), "they are paid for all the same"


def test_a_cancel_that_overtook_a_reply_keeps_its_words_under_its_own_id() -> None:
    run = Driven(spec(stream_tokens=True))
    run.step_number = 1
    intent = plan(run.state)
    assert isinstance(intent, CallModel)
    overtaken = Replied(ATTEMPT, Reply((Text("all of it"),), "stop", Usage(3, 2)), intent)
    change = run.take(transitions.cancelled(run.view, Undone(reply=overtaken), None, None, 0))
    assert [row.id for row in change.rows] == ["message-reply"]


def test_a_cancel_between_two_steps_does_not_touch_the_step_that_has_ended() -> None:
    run = Driven()
    run.reply("note")
    run.run_tools(list(run.state.open_calls))
    change = run.take(transitions.cancelled(run.view, Undone(), None, None, 0))
    assert change.step is None


def test_a_cancelled_hold_is_denied_and_its_calls_are_answered_the_asked_ones_first() -> None:
    run = Driven()
    run.reply("note", "guarded")
    run.take(transitions.parked(run.view, NO_TOOLS))
    run.take(transitions.cancelled(run.view, Undone(), None, None, 0))
    change = run.settle()
    denial, answers = change.rows
    assert denial.role == "approval"
    assert [answer.name for answer in answers.returns] == ["guarded", "note"]


def test_a_compaction_that_failed_before_a_call_that_did_not_fit_fails_the_step() -> None:
    run = Driven()
    run.step_number = 1
    run.take(transitions.model_failed(run.view, OVERFLOW, NOTHING_SAID, None, ()))
    assert isinstance(plan(run.state), Compact)
    change = run.take(transitions.compaction_failed(run.view, BROKEN))
    assert change.step == StepChange("failed", "error", None, BROKEN)


def test_a_call_that_asks_for_a_heartbeat_is_followed_by_one() -> None:
    run = Driven(spec(heartbeats=HeartbeatLoop(thinking=True)))
    run.reply("lookup", text="", arguments=HEARTBEAT)
    run.run_tools(list(run.state.open_calls))
    assert run.roles == ["system", "user", "assistant", "tool", "user"]
    assert "heartbeat" in text_of(run.window[-1].parts)
    assert run.window[-1].run_id == "run-1"


def test_a_failed_step_shows_what_failed() -> None:
    assert BROKEN.data() == {"message": "It broke.", "traceback": None, "details": BROKEN.error}


def test_a_summary_stands_after_the_system_message_and_is_shown_to_those_who_asked() -> None:
    run = Driven(spec(include_compaction=True))
    run.step_number = 1
    run.take(transitions.model_failed(run.view, OVERFLOW, NOTHING_SAID, None, ()))
    change = run.take(transitions.compacted(run.view, summary_of(run), [ASKED], 10))
    assert run.roles == ["system", "summary"]
    assert change.cut is not None
    assert change.cut.evicted_ids == (ASKED.id,)
    assert change.shows_content
