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
    """Order of parts is the order in which they began; calls come last, in index order.

    A reply without bounds would fill the memory. One that passes them is a BadReply as a whole: the half of it that
    fits must not be taken for what the model wanted.
    """

    def __init__(self) -> None:
        self._spoken: list[list[str] | RedactedReasoning | OmittedReasoning] = []
        self._kinds: list[Literal["text", "reasoning", "other"]] = []
        self._signatures: dict[int, str] = {}
        self._calls: dict[int, _Call] = {}
        self._finish: FinishReason | None = None
        self._usage: Usage | None = None
        self._size = 0

    def add(self, delta: Delta) -> None:
        """Raises BadReply when the reply has grown beyond all bounds; what was added before can still be read."""
        self._size += 1
        match delta:
            case TextDelta(text, signature):
                self._size += len(text)  # as `_grow` does: of all deltas this is the one that there are thousands of
                if signature or self._size > MAX_REPLY_CHARS:
                    self._grow("", signature)
                self._append("text", text, signature)
            case ReasoningDelta(text, signature):
                self._grow(text, signature)
                self._append("reasoning", text, signature)
            case RedactedDelta(data):
                self._grow(data, None)
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
        spoken = tuple(self._part(index) for index in range(len(self._spoken)))
        calls = tuple(self._calls[index].whole() for index in sorted(self._calls))
        return Reply(spoken + calls, self._finish, self._usage)

    def _grow(self, text: str, signature: str | None) -> None:
        self._size += len(text) + (len(signature) if signature else 0)
        if self._size > MAX_REPLY_CHARS:
            raise BadReply(f"The reply is longer than {MAX_REPLY_CHARS} characters, the most that is accepted.")

    def _call(self, delta: CallDelta) -> None:
        if delta.index not in self._calls and len(self._calls) >= MAX_CALLS:
            raise BadReply(f"The reply makes more than {MAX_CALLS} tool calls, the most that is accepted.")
        self._calls.setdefault(delta.index, _Call()).add(delta)

    def _append(self, kind: Literal["text", "reasoning"], text: str, signature: str | None) -> None:
        last = self._spoken[-1] if self._spoken else None
        if isinstance(last, list) and self._kinds[-1] == kind and len(self._spoken) - 1 not in self._signatures:
            last.append(text)
        else:
            self._spoken.append([text])
            self._kinds.append(kind)
        if signature:
            self._signatures[len(self._spoken) - 1] = signature

    def _place(self, part: RedactedReasoning | OmittedReasoning) -> None:
        self._spoken.append(part)
        self._kinds.append("other")

    def _part(self, index: int) -> Text | Reasoning | RedactedReasoning | OmittedReasoning:
        held = self._spoken[index]
        if not isinstance(held, list):
            return held
        text = "".join(held)
        kind = Text if self._kinds[index] == "text" else Reasoning
        return kind(text, self._signatures.get(index))


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
