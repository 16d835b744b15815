"""What clients send about messages, runs and conversations. Shape only: whatever is wrong here is a 422.

`inputs.py` turns a request into core values and answers 400 for what is well-formed but makes no sense.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

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

from holdfast.wire.bounds import MAX_PARTS, JsonObject, Lines, Many, Name
from holdfast.wire.message_shapes import MessageType

MAX_STEPS: Final = 1_000_000
INT64_MAX: Final = 2**63 - 1
# Not pydantic's own mark, which would warn whenever the server reads the field.
_DEPRECATED: Final[JsonDict] = {"deprecated": True}


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
        return self.model_dump(mode="json", include=set(REQUEST_CONFIG_DEFAULTS))


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


class StepFeedback(BaseModel):
    """`tags` that were not sent stay."""

    feedback: Literal["positive", "negative"] | None = None
    tags: Many[Key] | None = None


# --- the context window ----------------------------------------------------------------------------------------------


class ResetMessagesRequest(BaseModel):
    add_default_initial_messages: bool = False


class CompactionSettingsInput(BaseModel):
    """Given fields override the agent's; `overrides` holds exactly those."""

    mode: Literal["sliding_window", "all", "self_compact_all", "self_compact_sliding_window"] = "sliding_window"
    model: Key | None = None
    model_settings: JsonObject | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool = False
    clip_chars: TokenCount | None = 50_000
    sliding_window_percentage: float = Field(default=0.30, gt=0, le=1)

    def overrides(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class CompactionRequest(BaseModel):
    compaction_settings: CompactionSettingsInput | None = None


class ConversationCompactionRequest(CompactionRequest):
    agent_id: Key | None = None


class ConversationRecompileRequest(BaseModel):
    agent_id: Key | None = None


# --- conversations ---------------------------------------------------------------------------------------------------


class CreateConversation(BaseModel):
    summary: ColumnText | None = None
    description: ColumnText | None = None
    isolated_block_labels: Ids | None = None
    model: Key | None = None
    model_settings: JsonObject | None = None
    context_window_limit: TokenCount | None = None
    hidden: bool | None = None


class UpdateConversation(BaseModel):
    """Only the fields that were sent are changed: `model_fields_set` tells null from absent."""

    summary: ColumnText | None = None
    description: ColumnText | None = None
    model: Key | None = None
    model_settings: JsonObject | None = None
    context_window_limit: TokenCount | None = None
    last_message_at: datetime | None = None
    archived: bool | None = None


class ForkConversation(BaseModel):
    """Query parameters. `message_id`: the last message the fork takes along."""

    agent_id: Key | None = None
    message_id: Key | None = None
    hidden: bool | None = None
