"""Folds what a vendor streams into the parts of one reply. The only accumulator there is."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.core.messages import OmittedReasoning, Parts, Reasoning, RedactedReasoning, Text, ToolCall
from holdfast.core.usage import Usage
from holdfast.errors import BadReply

MAX_CALLS: Final = 256  # in one reply
MAX_REPLY_CHARS: Final = 16_000_000  # of one reply: text, reasoning, arguments, and one for each delta
FinishReason = Literal["stop", "tool_calls", "length"]


class TextDelta(msgspec.Struct, frozen=True):
    text: str
    signature: str | None = None


class ReasoningDelta(msgspec.Struct, frozen=True):
    """A signature closes its block: reasoning that comes after it is another block."""

    text: str
    signature: str | None = None


class RedactedDelta(msgspec.Struct, frozen=True):
    data: str


class OmittedDelta(msgspec.Struct, frozen=True):
    signature: str | None = None


class CallDelta(msgspec.Struct, frozen=True):
    """`index` tells parallel calls apart; id and name come with the first fragment of a call."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    signature: str | None = None


class UsageDelta(msgspec.Struct, frozen=True):
    usage: Usage


class Finish(msgspec.Struct, frozen=True):
    reason: FinishReason


Delta = TextDelta | ReasoningDelta | RedactedDelta | OmittedDelta | CallDelta | UsageDelta | Finish


class Reply(msgspec.Struct, frozen=True):
    parts: Parts
    finish: FinishReason | None  # None: the reply was cut off
    usage: Usage | None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def spoken(self) -> Parts:
        """All but the tool calls: what is kept of a reply that was cut off."""
        return tuple(part for part in self.parts if not isinstance(part, ToolCall))


NOTHING_SAID: Final = Reply((), None, None)


class ReplyFolder:
    """Order of parts is the order in which they began; calls come last, in the same order.

    A reply without bounds would fill the memory. One that passes them is a BadReply as a whole: the half of it that
    fits must not be taken for what the model wanted.
    """

    def __init__(self) -> None:
        self._spoken: list[_Spoken | RedactedReasoning | OmittedReasoning] = []
        self._open: _Spoken | None = None  # the last of them, while it can grow
        self._calls: dict[int, _Call] = {}
        self._finish: FinishReason | None = None
        self._usage: Usage | None = None
        self._size = 0

    def add(self, delta: Delta) -> None:
        """Raises BadReply when the reply has grown beyond all bounds; what was added before can still be read."""
        if isinstance(delta, TextDelta):  # first, and without a match: of these there are thousands
            self._grow(delta.text, delta.signature)
            self._append(Text, delta.text, delta.signature)
            return
        match delta:
            case ReasoningDelta(text, signature):
                self._grow(text, signature)
                self._append(Reasoning, text, signature)
            case RedactedDelta(data):
                self._grow(data)
                self._place(RedactedReasoning(data))
            case OmittedDelta(signature):
                self._grow("", signature)
                self._place(OmittedReasoning(signature))
            case CallDelta():
                self._grow(delta.arguments, delta.signature)
                self._call(delta)
            case UsageDelta(usage):
                self._usage = usage
            case Finish(reason):  # pragma: no branch - there is no other delta
                self._finish = reason

    def reply(self) -> Reply:
        spoken = tuple(part.whole() if isinstance(part, _Spoken) else part for part in self._spoken)
        calls = tuple(call.whole() for call in self._calls.values())
        return Reply(spoken + calls, self._finish, self._usage)

    def _grow(self, text: str, signature: str | None = None) -> None:
        self._size += 1 + len(text)
        if signature is not None:
            self._size += len(signature)
        if self._size > MAX_REPLY_CHARS:
            raise BadReply(f"The reply is longer than {MAX_REPLY_CHARS} characters, the most that is accepted.")

    def _call(self, delta: CallDelta) -> None:
        if delta.index not in self._calls and len(self._calls) >= MAX_CALLS:
            raise BadReply(f"The reply makes more than {MAX_CALLS} tool calls, the most that is accepted.")
        self._calls.setdefault(delta.index, _Call()).add(delta)

    def _append(self, kind: type[Text | Reasoning], text: str, signature: str | None) -> None:
        part = self._open
        if part is None or part.kind is not kind:
            part = self._open = _Spoken(kind)
            self._spoken.append(part)
        part.pieces.append(text)
        if signature:
            part.signature = signature
            self._open = None

    def _place(self, part: RedactedReasoning | OmittedReasoning) -> None:
        self._spoken.append(part)
        self._open = None


class _Spoken:
    """Text or reasoning as its pieces come in."""

    def __init__(self, kind: type[Text | Reasoning]) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.signature: str | None = None

    def whole(self) -> Text | Reasoning:
        return self.kind("".join(self.pieces), self.signature)


class _Call:
    """One call as its fragments come in. The first id, name and signature that are said count."""

    def __init__(self) -> None:
        self._id = self._name = ""
        self._pieces: list[str] = []
        self._signature: str | None = None

    def add(self, delta: CallDelta) -> None:
        self._id = self._id or delta.id or ""
        self._name = self._name or delta.name or ""
        self._pieces.append(delta.arguments)
        self._signature = self._signature or delta.signature

    def whole(self) -> ToolCall:
        return ToolCall(self._id, self._name, "".join(self._pieces), self._signature)
