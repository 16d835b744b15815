"""Turns the deltas of one reply into frames, with the ids that the stored rows will have."""

from __future__ import annotations

import msgspec

from holdfast.core import heartbeat_loop, tool_rules
from holdfast.core.arguments import ArgumentStream, Piece, all_arguments_of
from holdfast.core.calls import judge
from holdfast.core.deltas import CallDelta, Delta, OmittedDelta, ReasoningDelta, RedactedDelta, TextDelta
from holdfast.core.frames import CallFrame, Frame, HiddenReasoningFrame, ReasoningFrame, TextFrame
from holdfast.core.messages import ToolCall
from holdfast.core.run import CallModel
from holdfast.core.spec import HeartbeatLoop, RunSpec, spoken_text
from holdfast.core.transitions import Attempt
from holdfast.engine.clock import Clock
from holdfast.errors import ToolFailed


def emitter_for(
    spec: RunSpec, intent: CallModel, attempt: Attempt, step_id: str, clock: Clock
) -> Emitter | HeartbeatEmitter:
    if spec.heartbeats is None:
        return Emitter(spec, intent, attempt, step_id, clock)
    return HeartbeatEmitter(spec, spec.heartbeats, intent, attempt, step_id, clock)


class Emitter:
    """For agents that speak in texts.

    Calls that ask for approval share the row of the text when no other call is made, and have a row of their own when
    one is; one that cannot be asked about, because its arguments make no sense, stands with the others. All that is
    known only when the reply ends, so their fragments wait until then. Any other call is shown as it comes.
    """

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


