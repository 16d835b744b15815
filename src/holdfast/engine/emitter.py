"""Turns the deltas of one reply into frames, with the ids that the stored rows will have.

Calls that ask for approval share the row of the text when no other call is made, and have a row of their own when one
is. With parallel calls that is known only when another call begins or the reply ends, so their fragments wait until then.
"""

from __future__ import annotations

from holdfast.core import tool_rules
from holdfast.core.deltas import CallDelta, Delta, OmittedDelta, ReasoningDelta, RedactedDelta, TextDelta
from holdfast.core.frames import CallFrame, Frame, HiddenReasoningFrame, ReasoningFrame, TextFrame
from holdfast.core.spec import RunSpec
from holdfast.engine.clock import Clock
from holdfast.engine.draft import Attempt


class Emitter:
    def __init__(self, spec: RunSpec, attempt: Attempt, step_id: str, *, parallel: bool, clock: Clock) -> None:
        self._spec = spec
        self._attempt = attempt
        self._step_id = step_id
        self._parallel = parallel
        self._clock = clock
        self._index = -1
        self._kind: type[Delta] | None = None
        self._calls: dict[int, tuple[str, bool]] = {}
        self._waiting: list[tuple[CallDelta, str]] = []
        self._others_made = False

    def frames(self, delta: Delta) -> list[Frame]:
        match delta:
            case TextDelta(text):
                index = self._part(TextDelta)
                return [TextFrame(self._attempt.reply_id, index, self._step_id, self._clock.now_us(), text)]
            case ReasoningDelta(text, signature):
                index = self._part(ReasoningDelta)
                at = self._clock.now_us()
                return [ReasoningFrame(self._attempt.reply_id, index, self._step_id, at, text, signature)]
            case RedactedDelta(data):
                return [self._hidden("redacted", data)]
            case OmittedDelta():
                return [self._hidden("omitted", None)]
            case CallDelta():
                return self._call(delta)
            case _:
                return []

    def finish(self) -> list[Frame]:
        """The fragments that were held back, now that no other call can follow."""
        message_id = self._attempt.held_id if self._others_made else self._attempt.reply_id
        return self._release(message_id)

    def _part(self, kind: type[Delta]) -> int:
        if self._kind is not kind:
            self._kind = kind
            self._index += 1
        return self._index

    def _hidden(self, state: str, data: str | None) -> Frame:
        self._kind = None
        self._index += 1
        at = self._clock.now_us()
        if state == "redacted":
            return HiddenReasoningFrame(self._attempt.reply_id, self._index, self._step_id, at, "redacted", data)
        return HiddenReasoningFrame(self._attempt.reply_id, self._index, self._step_id, at, "omitted", None)

    def _call(self, delta: CallDelta) -> list[Frame]:
        if delta.index not in self._calls:
            if self._calls and not self._parallel:
                return []  # only the first call of such a reply is kept
            self._calls[delta.index] = (delta.id or "", self._asks(delta.name or ""))
        call_id, asks = self._calls[delta.index]
        if not asks:
            self._others_made = True
            frame = self._call_frame(self._attempt.reply_id, self._part(CallDelta), delta, call_id, held=False)
            return [*self._release(self._attempt.held_id), frame]
        if self._parallel and not self._others_made:
            self._waiting.append((delta, call_id))
            return []
        message_id = self._attempt.held_id if self._others_made else self._attempt.reply_id
        return [self._call_frame(message_id, 0, delta, call_id, held=True)]

    def _release(self, message_id: str) -> list[Frame]:
        waiting, self._waiting = self._waiting, []
        return [self._call_frame(message_id, 0, delta, call_id, held=True) for delta, call_id in waiting]

    def _call_frame(self, message_id: str, index: int, delta: CallDelta, call_id: str, *, held: bool) -> CallFrame:
        at = self._clock.now_us()
        return CallFrame(message_id, index, self._step_id, at, call_id, delta.name, delta.arguments, held)

    def _asks(self, name: str) -> bool:
        tool = self._spec.tool(name)
        return tool is not None and (tool.effect == "client" or tool_rules.needs_approval(self._spec.rules, name))
