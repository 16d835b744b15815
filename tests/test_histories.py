"""The checker of histories finds what is broken. A checker that cannot fail would prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core.hold import HeldCall, Hold
from holdfast.core.messages import Approve, Deny, Message, Text, ToolCall, ToolReturn
from holdfast.core.records import Run
from holdfast.store.holds import HoldRow

from .histories import REPLAY, Answered, Attached, Cancelled, Effect, Listed, Looked, Record, Sent, Shown, violations
from .invariants import Snapshot

THREAD = "agent-1"
SPOKEN, ASKING, DECIDED, STOPPED = "run-spoken", "run-asking", "run-decided", "run-stopped"


class Case:
    """One agent: a background run with two readers, one of them cut off; a call that was approved; a cancel."""

    def __init__(self) -> None:
        self.clocks_agree = True
        self.stored = database()
        self.history = history()

    def check(self) -> list[str]:
        return violations(self.history, self.stored, clocks_agree=self.clocks_agree)

    def add(self, *records: Record) -> None:
        self.history += records

    def drop(self, unwanted: Callable[[Record], bool]) -> None:
        self.history = [record for record in self.history if not unwanted(record)]

    def change_run(self, run_id: str, **changes: object) -> None:
        self.stored.runs[run_id] = msgspec.structs.replace(self.stored.runs[run_id], **changes)

    def change_message(self, message_id: str, **changes: object) -> None:
        self.stored.messages[message_id] = msgspec.structs.replace(self.stored.messages[message_id], **changes)


def database() -> Snapshot:
    return Snapshot(
        runs={
            SPOKEN: run(SPOKEN, 10, 20, background=True),
            ASKING: run(ASKING, 30, 40, "requires_approval"),
            DECIDED: run(DECIDED, 50, 60),
            STOPPED: run(STOPPED, 70, 80, "cancelled", background=True),
        },
        messages={
            row.id: row
            for row in (
                message("message-1", "user", SPOKEN, Text("Hello"), otid="otid-1"),
                message("message-2", "assistant", SPOKEN, Text("Good day.")),
                message("message-3", "user", ASKING, Text("Do it"), otid="otid-2"),
                message("message-4", "approval", ASKING, ToolCall("call-1", "ask", "{}")),
                message("message-5", "approval", DECIDED, Approve("call-1"), otid="otid-3"),
                message("message-6", "tool", DECIDED, ToolReturn("call-1", "ask", "success", "done")),
                message("message-7", "user", STOPPED, Text("Go on"), otid="otid-4"),
            )
        },
        threads={},
        journals={},
        states={},
        unreadable={},
        holds={
            ASKING: HoldRow(
                run_id=ASKING,
                thread_id=THREAD,
                agent_id=THREAD,
                request_id="message-4",
                hold=Hold("message-4", "step-1", (HeldCall(ToolCall("call-1", "ask", "{}"), asks=True),)),
                asked_us=40,
                decided_us=50,
                decided_by_run=DECIDED,
            )
        },
        frames={},
        steps={},
    )


def history() -> list[Record]:
    return [
        Sent(at_s=1.0, otid="otid-1", thread_id=THREAD, text="Hello"),
        Sent(at_s=1.1, otid="otid-1", thread_id=THREAD, text="Hello"),
        Answered(at_s=1.2, otid="otid-1", status=200, run_id=SPOKEN),
        Attached(at_s=1.1, reader="first"),
        shown(1.3, "first", 1, text("message-void", "Go")),
        shown(1.4, "first", 2, text("message-void", "od")),
        Attached(at_s=1.5, reader="first", after=2),
        Looked(asked_s=1.5, at_s=1.55, run_id=SPOKEN, status="running"),
        shown(1.6, "first", 2**20 + 2, void("message-void")),
        shown(1.7, "first", 2**20 + 3, text("message-2", "Good ")),
        Attached(at_s=1.7, reader="second", after=2**20 + 3),
        *(shown(1.8, reader, 2**20 + 4, text("message-2", "day.")) for reader in ("first", "second")),
        *(shown(1.9, reader, 2**20 + 5, stop("end_turn")) for reader in ("first", "second")),
        Attached(at_s=3.0, reader=f"{REPLAY}{SPOKEN}"),
        shown(3.1, f"{REPLAY}{SPOKEN}", 2**20 + 2, void("message-void")),
        shown(3.1, f"{REPLAY}{SPOKEN}", 2**20 + 3, text("message-2", "Good ")),
        shown(3.1, f"{REPLAY}{SPOKEN}", 2**20 + 4, text("message-2", "day.")),
        shown(3.1, f"{REPLAY}{SPOKEN}", 2**20 + 5, stop("end_turn")),
        Looked(asked_s=3.2, at_s=3.3, run_id=SPOKEN, status="completed", stop_reason="end_turn"),
        Sent(at_s=4.0, otid="otid-2", thread_id=THREAD, text="Do it"),
        Answered(at_s=4.1, otid="otid-2", status=200, run_id=ASKING, stop_reason="requires_approval"),
        Sent(at_s=5.0, otid="otid-3", thread_id=THREAD, decides=("call-1",)),
        Sent(at_s=5.0, otid="otid-rival", thread_id=THREAD, decides=("call-1",)),
        Effect(at_s=5.1, call_id="call-1", key="key-1"),
        Answered(at_s=5.2, otid="otid-3", status=200, run_id=DECIDED, stop_reason="end_turn"),
        Answered(at_s=5.2, otid="otid-rival", status=409),
        Sent(at_s=6.0, otid="otid-4", thread_id=THREAD, text="Go on"),
        Answered(at_s=6.1, otid="otid-4", status=200, run_id=STOPPED),
        Listed(asked_s=6.2, at_s=6.3, thread_id=THREAD, run_ids=(STOPPED,)),
        Cancelled(at_s=6.4, run_id=STOPPED, result="cancelled"),
        Looked(asked_s=6.5, at_s=6.6, run_id=STOPPED, status="cancelled", stop_reason="cancelled"),
    ]


def run(run_id: str, created: int, completed: int, stop_reason: str = "end_turn", *, background: bool = False) -> Run:
    return Run(
        id=run_id,
        agent_id=THREAD,
        thread_id=THREAD,
        status="cancelled" if stop_reason == "cancelled" else "completed",
        stop_reason=stop_reason,  # pyright: ignore[reportArgumentType]
        background=background,
        created_us=created,
        completed_us=completed,
    )


def message(message_id: str, role: Any, run_id: str, *parts: Any, otid: str | None = None) -> Message:
    return Message(id=message_id, role=role, parts=parts, created_us=0, run_id=run_id, otid=otid)


def shown(at_s: float, reader: str, seq: int | None, event: dict[str, Any], run_id: str = SPOKEN) -> Shown:
    return Shown(at_s=at_s, reader=reader, run_id=run_id, seq=seq, event=event)


def text(message_id: str, content: str) -> dict[str, Any]:
    return {"message_type": "assistant_message", "id": message_id, "content": content}


def void(*message_ids: str) -> dict[str, Any]:
    data = {"abandoned_message_ids": list(message_ids)}
    return {"message_type": "event_message", "event_type": "retry", "event_data": data}


def stop(stop_reason: str) -> dict[str, Any]:
    return {"message_type": "stop_reason", "stop_reason": stop_reason}


def is_of(reader: str, seq: int) -> Callable[[Record], bool]:
    return lambda record: isinstance(record, Shown) and (record.reader, record.seq) == (reader, seq)


def test_a_history_in_which_everything_is_kept_breaks_nothing() -> None:
    assert Case().check() == []


# --- each of these breaks one promise ---


def lost_an_accepted_message(case: Case) -> None:
    del case.stored.messages["message-1"]


def stored_a_message_twice(case: Case) -> None:
    case.stored.messages["message-again"] = message("message-again", "user", SPOKEN, Text("Hello"), otid="otid-1")


def stored_what_was_refused(case: Case) -> None:
    case.stored.messages["message-x"] = message("message-x", "user", SPOKEN, Text(""), otid="otid-rival")


def stored_another_text(case: Case) -> None:
    case.change_message("message-1", parts=(Text("Hel"),))


def answered_with_two_runs(case: Case) -> None:
    case.add(Answered(at_s=1.25, otid="otid-1", status=200, run_id=DECIDED))


def stored_it_for_another_run(case: Case) -> None:
    case.change_message("message-7", run_id=DECIDED)


def listed_two_active_runs(case: Case) -> None:
    case.add(Listed(asked_s=1.4, at_s=1.45, thread_id=THREAD, run_ids=(SPOKEN, "run-other")))


def showed_two_runs_active_at_once(case: Case) -> None:
    """Never in one answer: the first was still active after the second had been answered for."""
    case.add(
        Answered(at_s=1.35, otid="otid-4", status=200, run_id=STOPPED),
        Looked(asked_s=1.6, at_s=1.65, run_id=STOPPED, status="running"),
    )


def began_before_the_other_ended(case: Case) -> None:
    case.change_run(DECIDED, created_us=15)


def took_two_decisions(case: Case) -> None:
    case.stored.messages["message-8"] = message("message-8", "approval", DECIDED, Deny("call-1", "no"))


def took_a_decision_that_the_hold_does_not_know(case: Case) -> None:
    case.stored.holds[ASKING] = msgspec.structs.replace(case.stored.holds[ASKING], decided_by_run=STOPPED)


def lost_a_decision(case: Case) -> None:
    del case.stored.messages["message-5"]


def showed_another_event_to_another_reader(case: Case) -> None:
    case.drop(is_of("second", 2**20 + 4))
    case.add(shown(1.8, "second", 2**20 + 4, text("message-2", "night.")))


def left_an_event_out(case: Case) -> None:
    case.drop(is_of("first", 2**20 + 3))


def showed_an_event_twice(case: Case) -> None:
    case.add(shown(1.85, "second", 2**20 + 4, text("message-2", "day.")))


def showed_two_ends(case: Case) -> None:
    case.add(shown(1.95, "second", 2**20 + 6, stop("end_turn")))


def went_on_after_the_end(case: Case) -> None:
    case.add(*(shown(1.95 + n / 100, "second", 2**20 + 6 + n, text("message-2", "?")) for n in range(2)))


def showed_another_end(case: Case) -> None:
    case.change_run(SPOKEN, stop_reason="max_steps")


def showed_what_a_replay_leaves_out(case: Case) -> None:
    case.drop(is_of(f"{REPLAY}{SPOKEN}", 2**20 + 3))


def never_said_that_a_reply_is_void(case: Case) -> None:
    case.drop(lambda record: isinstance(record, Shown) and bool(record.void_ids))


def streamed_another_text_in_the_foreground(case: Case) -> None:
    case.change_message("message-7", role="assistant", parts=(Text("So be it."),))
    case.add(
        shown(6.2, "third", None, text("message-7", "So be"), STOPPED),
        shown(6.4, "third", None, stop("cancelled"), STOPPED),
    )


def repeated_an_effect(case: Case) -> None:
    case.add(Effect(at_s=5.15, call_id="call-1", key="key-1"))


def repeated_an_effect_under_another_call(case: Case) -> None:
    case.stored.messages["message-9"] = message("message-9", "assistant", DECIDED, ToolCall("call-2", "ask", "{}"))
    case.add(Effect(at_s=5.15, call_id="call-2", key="key-1"))


def ran_a_call_that_nobody_stored(case: Case) -> None:
    case.add(Effect(at_s=5.15, call_id="call-x", key="key-x"))


def said_that_a_tool_succeeded_that_did_not_run(case: Case) -> None:
    case.drop(lambda record: isinstance(record, Effect))


def ran_a_denied_call(case: Case) -> None:
    case.change_message("message-5", parts=(Deny("call-1", "no"),))


def left_a_run_active(case: Case) -> None:
    case.change_run(DECIDED, status="running", stop_reason=None, completed_us=None)
    case.drop(lambda record: isinstance(record, Answered) and record.run_id == DECIDED)
    case.add(Answered(at_s=5.2, otid="otid-3", status=200, run_id=DECIDED))


def forgot_a_run(case: Case) -> None:
    del case.stored.runs[STOPPED]


def showed_an_ended_run_as_active(case: Case) -> None:
    case.add(Looked(asked_s=3.4, at_s=3.5, run_id=SPOKEN, status="running"))


def ended_in_two_ways(case: Case) -> None:
    case.add(Looked(asked_s=3.4, at_s=3.5, run_id=SPOKEN, status="failed", stop_reason="error"))


def completed_in_spite_of_a_cancel(case: Case) -> None:
    case.change_run(STOPPED, status="completed", stop_reason="end_turn")


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (lost_an_accepted_message, "H1"),
        (stored_a_message_twice, "H1"),
        (stored_what_was_refused, "H1"),
        (stored_another_text, "H1"),
        (answered_with_two_runs, "H1"),
        (stored_it_for_another_run, "H1"),
        (listed_two_active_runs, "H2"),
        (showed_two_runs_active_at_once, "H2"),
        (began_before_the_other_ended, "H2"),
        (took_two_decisions, "H3"),
        (took_a_decision_that_the_hold_does_not_know, "H3"),
        (lost_a_decision, "H3"),
        (showed_another_event_to_another_reader, "H4"),
        (left_an_event_out, "H4"),
        (showed_an_event_twice, "H4"),
        (showed_two_ends, "H4"),
        (went_on_after_the_end, "H4"),
        (showed_another_end, "H4"),
        (showed_what_a_replay_leaves_out, "H4"),
        (never_said_that_a_reply_is_void, "H4"),
        (streamed_another_text_in_the_foreground, "H4"),
        (repeated_an_effect, "H5"),
        (repeated_an_effect_under_another_call, "H5"),
        (ran_a_call_that_nobody_stored, "H5"),
        (said_that_a_tool_succeeded_that_did_not_run, "H5"),
        (ran_a_denied_call, "H5"),
        (left_a_run_active, "H6"),
        (forgot_a_run, "H6"),
        (showed_an_ended_run_as_active, "H7"),
        (ended_in_two_ways, "H7"),
        (completed_in_spite_of_a_cancel, "H7"),
    ],
)
def test_the_checker_finds_whatever_breaks_a_promise(spoil: Callable[[Case], None], broken: str) -> None:
    case = Case()
    spoil(case)
    assert {found.split(":")[0] for found in case.check()} >= {broken}


def test_clocks_that_differ_do_not_make_runs_overlap() -> None:
    case = Case()
    case.clocks_agree = False
    began_before_the_other_ended(case)
    assert case.check() == []


def test_pings_and_the_news_of_a_cut_are_no_events_of_the_stream() -> None:
    case = Case()
    cut = {"message_type": "error_message", "message": "The run was interrupted and will be carried on. It can be read"}
    case.add(shown(1.85, "second", 2**20 + 4, {"message_type": "ping"}))
    assert case.check() == []
    case.add(shown(1.86, "second", 2**20 + 4, cut))
    assert case.check() != [], "only the one error that says so is"