class HeartbeatEmitter:
    """For agents that speak through a tool.

    The one call of the reply is taken apart as it is written: its thoughts are shown as reasoning, the words of the
    speaking tool as text, and what is left as a call. Thoughts stand before all else in the stored row, so whatever a
    model writes before them waits until they are whole.
    """

    def __init__(
        self, spec: RunSpec, loop: HeartbeatLoop, intent: CallModel, attempt: Attempt, step_id: str, clock: Clock
    ) -> None:
        self._spec = spec
        self._loop = loop
        self._intent = intent
        self._attempt = attempt
        self._step_id = step_id
        self._clock = clock
        self._index = -1
        self._kind = ""
        self._call: _Call | None = None
        self._thoughts_due = loop.thinking  # they may still come
        self._thoughts_before_call: int | None = None  # their place, if they stand right before it

    def frames(self, delta: Delta) -> list[Frame]:
        match delta:
            case TextDelta(text):
                return [] if self._loop.thinking else self._text(text)
            case ReasoningDelta(text, signature):
                index = self._part("reasoning")
                at = self._clock.now_us()
                return [ReasoningFrame(self._attempt.reply_id, index, self._step_id, at, text, signature)]
            case RedactedDelta(data):
                return [self._hidden(data)]
            case OmittedDelta():
                return [self._hidden(None)]
            case CallDelta():
                return self._fragment(delta)
            case _:
                return []

    def finish(self) -> list[Frame]:
        """What was held back."""
        call = self._call
        if call is None:
            return []
        self._thoughts_due = False
        frames = self._written_otherwise(call) if call.stream.is_no_object else self._release(call)
        if self._speaks(call) and not call.has_spoken:
            frames += self._whole_words(call)
        elif self._spec.may_ask(call.name):
            frames += self._asking(call)
        return frames

    def _fragment(self, delta: CallDelta) -> list[Frame]:
        if self._call is None:
            self._call = _Call(delta.index)
        call = self._call
        if delta.index != call.index:
            return []  # only the first call of a reply is kept
        call.id, call.name = call.id or delta.id or "", call.name or delta.name or ""
        call.written.append(delta.arguments)
        frames: list[Frame] = []
        for piece in call.stream.feed(delta.arguments):
            if self._loop.thinking and piece.name == heartbeat_loop.THINKING:
                if thoughts := call.thoughts.read(piece):
                    frames.append(self._thoughts(thoughts))
                if piece.ends:
                    self._thoughts_due = False
            else:
                call.waiting.append(piece)
        if call.id and call.name and not self._thoughts_due:
            frames += self._release(call)
        return frames

    def _speaks(self, call: _Call) -> bool:
        speaking = self._loop.speaking
        return speaking is not None and call.name == speaking.tool and not self._spec.may_ask(call.name)

    def _release(self, call: _Call) -> list[Frame]:
        pieces, call.waiting = call.waiting, []
        if self._speaks(call):
            said = [piece.text for piece in pieces if piece.text and self._is_spoken(piece)]
            call.has_spoken = call.has_spoken or bool(said)
            return [self._words("".join(said))] if said else []
        return self._arguments(call, call.rebuilt(pieces))

    def _arguments(self, call: _Call, text: str) -> list[Frame]:
        if self._spec.may_ask(call.name):
            call.held_back.append(text)
            return []
        frames: list[Frame] = []
        if not call.is_named:
            call.is_named = True
            frames.append(self._call_frame(call, call.name, ""))
        return [*frames, self._call_frame(call, None, text)] if text else frames

    def _written_otherwise(self, call: _Call) -> list[Frame]:
        """Of arguments that are written as a string, or that nobody can read: nothing was shown of them."""
        written = "".join(call.written)
        try:
            thoughts = heartbeat_loop.heartbeat_arguments(written).thoughts if self._loop.thinking else ""
        except ToolFailed:
            thoughts = ""
        frames: list[Frame] = [self._thoughts(thoughts)] if thoughts else []
        return frames if self._speaks(call) else [*frames, *self._arguments(call, self._without_thoughts(written))]

    def _is_spoken(self, piece: Piece) -> bool:
        return self._loop.speaking is not None and piece.name == self._loop.speaking.argument

    def _whole_words(self, call: _Call) -> list[Frame]:
        """Of a call whose words are not a string, or that has none: then it is shown as the call that it is."""
        words = spoken_text(ToolCall(call.id, call.name, "".join(call.written)), self._loop.speaking)
        if words is not None:
            return [self._words(words)]
        return [self._call_frame(call, call.name, self._without_thoughts("".join(call.written)))]

    def _asking(self, call: _Call) -> list[Frame]:
        """As the whole call is judged: one whose arguments make no sense does not ask."""
        made = ToolCall(call.id, call.name, "".join(call.written))
        held = judge(self._spec, self._intent.choice, [made], parallel=False)[0].verdict == "held"
        return [
            self._call_frame(call, call.name, "", held=held),
            self._call_frame(call, None, "".join(call.held_back), held=held),
        ]

    def _words(self, text: str) -> TextFrame:
        return TextFrame(self._attempt.reply_id, self._part("call"), self._step_id, self._clock.now_us(), text)

    def _thoughts(self, text: str) -> ReasoningFrame:
        index, at = self._part("thoughts"), self._clock.now_us()
        return ReasoningFrame(self._attempt.reply_id, index, self._step_id, at, text, None, native=False)

    def _text(self, text: str) -> list[Frame]:
        """Where it is stored: after a call has been shown, it can only be added to what stands right before it."""
        if self._kind != "call":
            return [self._thoughts(text)]
        index, at = self._thoughts_before_call, self._clock.now_us()
        if index is None:
            return []
        return [ReasoningFrame(self._attempt.reply_id, index, self._step_id, at, text, None, native=False)]

    def _without_thoughts(self, arguments: str) -> str:
        """As they were written, where thoughts are no argument or nobody can read them."""
        try:
            given = all_arguments_of(arguments)
        except ToolFailed:
            return arguments
        taken = {heartbeat_loop.THINKING} if self._loop.thinking else set[str]()
        return msgspec.json.encode({name: value for name, value in given.items() if name not in taken}).decode()

    def _hidden(self, data: str | None) -> HiddenReasoningFrame:
        self._kind = ""
        self._index += 1
        at, state = self._clock.now_us(), "omitted" if data is None else "redacted"
        return HiddenReasoningFrame(self._attempt.reply_id, self._index, self._step_id, at, state, data)

    def _call_frame(self, call: _Call, name: str | None, arguments: str, *, held: bool = False) -> CallFrame:
        index = 0 if held else self._part("call")
        at = self._clock.now_us()
        return CallFrame(self._attempt.reply_id, index, self._step_id, at, call.id, name, arguments, held)

    def _part(self, kind: str) -> int:
        if self._kind != kind:
            if kind == "call":
                self._thoughts_before_call = self._index if self._kind == "thoughts" else None
            self._kind = kind
            self._index += 1
        return self._index


class _Call(msgspec.Struct):
    index: int
    id: str = ""
    name: str = ""
    thoughts: heartbeat_loop.ThoughtReader = msgspec.field(default_factory=heartbeat_loop.ThoughtReader)
    stream: ArgumentStream = msgspec.field(default_factory=ArgumentStream)
    written: list[str] = []
    waiting: list[Piece] = []
    held_back: list[str] = []
    has_spoken: bool = False
    is_named: bool = False
    members: int = 0
    is_closed: bool = False

    def rebuilt(self, pieces: list[Piece]) -> str:
        """JSON text again, without what was taken out of it."""
        text = ""
        for piece in pieces:
            if piece.begins:
                text += "{" if not self.members else ", "
                text += f"{msgspec.json.encode(piece.name).decode()}: "
                self.members += 1
            text += piece.raw
        if self.stream.is_whole and not self.is_closed:
            self.is_closed = True
            text += "}" if self.members else "{}"
        return text
