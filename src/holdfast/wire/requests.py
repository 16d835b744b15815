"""What clients send about messages and runs, and what it means in core values.

Shape only is checked by the models: whatever is wrong there is a 422. `input_of` turns a request into core values, and
answers 400 for what is well-formed but makes no sense.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic.config import JsonDict

from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    Content,
    Decision,
    Deny,
    Image,
    OmittedReasoning,
    Parts,
    Reasoning,
    RedactedReasoning,
    Text,
    readable_image,
)
from holdfast.errors import Invalid
from holdfast.wire.bounds import MAX_PARTS, JsonObject, Lines, Many, Name
from holdfast.wire.message_shapes import MessageType

MAX_STEPS: Final = 1_000_000
INT64_MAX: Final = 2**63 - 1
# Not pydantic's own mark, which would warn whenever the server reads the field.
_DEPRECATED: Final[JsonDict] = {"deprecated": True}
PartT = TypeVar("PartT", bound=AnyPart)
InputRole = Literal["user", "system", "assistant"]


class TextContent(BaseModel):
    type: Literal["text"] = "text"
    text: str
    signature: str | None = None


class UrlImage(BaseModel):
    type: Literal["url"] = "url"
    url: str


class Base64Image(BaseModel):
    type: Literal["base64"] = "base64"
    media_type: str = Field(max_length=256)
    data: str
    detail: Name | None = None


class LettaImage(BaseModel):
    type: Literal["letta"] = "letta"
    file_id: str
    media_type: Name | None = None
    data: str | None = None
    detail: Name | None = None


class ImageContent(BaseModel):
    type: Literal["image"] = "image"
    source: Annotated[UrlImage | Base64Image | LettaImage, Field(discriminator="type")]


class ToolCallContent(BaseModel):
    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: JsonObject
    signature: str | None = None


class ToolReturnContent(BaseModel):
    type: Literal["tool_return"] = "tool_return"
    tool_call_id: str
    content: str
    is_error: bool


class ReasoningContent(BaseModel):
    type: Literal["reasoning"] = "reasoning"
    is_native: bool
    reasoning: str
    signature: str | None = None


class RedactedReasoningContent(BaseModel):
    type: Literal["redacted_reasoning"] = "redacted_reasoning"
    data: str


class OmittedReasoningContent(BaseModel):
    type: Literal["omitted_reasoning"] = "omitted_reasoning"
    signature: str | None = None


class SummarizedReasoningPart(BaseModel):
    index: int
    text: str


class SummarizedReasoningContent(BaseModel):
    type: Literal["summarized_reasoning"] = "summarized_reasoning"
    id: str
    summary: Many[SummarizedReasoningPart]
    encrypted_content: str | None = None


AnyContent = Annotated[
    TextContent
    | ImageContent
    | ToolCallContent
    | ToolReturnContent
    | ReasoningContent
    | RedactedReasoningContent
    | OmittedReasoningContent
    | SummarizedReasoningContent,
    Field(discriminator="type"),
]
ReturnContent = Annotated[TextContent | ImageContent, Field(discriminator="type")]


def _without_nul(text: str) -> str:
    # PostgreSQL cannot hold it in a text column.
    if "\x00" in text:
        raise ValueError("text must not contain the character NUL")
    return text


ColumnText = Annotated[str, AfterValidator(_without_nul)]
Key = Annotated[str, StringConstraints(max_length=256), AfterValidator(_without_nul)]
WebUrl = Annotated[str, StringConstraints(max_length=2048, pattern=r"^https?://[^\s]+$"), AfterValidator(_without_nul)]
Ids = Many[Key]
TokenCount = Annotated[int, Field(ge=1, le=INT64_MAX)]


# --- one item of a request -------------------------------------------------------------------------------------------


class MessageCreate(BaseModel):
    type: Literal["message"] | None = "message"
    role: Literal["user", "system", "assistant"]
    content: str | Many[AnyContent]
    otid: Key | None = None
    name: Key | None = None
    sender_id: Key | None = None
    group_id: Key | None = None
    batch_item_id: Key | None = None


class ApprovalReturn(BaseModel):
    type: Literal["approval"] = "approval"
    tool_call_id: str
    approve: bool
    reason: str | None = None


class ToolReturn(BaseModel):
    type: Literal["tool"] = "tool"
    tool_call_id: str
    tool_return: str | Many[ReturnContent]
    status: Literal["success", "error"]
    stdout: Lines | None = None
    stderr: Lines | None = None


def _answer_kind(item: Any) -> str | None:
    """The SDK's types let a caller leave `type` out, so it is told from the other keys."""
    if isinstance(item, BaseModel):
        return getattr(item, "type", None)
    if not isinstance(item, dict):
        return None
    return item.get("type") or ("tool" if "tool_return" in item else "approval")  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]


