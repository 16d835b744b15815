"""The message types as the OpenAPI document shows them. `messages.py` builds them; nothing validates them on their way.

`typing_extensions` because pydantic refuses the standard library's TypedDict before Python 3.12.
Annotations are not postponed here: a TypedDict that sees only their text does not notice NotRequired.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from holdfast.core.records import StopReason

MessageType = Literal[
    "system_message",
    "user_message",
    "assistant_message",
    "reasoning_message",
    "hidden_reasoning_message",
    "tool_call_message",
    "tool_return_message",
    "approval_request_message",
    "approval_response_message",
    "summary_message",
    "event_message",
]
ReturnStatus = Literal["success", "error"]


class Envelope(TypedDict):
    id: str
    date: str
    name: str | None
    otid: str | None
    sender_id: str | None
    step_id: str | None
    is_err: bool | None
    seq_id: int | None
    run_id: str | None


class TextPart(TypedDict):
    type: Literal["text"]
    text: str
    signature: str | None


class ImageSource(TypedDict):
    type: Literal["base64"]
    media_type: str
    data: str
    detail: str | None


class ImagePart(TypedDict):
    type: Literal["image"]
    source: ImageSource


ContentPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class SystemMessage(Envelope):
    message_type: Literal["system_message"]
    content: str


class UserMessage(Envelope):
    message_type: Literal["user_message"]
    content: str | list[ContentPart]


class AssistantMessage(Envelope):
    message_type: Literal["assistant_message"]
    content: str


class ReasoningMessage(Envelope):
    message_type: Literal["reasoning_message"]
    source: Literal["reasoner_model", "non_reasoner_model"]
    reasoning: str
    signature: str | None


class HiddenReasoningMessage(Envelope):
    message_type: Literal["hidden_reasoning_message"]
    state: Literal["redacted", "omitted"]
    hidden_reasoning: str | None


class ToolCallView(TypedDict):
    name: str
    arguments: str
    tool_call_id: str


class ToolCallDelta(TypedDict):
    """A fragment, in token streams only."""

    name: NotRequired[str | None]
    arguments: NotRequired[str | None]
    tool_call_id: NotRequired[str | None]


class ToolCallMessage(Envelope):
    message_type: Literal["tool_call_message"]
    tool_call: ToolCallView | ToolCallDelta
    tool_calls: list[ToolCallView] | ToolCallDelta | None


class ApprovalRequestMessage(Envelope):
    message_type: Literal["approval_request_message"]
    tool_call: ToolCallView | ToolCallDelta
    tool_calls: list[ToolCallView] | ToolCallDelta | None


class ToolReturnView(TypedDict):
    type: Literal["tool"]
    tool_return: str | list[ContentPart]
    status: ReturnStatus
    tool_call_id: str
    stdout: list[str] | None
    stderr: list[str] | None


class ToolReturnMessage(Envelope):
    message_type: Literal["tool_return_message"]
    tool_return: str
    status: ReturnStatus
    tool_call_id: str
    stdout: list[str] | None
    stderr: list[str] | None
    tool_returns: list[ToolReturnView]


class ApprovalView(TypedDict):
    type: Literal["approval"]
    tool_call_id: str
    approve: bool
    reason: str | None


class ApprovalResponseMessage(Envelope):
    message_type: Literal["approval_response_message"]
    approvals: list[Annotated[ApprovalView | ToolReturnView, Field(discriminator="type")]]
    approve: bool | None
    approval_request_id: str | None
    reason: str | None


class CompactionStatsView(TypedDict):
    trigger: str
    context_window: int
    messages_count_before: int
    messages_count_after: int
    context_tokens_before: int | None
    context_tokens_after: int | None


class SummaryMessage(Envelope):
    message_type: Literal["summary_message"]
    summary: str
    compaction_stats: CompactionStatsView | None


class EventMessage(Envelope):
    message_type: Literal["event_message"]
    event_type: Literal["compaction", "retry"]
    event_data: dict[str, Any]
    content: NotRequired[str]


class Ping(Envelope):
    message_type: Literal["ping"]


class StopReasonView(TypedDict):
    message_type: Literal["stop_reason"]
    stop_reason: StopReason
    run_id: NotRequired[str]
    seq_id: NotRequired[int | None]


class UsageStatistics(TypedDict):
    message_type: Literal["usage_statistics"]
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    step_count: int
    run_ids: list[str] | None
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    context_tokens: int | None
    run_id: NotRequired[str]
    seq_id: NotRequired[int | None]


class ErrorMessage(TypedDict):
    message_type: Literal["error_message"]
    run_id: str
    error_type: str
    message: str
    detail: NotRequired[str]
    seq_id: NotRequired[int]


StreamEvent = Annotated[
    SystemMessage
    | UserMessage
    | AssistantMessage
    | ReasoningMessage
    | HiddenReasoningMessage
    | ToolCallMessage
    | ToolReturnMessage
    | ApprovalRequestMessage
    | ApprovalResponseMessage
    | SummaryMessage
    | EventMessage
    | Ping
    | StopReasonView
    | UsageStatistics
    | ErrorMessage,
    Field(discriminator="message_type"),
]
