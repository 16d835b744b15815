"""What a journal must fold to: what matters of the state, in words that outlive the struct it is kept in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.events import AnyEvent
from holdfast.core.run import RunState, plan, replay

_decoder = msgspec.json.Decoder(AnyEvent)


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    phase: str
    stop_reason: str | None
    iterations: int
    model_calls: int
    calls: list[tuple[str, str]]  # of the last step: tool and status
    called: list[str]  # as the tool rules count
    tokens: int
    compactions: int
    error_type: str | None
    next: str


def decode(lines: Sequence[str]) -> list[AnyEvent]:
    return [_decoder.decode(line) for line in lines]


def expectation_of(lines: Sequence[str]) -> Expectation:
    return told_by(replay(decode(lines)))


def told_by(state: RunState) -> Expectation:
    return Expectation(
        phase=state.phase.value,
        stop_reason=state.stop_reason,
        iterations=state.iterations,
        model_calls=state.model_calls,
        calls=[(call.call.name, call.status) for call in state.calls],
        called=[called.name for called in state.history],
        tokens=state.usage.total_tokens,
        compactions=state.compactions,
        error_type=state.error["error_type"] if state.error else None,
        next=type(plan(state)).__name__,
    )
