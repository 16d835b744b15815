"""The journal's language: what is written today must be readable for ever."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from holdfast.core.events import AnyEvent, Event, JudgedCall, ModelReplied, RunStarted
from holdfast.core.messages import ToolCall
from holdfast.core.tool_rules import Conditional, RunFirst
from holdfast.core.usage import Usage

from .machine import EVENTS, judged, replied, spec

_decoder = msgspec.json.Decoder(AnyEvent)
TAGS = {
    "run_started",
    "model_replied",
    "model_failed",
    "tools_started",
    "tool_returned",
    "parked",
    "resumed",
    "compacted",
    "compaction_failed",
    "cancel_asked",
    "run_failed",
}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_a_round_trip_through_json(event: AnyEvent) -> None:
    assert _decoder.decode(msgspec.json.encode(event)) == event


def test_a_rich_event_survives_a_round_trip_too() -> None:
    first = RunFirst(tool_name="note", args={"deep": [1, None, {"x": "ü"}]})
    rules = (first, Conditional(tool_name="a", child_output_mapping={"1": "b"}))
    started = RunStarted(spec(*rules), ("message-1",), (judged("guarded", "denied", note="no"),), "step-1", 4)
    assert _decoder.decode(msgspec.json.encode(started)) == started
    said = ModelReplied("message-2", (judged("note"),), "tool_calls", Usage(1, 2, 3, 4, 5, True), spoke=False)
    assert _decoder.decode(msgspec.json.encode(said)) == said


def test_the_names_in_the_journal_do_not_change() -> None:
    written = {msgspec.json.decode(msgspec.json.encode(event))["event"] for event in EVENTS}
    assert written == TAGS
    assert len(get_args(AnyEvent)) == len(TAGS)


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        _decoder.decode(b'{"event":"exploded"}')


def test_fields_that_a_later_release_adds_do_not_stop_an_older_one() -> None:
    text = msgspec.json.encode({**msgspec.to_builtins(replied()), "added_later": 1})
    assert _decoder.decode(text) == replied()


def test_defaults_are_left_out_so_that_the_journal_stays_small() -> None:
    short = msgspec.json.encode(JudgedCall(ToolCall("c", "note", "{}"), "allowed"))
    assert b"note" in short
    assert b'"note":null' not in short
    assert issubclass(RunStarted, Event)
