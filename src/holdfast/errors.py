"""Every exception Holdfast raises on purpose.

HoldfastError
├─ RequestError        the caller's: becomes an HTTP answer that says what to do
│  ├─ NotFound               404
│  ├─ Invalid                400
│  ├─ Unprocessable          422
│  ├─ Unauthorized           401
│  ├─ Gone                   410
│  ├─ TooLarge               413
│  ├─ UnsupportedFile        415
│  ├─ NotAllowed             405
│  ├─ Unsupported            501
│  ├─ McpUnavailable         502   an MCP server could not be reached, or not understood
│  │  ├─ McpTimedOut         408
│  │  └─ McpLoginNeeded      502
│  ├─ McpNotRefreshed        404   what a refresh answers then
│  ├─ TooManyRuns            503   the server has as much to do as it takes on
│  └─ Conflict               409
│     ├─ Busy                     another run holds the thread
│     ├─ PendingApproval          a call waits for a decision
│     └─ NothingToCancel
├─ ModelError          the vendor's: ends the run as failed
│  ├─ RateLimited            429
│  │  └─ LimitReached             of HOLDFAST_PROVIDER_LIMITS, for longer than a call waits
│  ├─ Overloaded             503
│  ├─ ModelTimedOut          504
│  ├─ AuthRejected           401
│  ├─ QuotaExceeded          402
│  ├─ Refused                400   the request, or what it asks for, is not wanted
│  │  └─ AddressRefused           the provider's address is not one that users may name
│  ├─ Rejected               500   no permission, no such model, unprocessable
│  ├─ ContextTooLong         400   compacted and retried first
│  ├─ SystemPromptTooLong    400
│  ├─ EmptyReply             500
│  ├─ BadReply               400   unparsable
│  └─ ModelUnavailable       500   connection lost, 5xx, cut stream
├─ ToolError           the tool's: becomes a tool return, never an HTTP error
│  ├─ ToolFailed
│  └─ SandboxLost
├─ RunInterrupted      nobody's: control flow, never logged as an error
│  ├─ LeaseLost
│  ├─ HandedOver             a listener's run goes on elsewhere, or later
│  └─ ShuttingDown
├─ DatabaseError       the database's: 503; the same may succeed a moment later
├─ ConfigError         the operator's: refuses to start; 500 with its sentence when met later
│  └─ WrongKey               a stored secret cannot be opened
└─ BugError            ours: 500, loud
   └─ IllegalEvent
"""

from __future__ import annotations

from typing import ClassVar


class HoldfastError(Exception):
    """Base of all; the message is a sentence for the reader it is meant for."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(HoldfastError):
    status: ClassVar[int] = 400
    # letta-client retries every 409, 429 and 5xx by itself; a retry cannot help where this is False.
    retry_helps: ClassVar[bool] = False
    retry_after_s: int = 1  # where it helps

    def body(self) -> dict[str, object]:
        return {"detail": self.message}


class NotFound(RequestError):
    status = 404


class Invalid(RequestError):
    status = 400


class Unprocessable(RequestError):
    status = 422

    def __init__(self, message: str, examples: list[str] | None = None) -> None:
        super().__init__(message)
        self.examples = examples

    def body(self) -> dict[str, object]:
        shown: dict[str, object] = {"trace_id": "", "detail": self.message}
        if self.examples:
            shown["examples"] = self.examples
        return shown


class Unauthorized(RequestError):
    status = 401


class Gone(RequestError):
    status = 410


class TooLarge(RequestError):
    status = 413


class UnsupportedFile(RequestError):
    status = 415


class NotAllowed(RequestError):
    status = 405


class Unsupported(RequestError):
    status = 501


class McpUnavailable(RequestError):
    """Of a call it becomes the return; of a request, the answer."""

    status = 502
    error_type: ClassVar[str] = "mcp_connection_error"

    def body(self) -> dict[str, object]:
        return {"error": {"type": self.error_type, "message": self.message, "detail": self.message}}


class McpTimedOut(McpUnavailable):
    status = 408
    error_type = "mcp_timeout"


class McpLoginNeeded(McpUnavailable):
    error_type = "mcp_login_needed"


class McpNotRefreshed(RequestError):
    status = 404

    def __init__(self, server_name: str, reason: str) -> None:
        super().__init__(f"The tools of the MCP server {server_name!r} could not be listed. {reason}")
        self.server_name = server_name

    def body(self) -> dict[str, object]:
        shown = {"code": "MCPServerUnavailable", "message": self.message, "mcp_server_name": self.server_name}
        return {"detail": shown}


class TooManyRuns(RequestError):
    """Nothing was stored."""

    status = 503
    retry_helps = True

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Conflict(RequestError):
    status = 409


class Busy(Conflict):
    retry_helps = True

    def __init__(self, run_id: str | None) -> None:
        which = f" (run_id={run_id})" if run_id else ""
        wait = "it" if run_id else "the current request"
        super().__init__(
            f"CONFLICT: Cannot send a new message: Another request{which} is currently being processed for this "
            f"conversation. Please wait for {wait} to complete."
        )
        self.run_id = run_id

    def body(self) -> dict[str, object]:
        shown: dict[str, object] = {"detail": self.message}
        if self.run_id:
            shown["run_id"] = self.run_id
        return shown


class PendingApproval(Conflict):
    def __init__(self, request_id: str) -> None:
        super().__init__(
            "CONFLICT: Cannot send a new message: The agent is waiting for approval on a tool call. "
            "Please approve or deny the pending request before continuing."
        )
        self.request_id = request_id

    def body(self) -> dict[str, object]:
        return {"detail": {"code": "PENDING_APPROVAL", "message": self.message, "pending_request_id": self.request_id}}


class NothingToCancel(Conflict):
    pass


class ModelError(HoldfastError):
    """`wire_type` is the SSE error_type; `summary` the sentence shown to clients; the message is the vendor's text."""

    status: ClassVar[int] = 500
    wire_type: ClassVar[str] = "llm_error"
    http_type: ClassVar[str | None] = "llm_error"
    stop_reason: ClassVar[str] = "llm_api_error"
    summary: ClassVar[str] = "An error occurred with the LLM request."
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(ModelError):
    status, wire_type, http_type = 429, "llm_rate_limit", "llm_rate_limit"
    summary = "Rate limit exceeded for LLM model provider. Please wait before making another request."
    retryable = True