Answer = Annotated[
    Annotated[ApprovalReturn, Tag("approval")] | Annotated[ToolReturn, Tag("tool")], Discriminator(_answer_kind)
]


class ApprovalCreate(BaseModel):
    type: Literal["approval"] = "approval"
    approvals: Many[Answer] | None = None
    approve: bool | None = Field(default=None, json_schema_extra=_DEPRECATED)
    approval_request_id: str | None = Field(default=None, json_schema_extra=_DEPRECATED)
    reason: str | None = Field(default=None, json_schema_extra=_DEPRECATED)
    otid: Key | None = None
    group_id: Key | None = None


class ToolReturnCreate(BaseModel):
    type: Literal["tool_return"] = "tool_return"
    tool_returns: Many[ToolReturn]
    otid: Key | None = None
    group_id: Key | None = None


def _item_kind(item: Any) -> str | None:
    if isinstance(item, BaseModel):
        return getattr(item, "type", None) or "message"
    if not isinstance(item, dict):
        return None
    legacy = "approve" in item or "approval_request_id" in item
    return item.get("type") or ("approval" if legacy else "message")  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]


Item = Annotated[
    Annotated[MessageCreate, Tag("message")]
    | Annotated[ApprovalCreate, Tag("approval")]
    | Annotated[ToolReturnCreate, Tag("tool_return")],
    Discriminator(_item_kind),
]


# --- sending ---------------------------------------------------------------------------------------------------------


class ClientTool(BaseModel):
    name: Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_without_nul)]
    description: str | None = None
    parameters: JsonObject | None = None


class ClientSkill(BaseModel):
    name: Name
    description: str
    location: str


class LettaRequest(BaseModel):
    messages: Many[Item] | None = None
    input: str | Many[AnyContent] | None = None
    max_steps: int = Field(default=50, ge=1, le=MAX_STEPS)
    include_return_message_types: Many[MessageType] | None = None
    client_tools: Many[ClientTool] | None = None
    client_skills: Many[ClientSkill] | None = None
    override_model: Key | None = None
    override_system: str | None = Field(default=None, validation_alias=AliasChoices("override_system", "system"))
    include_compaction_messages: bool = False
    return_logprobs: bool = False
    top_logprobs: int | None = None
    return_token_ids: bool = False
    use_assistant_message: bool = Field(default=True, json_schema_extra=_DEPRECATED)
    assistant_message_tool_name: Name = Field(default="send_message", json_schema_extra=_DEPRECATED)
    assistant_message_tool_kwarg: Name = Field(default="message", json_schema_extra=_DEPRECATED)
    enable_thinking: Name | bool = Field(default=True, json_schema_extra=_DEPRECATED)

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if (self.messages is None) == (self.input is None):
            raise ValueError("Exactly one of `messages` and `input` must be given")
        if self.messages is None:
            return self
        if not self.messages:
            raise ValueError("Messages must not be empty")
        if not all(isinstance(item, MessageCreate) for item in self.messages[1:]):
            raise ValueError("Only the first of `messages` may be an approval or a tool return")
        contents = (item.content for item in self.messages if isinstance(item, MessageCreate))
        parts = sum(len(content) for content in contents if not isinstance(content, str))
        if parts > MAX_PARTS:
            raise ValueError(f"The messages hold {parts} content parts in all; at most {MAX_PARTS} are accepted")
        return self

    @property
    def include_types(self) -> frozenset[str] | None:
        types = self.include_return_message_types
        return None if types is None else frozenset(types)

    def request_config(self) -> dict[str, Any]:
        """What a run keeps of its request, as clients read it back."""
        return {name: getattr(self, name) for name in REQUEST_CONFIG_DEFAULTS}


REQUEST_CONFIG_DEFAULTS: Final[dict[str, Any]] = {
    "use_assistant_message": True,
    "assistant_message_tool_name": "send_message",
    "assistant_message_tool_kwarg": "message",
    "include_return_message_types": None,
}


class LettaStreamingRequest(LettaRequest):
    """The body of the stream route, where `streaming` goes without saying."""

    streaming: bool = False
    stream_tokens: bool = False
    include_pings: bool = True
    background: bool = False


