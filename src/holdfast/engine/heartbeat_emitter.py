"""Turns the deltas of one reply into frames, for agents that speak through a tool.

The one call of the reply is taken apart as it is written: its thoughts are shown as reasoning, the words of the
speaking tool as text, and what is left as a call. Thoughts stand before all else in the stored row, so whatever a model
writes before them waits until they are whole.
"""

from __future__ import annotations

import msgspec

from holdfast.core import heartbeats
from holdfast.core.argument_stream import ArgumentStream, Piece
from holdfast.core.arguments import all_arguments_of
from holdfast.core.deltas import CallDelta, Delta, OmittedDelta, ReasoningDelta, RedactedDelta, TextDelta
from holdfast.core.frames import CallFrame, Frame, HiddenReasoningFrame, ReasoningFrame, TextFrame
from holdfast.core.judgement import judge
from holdfast.core.messages import ToolCall
from holdfast.core.run import CallModel
from holdfast.core.spec import HeartbeatLoop, RunSpec
from holdfast.core.transitions import Attempt
from holdfast.engine.clock import Clock
from holdfast.errors import ToolFailed


class HeartbeatEmitter:
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

    def frames(self, delta: Delta) -> list[Frame]:
        match delta:
            case TextDelta(text):
                return [] if self._loop.thinking else [self._thoughts(text)]
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
        frames = self._release(call)
        if call.speaks and not call.has_spoken:
            frames += self._whole_words(call)
        elif call.may_ask:
            frames += self._asking(call)
        return frames

    def _fragment(self, delta: CallDelta) -> list[Frame]:
        if self._call is None:
            self._call = self._begin(delta)
        call = self._call
        if delta.index != call.index:
            return []  # only the first call of a reply is kept
        call.written.append(delta.arguments)
        frames: list[Frame] = []
        for piece in call.stream.feed(delta.arguments):
            if self._loop.thinking and piece.name == heartbeats.THINKING:
                if piece.text:
                    frames.append(self._thoughts(piece.text))
                if piece.ends:
                    self._thoughts_due = False
            else:
                call.waiting.append(piece)
        if not self._thoughts_due:
            frames += self._release(call)
        return frames

    def _begin(self, delta: CallDelta) -> _Call:
        name, speaking = delta.name or "", self._loop.speaking
        asks = self._spec.may_ask(name)
        speaks = speaking is not None and name == speaking.tool and not asks
        return _Call(delta.index, delta.id or "", name, speaks=speaks, may_ask=asks)

    def _release(self, call: _Call) -> list[Frame]:
        pieces, call.waiting = call.waiting, []
        if call.speaks:
            said = [piece.text for piece in pieces if piece.text and self._is_spoken(piece)]
            call.has_spoken = call.has_spoken or bool(said)
            return [self._words("".join(said))] if said else []
        text = call.rebuilt(pieces)
        if call.may_ask:
            call.held_back += text
            return []
        frames: list[Frame] = []
        if not call.is_named:
            call.is_named = True
            frames.append(self._call_frame(call, call.name, ""))
        return [*frames, self._call_frame(call, None, text)] if text else frames

    def _is_spoken(self, piece: Piece) -> bool:
        return self._loop.speaking is not None and piece.name == self._loop.speaking.argument

    def _whole_words(self, call: _Call) -> list[Frame]:
        """Of a call whose words are not a string, or that has none: then it is shown as the call that it is."""
        words = heartbeats.words_of(ToolCall(call.id, call.name, "".join(call.written)), self._loop.speaking)
        if words is not None:
            return [self._words(words)]
        return [self._call_frame(call, call.name, _without_thoughts("".join(call.written)))]

    def _asking(self, call: _Call) -> list[Frame]:
        """As the whole call is judged: one whose arguments make no sense does not ask."""
        made = ToolCall(call.id, call.name, "".join(call.written))
        held = judge(self._spec, self._intent.choice, [made], parallel=False)[0].verdict == "held"
        return [
            self._call_frame(call, call.name, "", held=held),
            self._call_frame(call, None, call.held_back, held=held),
        ]

    def _words(self, text: str) -> TextFrame:
        return TextFrame(self._attempt.reply_id, self._part("call"), self._step_id, self._clock.now_us(), text)

    def _thoughts(self, text: str) -> ReasoningFrame:
        index, at = self._part("thoughts"), self._clock.now_us()
        return ReasoningFrame(self._attempt.reply_id, index, self._step_id, at, text, None, native=False)

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
            self._kind = kind
            self._index += 1
        return self._index


def _without_thoughts(arguments: str) -> str:
    try:
        given = all_arguments_of(arguments)
    except ToolFailed:
        return arguments
    return msgspec.json.encode({name: value for name, value in given.items() if name != heartbeats.THINKING}).decode()


class _Call(msgspec.Struct):
    index: int
    id: str
    name: str
    speaks: bool
    may_ask: bool
    stream: ArgumentStream = msgspec.field(default_factory=ArgumentStream)
    written: list[str] = []
    waiting: list[Piece] = []
    held_back: str = ""
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