class LimitReached(RateLimited):
    """Ours: the call was not made."""

    summary = "The limit that this server has for the LLM model provider is used up. Please try again later."
    retryable = False  # it has been waited for as long as calls may wait


class Overloaded(ModelError):
    status, http_type = 503, None
    retryable = True


class ModelTimedOut(ModelError):
    status, wire_type, http_type = 504, "llm_timeout", "llm_timeout"
    summary = "The LLM request timed out. Please try again."


class AuthRejected(ModelError):
    status, wire_type, http_type = 401, "llm_authentication", "llm_authentication"
    summary = "Authentication failed with the LLM model provider."


class QuotaExceeded(ModelError):
    status, http_type = 402, "llm_insufficient_credits"


class Refused(ModelError):
    status, http_type = 400, "llm_bad_request"


class AddressRefused(Refused):
    pass


class Rejected(ModelError):
    pass


class ContextTooLong(ModelError):
    status, wire_type, http_type, stop_reason = 400, "internal_error", None, "error"
    summary = ""  # nothing tells more than the detail: clients are shown that


class SystemPromptTooLong(ModelError):
    status, http_type = 400, None
    wire_type = stop_reason = "context_window_overflow_in_system_prompt"
    summary = (
        "The system prompt alone does not fit the context window: shorten the instructions, memory blocks or tools."
    )


class EmptyReply(ModelError):
    wire_type, stop_reason = "llm_empty_response", "invalid_llm_response"
    summary = "LLM returned an empty response."


class BadReply(ModelError):
    status, wire_type, http_type, stop_reason = 400, "internal_error", None, "invalid_llm_response"
    summary = "The model's response could not be understood."


class NoToolCall(ModelError):
    """From a model that may answer in no other way."""

    stop_reason = "no_tool_call"


class ModelUnavailable(ModelError):
    retryable = True


class ToolError(HoldfastError):
    pass


class ToolFailed(ToolError):
    pass


class SandboxLost(ToolError):
    pass


class RunInterrupted(HoldfastError):
    pass


class LeaseLost(RunInterrupted):
    pass


class HandedOver(RunInterrupted):
    pass


class ShuttingDown(RunInterrupted):
    pass


class DatabaseError(HoldfastError):
    """The database could not do it now: disk full, locked for too long, connection lost, no answer, already closed.

    It says nothing about the request or the run that needed it: the same may succeed a moment later. Whether a write
    that failed with it has happened is not always known, so whoever repeats one must make sure by other means.
    """


class ConfigError(HoldfastError):
    pass


class WrongKey(ConfigError):
    pass


class BugError(HoldfastError):
    pass


class IllegalEvent(BugError):
    pass