class LettaMessageRequest(LettaStreamingRequest):
    """The body of the main route. A stream option without a stream is a mistake its sender should hear about."""

    @model_validator(mode="after")
    def _streams_if_it_says_so(self) -> Self:
        if not self.streaming and (self.stream_tokens or self.background or not self.include_pings):
            raise ValueError(
                "Streaming options set without streaming enabled. "
                "Set `streaming` to true, or leave out `stream_tokens`, `background` and `include_pings`."
            )
        return self


class LettaAsyncRequest(LettaRequest):
    callback_url: WebUrl | None = None


class ConversationMessageRequest(LettaStreamingRequest):
    streaming: bool = True
    agent_id: Key | None = None


# --- runs ------------------------------------------------------------------------------------------------------------


class CancelAgentRunRequest(BaseModel):
    run_ids: Ids | None = None


class RetrieveStreamRequest(BaseModel):
    """`poll_interval` and `batch_size` are accepted for old clients; streams are pushed, so they change nothing."""

    agent_id: Key | None = None
    run_id: Key | None = None
    otid: Key | None = None
    starting_after: int = Field(default=0, ge=0, le=INT64_MAX)
    include_pings: bool | None = True
    poll_interval: float | None = 0.1
    batch_size: int | None = 100


# --- what was sent, in core values -----------------------------------------------------------------------------------


class UnresolvedImage(Image, frozen=True, tag="unresolved_image"):
    """Stands where an image will be once its url is fetched. No store can read it back: resolve it first."""

    @property
    def url(self) -> str:
        return self.data


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: InputRole
    parts: Parts
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    batch_item_id: str | None = None


class ParsedInput(msgspec.Struct, frozen=True, kw_only=True):
    """`decisions` is None for a plain request; an empty tuple is an approval that decides nothing."""

    messages: tuple[NewMessage, ...] = ()
    decisions: tuple[Decision, ...] | None = None
    decision_otid: str | None = None
    otids: tuple[str, ...] = ()  # the client's, in the order of the request
    request_key: str | None = None  # same otids and content; None unless every item had an otid

    @property
    def image_urls(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.url for part in self._parts() if isinstance(part, UnresolvedImage)))

    def _parts(self) -> Iterator[AnyPart]:
        for message in self.messages:
            yield from message.parts
        for decision in self.decisions or ():
            if isinstance(decision, ClientReturn) and not isinstance(decision.content, str):
                yield from decision.content


def input_of(request: LettaRequest) -> ParsedInput:
    items = request.messages
    if items is None:
        return ParsedInput(messages=(_message(MessageCreate(role="user", content=request.input or "")),))
    first = items[0]
    otids = tuple(item.otid for item in items if item.otid)
    answer = None if isinstance(first, MessageCreate) else first
    messages = tuple(_message(item) for item in items if isinstance(item, MessageCreate))
    decisions = None if answer is None else _decisions(answer)
    return ParsedInput(
        messages=messages,
        decisions=decisions,
        decision_otid=(answer and answer.otid) or None,
        otids=otids,
        request_key=_request_key(otids, messages, decisions) if len(otids) == len(items) else None,
    )


def resolve_images(parsed: ParsedInput, images: Mapping[str, Image]) -> ParsedInput:
    """`images` by url; it must hold every one of `parsed.image_urls`."""
    messages = tuple(
        msgspec.structs.replace(message, parts=tuple(_resolved(part, images) for part in message.parts))
        for message in parsed.messages
    )
    decisions = parsed.decisions and tuple(_resolved_decision(each, images) for each in parsed.decisions)
    return msgspec.structs.replace(parsed, messages=messages, decisions=decisions)


def _resolved(part: PartT, images: Mapping[str, Image]) -> PartT | Image:
    return images[part.url] if isinstance(part, UnresolvedImage) else part


def _resolved_decision(decision: Decision, images: Mapping[str, Image]) -> Decision:
    if not isinstance(decision, ClientReturn) or isinstance(decision.content, str):
        return decision
    return msgspec.structs.replace(decision, content=tuple(_resolved(part, images) for part in decision.content))


def _request_key(otids: Sequence[str], messages: Sequence[NewMessage], decisions: Sequence[Decision] | None) -> str:
    """The content is part of it: some clients count their otids from one again, and that is no repetition."""
    whole = msgspec.json.encode((otids, messages, decisions))
    return hashlib.blake2b(whole, digest_size=16, person=b"holdfast-request").hexdigest()


