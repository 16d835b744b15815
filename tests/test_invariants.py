"""The checker of invariants finds what is broken. A checker that cannot fail would prove nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.core.frames import StopFrame, TextFrame
from holdfast.core.messages import Message, Text
from holdfast.engine.worker import WorkerSettings

from .invariants import Snapshot, assert_invariants, violations
from .scenario import sqlite_at, world_at


@pytest.fixture
async def snapshot(tmp_path: Path) -> AsyncIterator[Snapshot]:
    """A thread with a run that ended, one that failed, and one that waits for a decision."""
    async with world_at(sqlite_at(tmp_path)) as world:
        node = world.node()
        await node.ask("call the note tool", background=True, stream_tokens=True)
        await node.ask("[[error:server]] hello", background=True)
        await node.ask("call the guarded tool", background=True)
        yield await assert_invariants(world.database, idle=True)


def run_named(snapshot: Snapshot, stop_reason: str) -> str:
    return next(run.id for run in snapshot.runs.values() if run.stop_reason == stop_reason)


def change_run(snapshot: Snapshot, stopped_by: str, /, **changes: object) -> None:
    run_id = run_named(snapshot, stopped_by)
    snapshot.runs[run_id] = msgspec.structs.replace(snapshot.runs[run_id], **changes)


def ended_otherwise(snapshot: Snapshot) -> None:
    change_run(snapshot, "end_turn", stop_reason="max_steps")


def left_a_message_out_of_the_window(snapshot: Snapshot) -> None:
    (view,) = snapshot.threads.values()
    del view.places[view.window.pop(2).id]


def stored_a_message_in_no_thread(snapshot: Snapshot) -> None:
    snapshot.messages["message-stray"] = Message(id="message-stray", role="user", parts=(Text("?"),), created_us=0)


def left_a_step_pending(snapshot: Snapshot) -> None:
    step_id, step = next(iter(snapshot.steps.items()))
    snapshot.steps[step_id] = msgspec.structs.replace(step, status="pending")


def lost_a_return(snapshot: Snapshot) -> None:
    (view,) = snapshot.threads.values()
    view.window = [msgspec.structs.replace(row, parts=()) if row.role == "tool" else row for row in view.window]


def forgot_the_hold(snapshot: Snapshot) -> None:
    snapshot.holds.clear()


def completed_in_spite_of_a_cancel(snapshot: Snapshot) -> None:
    change_run(snapshot, "end_turn", cancel_asked_us=1)


def cancelled_without_being_asked(snapshot: Snapshot) -> None:
    change_run(snapshot, "end_turn", status="cancelled", stop_reason="cancelled")


def ended_the_stream_twice(snapshot: Snapshot) -> None:
    frames = snapshot.frames[run_named(snapshot, "end_turn")]
    frames.append((len(frames) + 1, StopFrame("end_turn")))


def streamed_something_else(snapshot: Snapshot) -> None:
    frames = snapshot.frames[run_named(snapshot, "end_turn")]
    index = next(i for i, (_, frame) in enumerate(frames) if isinstance(frame, TextFrame))
    number, frame = frames[index]
    frames[index] = (number, msgspec.structs.replace(frame, text="something else"))


def left_a_hole_in_the_stream(snapshot: Snapshot) -> None:
    del snapshot.frames[run_named(snapshot, "end_turn")][1]


def lost_the_input(snapshot: Snapshot) -> None:
    (view,) = snapshot.threads.values()
    del snapshot.messages[next(row.id for row in view.window if row.role == "user")]


def ran_two_at_once(snapshot: Snapshot) -> None:
    for stop_reason in ("end_turn", "llm_api_error"):
        change_run(snapshot, stop_reason, status="running", stop_reason=None, completed_us=None)


def left_a_run_behind(snapshot: Snapshot) -> None:
    change_run(snapshot, "end_turn", status="running", stop_reason=None, completed_us=None)


def failed_without_a_word(snapshot: Snapshot) -> None:
    change_run(snapshot, "llm_api_error", metadata={})


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (ended_otherwise, "I1"),
        (left_a_message_out_of_the_window, "I2"),
        (stored_a_message_in_no_thread, "I2"),
        (left_a_step_pending, "I2"),
        (lost_a_return, "I3"),
        (forgot_the_hold, "I4"),
        (completed_in_spite_of_a_cancel, "I5"),
        (cancelled_without_being_asked, "I5"),
        (ended_the_stream_twice, "I6"),
        (streamed_something_else, "I6"),
        (left_a_hole_in_the_stream, "I6"),
        (lost_the_input, "I7"),
        (ran_two_at_once, "I8"),
        (left_a_run_behind, "I9"),
        (failed_without_a_word, "I10"),
    ],
)
def test_a_broken_promise_is_noticed(snapshot: Snapshot, spoil: Callable[[Snapshot], None], broken: str) -> None:
    assert violations(snapshot, idle=True) == []
    spoil(snapshot)
    assert broken in {found.partition(":")[0] for found in violations(snapshot, idle=True)}


async def test_a_run_that_nobody_has_claimed_yet_breaks_no_promise(tmp_path: Path) -> None:
    async with world_at(sqlite_at(tmp_path)) as world:
        await world.node(WorkerSettings(takes_waiting=False)).send("hello", background=True)
        await assert_invariants(world.database)


def test_a_journal_that_cannot_be_folded_is_noticed_unless_the_test_spoilt_it(snapshot: Snapshot) -> None:
    run_id = run_named(snapshot, "end_turn")
    snapshot.unreadable[run_id] = "CancelAsked cannot happen"
    del snapshot.journals[run_id]
    del snapshot.states[run_id]
    assert any(found.startswith("journal:") for found in violations(snapshot))
    assert not any(found.startswith("journal:") for found in violations(snapshot, unreadable=[run_id]))
