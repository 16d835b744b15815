"""Messages in agent files as they are read. Returns and summaries stand there in the envelopes that a model is shown
them in. In the store they are plain, so the envelopes are taken off."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from holdfast import ids
from holdfast.core import model_history
from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    CompactionStats,
    Content,
    Decision,
    Deny,
    Image,
    Message,
    OmittedReasoning,
    Parts,
    Reasoning,
    RedactedReasoning,
    Role,
    Status,
    Summary,
    Text,
    Thoughts,
    ToolCall,
    ToolReturn,
    readable_image,
)
from holdfast.errors import Invalid
from holdfast.wire.times import microseconds

IMAGE_MISSING: Final = "[An image that was not in the agent file.]"
_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
    "approval": "approval",
    "summary": "summary",
}
_ENVELOPE: Final = frozenset({"status", "message", "time"})
_USER_ENVELOPE: Final = frozenset({"type", "message", "time", "name", "location"})
_STATUSES: Final[dict[str, Status]] = {"OK": "success", "Failed": "error"}
# What stands before a summary in the envelope of the old server: a note, and a line that ends with a colon.
_OLD_INTRODUCTION: Final = re.compile(r"\ANote: [^\n]*\n[^\n]*:\n ?")
_LOCAL_ID: Final = re.compile(r"[a-z_]+-[0-9]{1,9}")


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    signature: str | None = None


class ImageSource(msgspec.Struct):
    type: Literal["url", "base64", "letta"]
    media_type: str | None = None
    data: str | None = None
    detail: str | None = None
    url: str | None = None
    file_id: str | None = None


class ImagePart(msgspec.Struct, tag_field="type", tag="image"):
    source: ImageSource


class ReasoningPart(msgspec.Struct, tag_field="type", tag="reasoning"):
    reasoning: str
    is_native: bool = True
    signature: str | None = None


class RedactedPart(msgspec.Struct, tag_field="type", tag="redacted_reasoning"):
    data: str


class OmittedPart(msgspec.Struct, tag_field="type", tag="omitted_reasoning"):
    signature: str | None = None


class SummaryText(msgspec.Struct):
    text: str = ""


class SummarizedPart(msgspec.Struct, tag_field="type", tag="summarized_reasoning"):
    summary: list[SummaryText] = []


class CallPart(msgspec.Struct, tag_field="type", tag="tool_call"):
    id: str
    name: str
    input: dict[str, Any] = {}
    signature: str | None = None


class ReturnPart(msgspec.Struct, tag_field="type", tag="tool_return"):
    tool_call_id: str
    content: str
    is_error: bool = False


ContentPart = TextPart | ImagePart | ReasoningPart | RedactedPart | OmittedPart | SummarizedPart | CallPart | ReturnPart


class Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class FileCall(msgspec.Struct):
    id: str
    function: Function
    signature: str | None = None


class FileReturn(msgspec.Struct):
    tool_call_id: str | None = None
    status: Status = "success"
    func_response: str | list[TextPart | ImagePart] | None = None
    stdout: list[str] | None = None
    stderr: list[str] | None = None


class FileDecision(msgspec.Struct):
    """An approval or a denial; or, without `approve`, what a tool of the client returned."""

    tool_call_id: str
    approve: bool | None = None
    reason: str | None = None
    status: Status = "success"
    func_response: str | list[TextPart | ImagePart] | None = None
    tool_return: str | list[TextPart | ImagePart] | None = None
    stdout: list[str] | None = None
    stderr: list[str] | None = None


class FileMessage(msgspec.Struct, kw_only=True):
    role: str
    id: str
    content: str | list[ContentPart] | None = None
    text: str | None = None  # of the oldest files
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    batch_item_id: str | None = None
    model: str | None = None
    tool_calls: list[FileCall] | None = None
    tool_call_id: str | None = None
    tool_returns: list[FileReturn] | None = None
    created_at: str | None = None
    approve: bool | None = None
    approval_request_id: str | None = None
    denial_reason: str | None = None
    approvals: list[FileDecision] | None = None
    step_id: str | None = None  # ours: rows that came from one reply of the model have the same
    compaction: CompactionStats | None = None  # ours
    shown: bool = False  # ours, of a summary


def read_message(value: object) -> FileMessage:
    try:
        return msgspec.convert(value, FileMessage)
    except msgspec.ValidationError as error:
        raise Invalid(str(error).replace("`", "")) from error


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of the file to understand its messages.

    `is_ours`: it was written by this server. `thinks_in_text`: what stands beside a call is what the agent thought. The
    old server wrote it so for agents that speak through a tool.
    """

    model_name: str | None  # as the old server named the agent's model in messages
    handle: str
    is_ours: bool
    thinks_in_text: bool
    now_us: int
    new_ids: Mapping[str, str] = {}  # of agents and groups, by the ids that they have in the file


