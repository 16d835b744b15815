"""A message and its parts. Text lives here once; vendors and clients see projections of it."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool", "approval", "summary"]
Status = Literal["success", "error"]

_BEGINNINGS: Final = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_MISSPELT: Final = {"image/jpg": "image/jpeg"}
# What is called one of these and does not begin like any of them is not an image.
_RECOGNISED: Final = frozenset({*_BEGINNINGS.values(), "image/webp"})


class Part(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    pass


class Text(Part, frozen=True, tag="text"):
    text: str
    signature: str | None = None


class Image(Part, frozen=True, tag="image"):
    """Always held as data: urls are resolved before a message is accepted."""

    media_type: str
    data: str
    detail: str | None = None


def readable_image(media_type: str, data: str, detail: str | None = None) -> Image | None:
    """None for what no vendor can read: a message stays in its thread, and would be refused with every later turn."""
    compact = "".join(data.split())
    try:
        content = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except ValueError:
        return None
    return image_of(media_type, content, detail)


def image_of(media_type: str, content: bytes, detail: str | None = None) -> Image | None:
    """Its first bytes say what it is, where they are of a known type: vendors refuse what is called otherwise.

    None for what is empty or only called an image.
    """
    spelled = media_type.strip().lower()
    if not content or not spelled.startswith("image/"):
        return None
    seen = next((name for beginning, name in _BEGINNINGS.items() if content.startswith(beginning)), None)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        seen = "image/webp"
    called = _MISSPELT.get(spelled, spelled)
    if seen is None and called in _RECOGNISED:
        return None
    return Image(seen or called, base64.b64encode(content).decode(), detail)


class Reasoning(Part, frozen=True, tag="reasoning"):
    text: str
    signature: str | None = None


class Thoughts(Part, frozen=True, tag="thoughts"):
    """What a model that does not reason by itself was asked to think, in an argument of its call."""

    text: str


class RedactedReasoning(Part, frozen=True, tag="redacted_reasoning"):
    data: str


class OmittedReasoning(Part, frozen=True, tag="omitted_reasoning"):
    signature: str | None = None


class ToolCall(Part, frozen=True, tag="tool_call"):
    id: str
    name: str
    arguments: str  # JSON text, exactly as it will be executed
    signature: str | None = None  # a vendor's proof that the call is its own; sent back with it


Content = str | tuple[Text | Image, ...]


class ToolReturn(Part, frozen=True, tag="tool_return"):
    call_id: str
    name: str
    status: Status
    content: Content
    stdout: tuple[str, ...] | None = None
    stderr: tuple[str, ...] | None = None
    was_asked: bool = False  # its call was shown as a question to a person or to the client


class Approve(Part, frozen=True, tag="approve"):
    call_id: str
    reason: str | None = None


class Deny(Part, frozen=True, tag="deny"):
    call_id: str
    reason: str | None = None


class ClientReturn(Part, frozen=True, tag="client_return"):
    call_id: str
    content: Content
    status: Status = "success"
    stdout: tuple[str, ...] | None = None
    stderr: tuple[str, ...] | None = None


Decision = Approve | Deny | ClientReturn


class CompactionStats(msgspec.Struct, frozen=True):
    trigger: str
    context_window: int
    messages_count_before: int
    messages_count_after: int
    context_tokens_before: int | None = None
    context_tokens_after: int | None = None


class Summary(Part, frozen=True, tag="summary"):
    text: str
    stats: CompactionStats | None = None
    # Whether the request that caused it asked to see compaction messages; decides how listings show it.
    shown: bool = False


AnyPart = (
    Text
    | Image
    | Reasoning
    | Thoughts
    | RedactedReasoning
    | OmittedReasoning
    | ToolCall
    | ToolReturn
    | Approve
    | Deny
    | ClientReturn
    | Summary
)
Parts = tuple[AnyPart, ...]
SPOKEN = (Text, Reasoning, Thoughts, RedactedReasoning, OmittedReasoning)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One stored row. Immutable, but for a tool row that gathers the returns of its step and a system row."""

    id: str
    role: Role
    parts: Parts
    created_us: int  # microseconds since the epoch, UTC
    run_id: str | None = None
    step_id: str | None = None
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    batch_item_id: str | None = None
    model: str | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def returns(self) -> tuple[ToolReturn, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolReturn))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(part for part in self.parts if isinstance(part, (Approve, Deny, ClientReturn)))

    @property
    def is_approval_request(self) -> bool:
        return self.role == "approval" and bool(self.calls)


class Turn(msgspec.Struct, frozen=True):
    """What a vendor is sent: roles alternate sensibly and every call has its return in the tool turn after it."""

    role: Literal["user", "assistant", "tool"]
    parts: Parts
    model: str | None = None  # the handle that produced an assistant turn; reasoning is replayed only to it


def wire_message_count(message: Message) -> int:
    """How many messages a client is shown of it. Neighbouring texts are one, as are neighbouring reasonings, and all
    calls together; hidden reasonings stand alone."""
    if message.role != "assistant" and not message.is_approval_request:
        return 1
    spoken = [part for part in message.parts if isinstance(part, SPOKEN)]
    joined = sum(
        type(one) is type(next_one) and isinstance(one, (Text, Reasoning)) for one, next_one in pairwise(spoken)
    )
    return len(spoken) - joined + bool(message.calls)


def text_of(parts: Iterable[AnyPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, (Text, Summary)))


def content_text(content: Content) -> str:
    """A tool's answer as text; images become a placeholder."""
    if isinstance(content, str):
        return content
    return " ".join(part.text if isinstance(part, Text) else "[Image omitted]" for part in content)
