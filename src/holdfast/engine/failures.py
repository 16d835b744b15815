"""One classifier: an exception becomes a stop reason and the structured error that every entry point shows."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.records import StopReason
from holdfast.core.retry_policy import asks_too_much
from holdfast.core.transitions import Failure
from holdfast.errors import ContextTooLong, LimitReached, ModelError


def classify(exception: Exception, run_id: str) -> Failure:
    """`http_status`, `http_type` and `retry_after` tell the blocking routes how to answer; clients see the
    rest."""
    if isinstance(exception, ModelError):
        stop_reason = msgspec.convert(exception.stop_reason, StopReason)
        code = _CODES.get(type(exception).__name__, "LLM_ERROR")
        detail = f"{code}: {exception.message}" if code else exception.message
        if asks_too_much(exception.retry_after) and not isinstance(exception, LimitReached):
            detail = (
                f"{detail.rstrip('.')}. The provider asks to wait {exception.retry_after:.0f} s before another try."
            )
        error = _error(run_id, exception.wire_type, exception.summary or detail, detail)
        error |= {"http_status": exception.status, "http_type": exception.http_type}
        if exception.retry_after is not None:
            error["retry_after"] = exception.retry_after
        return Failure(type(exception).__name__, stop_reason, error, isinstance(exception, ContextTooLong))
    message = "An unknown error occurred with the LLM streaming request."
    error = _error(run_id, "internal_error", message, f"{type(exception).__name__}: {exception}")
    error |= {"http_status": 500, "http_type": None}
    return Failure(type(exception).__name__, "error", error)


def _error(run_id: str, error_type: str, message: str, detail: str) -> dict[str, Any]:
    return {"error_type": error_type, "message": message, "detail": detail, "run_id": run_id}


_CODES = {
    "RateLimited": "RATE_LIMIT_EXCEEDED",
    "LimitReached": "RATE_LIMIT_EXCEEDED",
    "Overloaded": "OVERLOADED",
    "ModelTimedOut": "TIMEOUT",
    "AuthRejected": "UNAUTHENTICATED",
    "QuotaExceeded": "INSUFFICIENT_CREDITS",
    "Refused": "INVALID_ARGUMENT",
    "Rejected": "REJECTED",
    "ContextTooLong": "CONTEXT_WINDOW_EXCEEDED",
    "SystemPromptTooLong": "CONTEXT_WINDOW_EXCEEDED",
    "EmptyReply": "EMPTY_RESPONSE",
    "BadReply": "INVALID_RESPONSE",
    "NoToolCall": None,  # programs compare the whole sentence
    "ModelUnavailable": "INTERNAL_SERVER_ERROR",
}