class MessageReader:
    """Turns the messages of one agent into rows, and tells what it could not keep of them."""

    def __init__(self, origin: Origin, messages: Sequence[FileMessage]) -> None:
        self._origin = origin
        self._names = {call.id: call.function.name for each in messages for call in each.tool_calls or ()}
        asking = [each for each in messages if each.role == "approval" and each.tool_calls]
        asking_steps = {each.step_id for each in asking} - {None}
        self._asked = {
            call.id
            for each in messages
            if each.role == "approval" or each.step_id in asking_steps
            for call in each.tool_calls or ()
        }
        self._requests = {each.id: [call.id for call in each.tool_calls or ()] for each in asking}
        self._steps: dict[str, str] = {}
        self.losses: list[tuple[str, str]] = []  # the message's id in the file, and a sentence

    def row(self, given: FileMessage) -> Message:
        role = _ROLES.get(given.role)
        if role is None:
            raise Invalid(f"the role {given.role!r} is unknown")
        named_so = given.model is not None and given.model == self._origin.model_name
        return Message(
            id=ids.new("message"),
            role=role,
            parts=self._parts(role, given),
            created_us=_moment(given.created_at, self._origin.now_us),
            step_id=self._step(given.step_id),
            otid=given.otid,
            name=given.name,
            sender_id=self._outer(given.sender_id),
            group_id=self._outer(given.group_id),
            batch_item_id=given.batch_item_id,
            model=self._origin.handle if named_so else given.model,
        )

    def _step(self, local: str | None) -> str | None:
        return None if local is None else self._steps.setdefault(local, ids.new("step"))

    def _outer(self, id: str | None) -> str | None:
        """Ids of the file itself, such as group-0, mean nothing outside of it."""
        if id is None or not _LOCAL_ID.fullmatch(id):
            return id
        return self._origin.new_ids.get(id)

    def _parts(self, role: Role, given: FileMessage) -> Parts:
        content = given.content if given.content is not None else given.text
        said = [TextPart(content)] if isinstance(content, str) else content or []
        match role:
            case "tool":
                return tuple(self._returns(given, said))
            case "approval" if not given.tool_calls:
                return tuple(self._decisions(given))
            case "summary":
                return (_summary("\n".join(part.text for part in said if isinstance(part, TextPart)), given),)
            case "assistant" | "approval":
                return (*self._spoken(given, said), *self._calls(given, said))
            case _:
                return tuple(part for each in said if (part := self._told(given, each)) is not None)

    def _told(self, given: FileMessage, part: ContentPart) -> AnyPart | None:
        if isinstance(part, TextPart):
            is_packed = given.role == "user" and not self._origin.is_ours
            return Text(_unpacked_user(part.text) if is_packed else part.text, part.signature)
        if isinstance(part, ImagePart):
            return self._image(given, part)
        self.losses.append((given.id, "reasoning and calls cannot stand in what a user says; they are left out"))
        return None

    def _spoken(self, given: FileMessage, said: Iterable[ContentPart]) -> Iterable[AnyPart]:
        thinks = self._origin.thinks_in_text and bool(given.tool_calls)
        for part in said:
            match part:
                case TextPart(text) if thinks:
                    if text:
                        yield Thoughts(text)
                case TextPart(text, signature):
                    yield Text(text, signature)
                case ImagePart():
                    yield self._image(given, part)
                case ReasoningPart(text, True, signature):
                    yield Reasoning(text, signature)
                case ReasoningPart(text):
                    yield Thoughts(text)
                case RedactedPart(data):
                    yield RedactedReasoning(data)
                case OmittedPart(signature):
                    yield OmittedReasoning(signature)
                case SummarizedPart(summary):
                    yield Reasoning("\n\n".join(each.text for each in summary))
                case _:
                    continue

    def _calls(self, given: FileMessage, said: Iterable[ContentPart]) -> Iterable[ToolCall]:
        listed = {call.id for call in given.tool_calls or ()}
        for part in said:
            if isinstance(part, CallPart) and part.id not in listed:
                yield ToolCall(part.id, part.name, msgspec.json.encode(part.input).decode(), part.signature)
        for call in given.tool_calls or ():
            yield ToolCall(call.id, call.function.name, call.function.arguments, call.signature)

    def _returns(self, given: FileMessage, said: Sequence[ContentPart]) -> Iterable[ToolReturn]:
        listed = given.tool_returns or []
        if not listed and given.tool_call_id is not None:
            texts = "\n".join(part.text for part in said if isinstance(part, TextPart))
            listed = [FileReturn(given.tool_call_id, _status_in(texts), texts)]
        if not listed:
            for part in said:
                if isinstance(part, ReturnPart):
                    status: Status = "error" if part.is_error else "success"
                    listed.append(FileReturn(part.tool_call_id, status, part.content))
        for each in listed:
            call_id = each.tool_call_id or given.tool_call_id or ""
            yield ToolReturn(
                call_id,
                self._names.get(call_id) or given.name or "unknown",
                each.status,
                self._content(given, each.func_response),
                _lines(each.stdout),
                _lines(each.stderr),
                was_asked=call_id in self._asked,
            )

    def _decisions(self, given: FileMessage) -> Iterable[Decision]:
        for each in given.approvals or ():
            if each.approve is None:
                returned = each.tool_return if each.func_response is None else each.func_response
                content = self._content(given, returned, is_packed=not self._origin.is_ours)
                yield ClientReturn(each.tool_call_id, content, each.status, _lines(each.stdout), _lines(each.stderr))
            else:
                yield _verdict(each.tool_call_id, each.approve, each.reason)
        if not given.approvals and given.approve is not None and given.approval_request_id is not None:
            # Old clients named the request; since requests may hold several calls, it is the call.
            for call_id in self._requests.get(given.approval_request_id, [given.approval_request_id]):
                yield _verdict(call_id, given.approve, given.denial_reason)

    def _content(
        self, given: FileMessage, returned: str | Sequence[TextPart | ImagePart] | None, *, is_packed: bool = True
    ) -> Content:
        if returned is None or isinstance(returned, str):
            return _unpacked_return(returned or "") if is_packed else returned or ""
        return tuple(
            Text(part.text, part.signature) if isinstance(part, TextPart) else self._image(given, part)
            for part in returned
        )

    def _image(self, given: FileMessage, part: ImagePart) -> Image | Text:
        source = part.source
        image = readable_image(source.media_type or "", source.data, source.detail) if source.data else None
        if image is not None:
            return image
        why = "is only named by its address" if source.type == "url" else "is not in the file, or cannot be read"
        self.losses.append((given.id, f"an image {why}; a note stands in its place"))
        return Text(IMAGE_MISSING)