# --- answers to held calls -------------------------------------------------------------------------------------------


def _is_legacy(item: ApprovalCreate) -> bool:
    return item.approvals is None and (item.approve is not None or item.approval_request_id is not None)


def _decisions(item: ApprovalCreate | ToolReturnCreate) -> tuple[Decision, ...]:
    if isinstance(item, ToolReturnCreate):
        return tuple(_client_return(each) for each in item.tool_returns)
    if _is_legacy(item):
        return (_verdict(item.approval_request_id or "", bool(item.approve), item.reason),)
    return tuple(_decision(each) for each in item.approvals or ())


def _decision(answer: ApprovalReturn | ToolReturn) -> Decision:
    if isinstance(answer, ToolReturn):
        return _client_return(answer)
    return _verdict(answer.tool_call_id, answer.approve, answer.reason)


def _verdict(call_id: str, approve: bool, reason: str | None) -> Approve | Deny:
    return Approve(call_id, reason) if approve else Deny(call_id, reason)


def _client_return(given: ToolReturn) -> ClientReturn:
    return ClientReturn(
        given.tool_call_id,
        _return_content(given.tool_return),
        given.status,
        None if given.stdout is None else tuple(given.stdout),
        None if given.stderr is None else tuple(given.stderr),
    )


def _return_content(content: str | list[ReturnContent]) -> Content:
    if isinstance(content, str):
        return content
    return tuple(_text(part) if isinstance(part, TextContent) else _image(part) for part in content)


# --- messages --------------------------------------------------------------------------------------------------------


def _message(item: MessageCreate) -> NewMessage:
    parts = _parts(item.role, item.content)
    if not any(isinstance(part, Image) or (isinstance(part, Text) and part.text.strip()) for part in parts):
        raise Invalid("Message content is empty or invalid")
    return NewMessage(
        role=item.role,
        parts=parts,
        otid=item.otid or None,
        name=item.name,
        sender_id=item.sender_id,
        group_id=item.group_id,
        batch_item_id=item.batch_item_id,
    )


def _parts(role: InputRole, content: str | list[AnyContent]) -> Parts:
    if isinstance(content, str):
        return (Text(content),)
    # Vendors refuse a message that holds an empty text, even next to an image.
    return tuple(_part(role, part) for part in content if not isinstance(part, TextContent) or part.text)


def _part(role: InputRole, part: AnyContent) -> AnyPart:
    match part:
        case TextContent():
            return _text(part)
        case ImageContent() if role == "user":
            return _image(part)
        case ReasoningContent() if role == "assistant":
            return Reasoning(part.reasoning, part.signature)
        case RedactedReasoningContent() if role == "assistant":
            return RedactedReasoning(part.data)
        case OmittedReasoningContent() if role == "assistant":
            return OmittedReasoning(part.signature)
        case _:
            raise Invalid(f"Content of type '{part.type}' cannot be sent in a message of role '{role}'")


def _text(part: TextContent) -> Text:
    return Text(part.text, part.signature)


def _image(part: ImageContent) -> Image:
    match part.source:
        case Base64Image(media_type=media_type, data=data, detail=detail):
            return _readable(media_type, data, detail)
        case UrlImage(url=url):
            return _image_at(url)
        case LettaImage():
            raise Invalid("Images of source type 'letta' are not supported. Send the image as base64 or as a url.")


def _image_at(url: str) -> Image:
    scheme = url.partition(":")[0].lower()
    if scheme in ("http", "https"):
        return UnresolvedImage(media_type="", data=url)
    if scheme == "data":
        return _image_in(url)
    raise Invalid(f"Unsupported image URL scheme '{scheme[:32]}'. Use http, https or data.")


def _readable(media_type: str, data: str, detail: str | None = None) -> Image:
    image = readable_image(media_type, data, detail)
    if image is None:
        raise Invalid(f"What was sent as {media_type} is not an image in base64: its data or its media type is wrong.")
    return image


def _image_in(data_url: str) -> Image:
    head, comma, payload = data_url[len("data:") :].partition(",")
    media_type, *parameters = (piece.strip().lower() for piece in head.split(";"))
    if not comma or not payload or not media_type.startswith("image/"):
        raise Invalid("An image in a data: URL must look like data:image/png;base64,…")
    is_encoded = "base64" in parameters
    return _readable(media_type, payload if is_encoded else base64.b64encode(unquote_to_bytes(payload)).decode())
