"""Builders of stored rows, and the checker of what history may give a vendor."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.messages import (
    AnyPart,
    Approve,
    Image,
    Message,
    Role,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)

MODEL = "holdfast/offline"
WINDOW = 128_000


def row(role: Role, *parts: AnyPart | str, id: str = "m", step: str | None = None, at: int = 0, **more: str) -> Message:
    made = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return Message(id=id, role=role, parts=made, created_us=at, step_id=step, **more)


def call(id: str, name: str = "tool", arguments: str = "{}") -> ToolCall:
    return ToolCall(id, name, arguments)


def returned(call_id: str, text: str = "fine", name: str = "tool") -> ToolReturn:
    return ToolReturn(call_id, name, "success", text)


def approved(*call_ids: str) -> Message:
    return row("approval", *(Approve(call_id) for call_id in call_ids))


def assert_well_formed(turns: Sequence[Turn]) -> None:
    called: set[str] = set()
    for before, turn in zip((None, *turns), turns, strict=False):
        assert turn.parts, "a turn says something"
        open_calls = [part.id for part in before.parts if isinstance(part, ToolCall)] if before else []
        if before is None:
            assert turn.role == "user", "the first turn is the user's"
        if open_calls:
            assert turn.role == "tool", "calls are answered at once"
        match turn.role:
            case "user":
                assert before is None or before.role != "user", "user turns are merged"
                assert all(isinstance(part, (Text, Image)) for part in turn.parts)
            case "assistant":
                assert before is not None and before.role != "assistant", "assistant turns are merged"
                _assert_calls_come_last(turn)
                ids = [part.id for part in turn.parts if isinstance(part, ToolCall)]
                assert called.isdisjoint(ids) and len(set(ids)) == len(ids), "call ids are unique"
                called.update(ids)
            case "tool":
                assert before is not None and before.role == "assistant"
                assert [part.call_id for part in turn.parts if isinstance(part, ToolReturn)] == open_calls
                assert len(turn.parts) == len(open_calls)
        assert all(part.text for part in turn.parts if isinstance(part, Text)), "no text is empty"
    if turns:
        assert not any(isinstance(part, ToolCall) for part in turns[-1].parts), "no call is left open"


def _assert_calls_come_last(turn: Turn) -> None:
    kinds = [isinstance(part, ToolCall) for part in turn.parts]
    assert kinds == sorted(kinds)
