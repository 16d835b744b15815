"""What a failure means: how it is told, and whether a model call that failed is tried again (decision 10).

One classifier: an exception becomes a stop reason and the structured error that every entry point shows. Tries follow
each other with exponential backoff and jitter. Pure: the random number is an argument.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from holdfast.core.records import StopReason
from holdfast.errors import ContextTooLong, LimitReached, ModelError

# If a vendor asks for a longer pause than this, the run fails at once and says so: its caller would wait too long.
LONGEST_PAUSE_S: Final = 60.0
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


class Failure(msgspec.Struct, frozen=True):
    kind: str  # the exception's class
    stop_reason: StopReason
    error: dict[str, Any]
    overflow: bool = False

    def data(self) -> dict[str, Any]:
        """What a failed step shows."""
        return {"message": self.error["message"], "traceback": None, "details": self.error}


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


class RetryPolicy(msgspec.Struct, frozen=True):
    retries: int = 3  # tries after the first
    first_pause_s: float = 0.5


def pause_ms(retry_policy: RetryPolicy, failures: int, retry_after_s: float | None, chance: float) -> int | None:
    """How long to wait now that `failures` tries have failed; None: give up.

    A pause is about twice the one before it. `chance`, from 0 to 1, is the jitter: it keeps runs that failed together
    from trying again together. A pause that the vendor asks for has precedence.
    """
    if failures > retry_policy.retries or asks_too_much(retry_after_s):
        return None
    if retry_after_s is not None:
        return math.ceil(retry_after_s * 1_000)
    doubled = min(retry_policy.first_pause_s * 2 ** (failures - 1), LONGEST_PAUSE_S)
    return round(doubled * 1_000 * (0.5 + chance / 2))


def left_ms(pause_ms: int, since_us: int, now_us: int) -> int:
    """What is left of a pause that began at `since_us`, by the clock of who waits now, which may not be the same.

    So it may seem not to have begun yet: even then the whole of it is enough.
    """
    return pause_ms - min(max(0, (now_us - since_us) // 1_000), pause_ms)


def asks_too_much(retry_after_s: float | None) -> bool:
    return retry_after_s is not None and retry_after_s > LONGEST_PAUSE_S
