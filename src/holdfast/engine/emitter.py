"""Turns the deltas of one reply into frames, with the ids that the stored rows will have.

Calls that ask for approval share the row of the text when no other call is made, and have a row of their own when one
is; one that cannot be asked about, because its arguments make no sense, stands with the others. All that is known only
when the reply ends, so their fragments wait until then. Any other call is shown as it comes.
"""

from __future__ import annotations

from holdfast.core import tool_rules
from holdfast.core.call_checks import judge
from holdfast.core.deltas import CallDelta, Delta, OmittedDelta, ReasoningDelta, RedactedDelta, TextDelta
from holdfast.core.frames import CallFrame, Frame, HiddenReasoningFrame, ReasoningFrame, TextFrame
from holdfast.core.messages import ToolCall
from holdfast.core.run import CallModel
from holdfast.core.spec import RunSpec
from holdfast.core.transitions import Attempt
from holdfast.engine.clock import Clock


class Emitter:
    def __init__(self, spec: RunSpec, intent: CallModel, attempt: Attempt, step_id: str, clock: Clock) -> None:
        self._spec = spec
        self._intent = intent
        self._attempt = attempt
        self._step_id = step_id
        self._clock = clock
        self._index = -1
        self._kind: type[Delta] | None = None
        self._text_before_calls = -1
        self._approval = tool_rules.approval_names(spec.rules)
        self._call_ids: dict[int, str] = {}  # by the delta's index; of the calls that are kept
        self._kept_ids: set[str] = set()
        self._dropped: set[int] = set()
        self._waiting: dict[int, list[CallDelta]] = {}
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
        """The fragments that were held back."""
        asking = {index: self._asks(index, deltas) for index, deltas in self._waiting.items()}
        others_made = self._others_made or not all(asking.values())
        held_id = self._attempt.held_id if others_made else self._attempt.reply_id
        frames: list[Frame] = []
        for index, deltas in self._waiting.items():
            held = asking[index]
            message_id, place = (held_id, 0) if held else (self._attempt.reply_id, self._part(CallDelta))
            frames += [self._call_frame(message_id, place, delta, held=held) for delta in deltas]
        self._waiting.clear()
        return frames

    def _part(self, kind: type[Delta]) -> int:
        if self._kind is kind:
            return self._index
        if kind is TextDelta and self._kind is CallDelta and self._text_before_calls >= 0:
            return self._text_before_calls  # calls are stored last, so the text before and after them is one part
        if kind is CallDelta:
            self._text_before_calls = self._index if self._kind is TextDelta else -1
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
        if delta.index in self._dropped or (delta.index not in self._call_ids and not self._begin(delta)):
            return []
        if delta.index in self._waiting:
            self._waiting[delta.index].append(delta)
            return []
        return [self._call_frame(self._attempt.reply_id, self._part(CallDelta), delta, held=False)]

    def _begin(self, delta: CallDelta) -> bool:
        """False for a call that will not be kept: the second of a reply that may have one, or of an id."""
        call_id, name = delta.id or "", delta.name or ""
        if call_id in self._kept_ids or (self._call_ids and not self._intent.parallel):
            self._dropped.add(delta.index)
            return False
        self._call_ids[delta.index] = call_id
        self._kept_ids.add(call_id)
        if self._may_ask(name):
            self._waiting[delta.index] = []
        else:
            self._others_made = True
        return True

    def _asks(self, index: int, deltas: list[CallDelta]) -> bool:
        """As the whole call will be judged."""
        arguments = "".join(delta.arguments for delta in deltas)
        call = ToolCall(self._call_ids[index], deltas[0].name or "", arguments)
        judged = judge(self._spec, self._intent.choice, [call], parallel=False)
        return judged[0].verdict == "held"

    def _may_ask(self, name: str) -> bool:
        tool = self._spec.tool(name)
        return tool is not None and (tool.effect == "client" or name in self._approval)

    def _call_frame(self, message_id: str, index: int, delta: CallDelta, *, held: bool) -> CallFrame:
        at, call_id = self._clock.now_us(), self._call_ids[delta.index]
        return CallFrame(message_id, index, self._step_id, at, call_id, delta.name, delta.arguments, held)