def _verdict(call_id: str, approve: bool, reason: str | None) -> Approve | Deny:
    return Approve(call_id, reason) if approve else Deny(call_id, reason)


def _lines(lines: list[str] | None) -> tuple[str, ...] | None:
    return None if lines is None else tuple(lines)


def _moment(written: str | None, now_us: int) -> int:
    if written is None:
        return now_us
    try:
        return microseconds(datetime.fromisoformat(written))
    except (ValueError, OverflowError) as error:
        raise Invalid(f"created_at: {written!r} is not a date such as 2026-03-01T09:30:00+00:00") from error


def _object_in(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def _unpacked_return(text: str) -> str:
    packed = _object_in(text)
    if packed is None or packed.keys() != _ENVELOPE:
        return text
    message = packed["message"]
    return message if isinstance(message, str) else msgspec.json.encode(message).decode()


def _status_in(text: str) -> Status:
    return _STATUSES.get(str((_object_in(text) or {}).get("status")), "success")


def _unpacked_user(text: str) -> str:
    """What the user said, in the envelope that the first servers put around it."""
    packed = _object_in(text)
    if packed is None or packed.get("type") != "user_message" or not packed.keys() <= _USER_ENVELOPE:
        return text
    message = packed.get("message")
    return message if isinstance(message, str) else text


def _summary(text: str, given: FileMessage) -> Summary:
    packed = _object_in(text) or {}
    message = packed.get("message")
    if packed.get("type") != "system_alert" or not isinstance(message, str):
        return Summary(text, given.compaction, given.shown)
    ours = f"{model_history.SUMMARY_NOTE}\n\n"
    if message.startswith(ours):
        return Summary(message.removeprefix(ours), given.compaction, given.shown)
    return Summary(_OLD_INTRODUCTION.sub("", message, count=1), given.compaction, given.shown)
