"""What a vendor's refusal means. The one place where status codes and error texts of vendors are understood.

Vendors agree on little: the same fact comes as a status, a type, a code or only as a sentence. All four are looked at,
the most telling first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

import msgspec

from holdfast.errors import (
    AuthRejected,
    ContextTooLong,
    ModelError,
    ModelTimedOut,
    ModelUnavailable,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    Refused,
    Rejected,
)
from holdfast.llm.broken_json import NOT_JSON

MAX_TEXT: Final = 2_000
_NAMES: Final = ("code", "type", "status", "__type")
_AMAZON: Final = "x-amzn-errortype"  # where it names the error; its bodies may not

# Named as vendors name them, by the `type`, `code` or `status` of their error objects.
_KINDS: Final[dict[str, type[ModelError]]] = {
    "context_length_exceeded": ContextTooLong,
    "exceed_context_size_error": ContextTooLong,
    "request_too_large": ContextTooLong,
    "insufficient_quota": QuotaExceeded,
    "billing_error": QuotaExceeded,
    "exceeded_current_quota_error": QuotaExceeded,
    "insufficient_credits": QuotaExceeded,
    "rate_limit_error": RateLimited,
    "rate_limit_exceeded": RateLimited,
    "resource_exhausted": RateLimited,
    "throttlingexception": RateLimited,
    "rate_limited": RateLimited,
    "3051": ContextTooLong,  # Mistral's number for it
    "authentication_error": AuthRejected,
    "invalid_api_key": AuthRejected,
    "api_key_invalid": AuthRejected,
    "unauthenticated": AuthRejected,
    "unrecognizedclientexception": AuthRejected,
    "invalidsignatureexception": AuthRejected,
    "expiredtokenexception": AuthRejected,
    "overloaded_error": Overloaded,
    "server_is_overloaded": Overloaded,
    "slow_down": Overloaded,
    "unavailable": Overloaded,
    "serviceunavailableexception": Overloaded,
    "modelnotreadyexception": Overloaded,
    "timeout": ModelTimedOut,
    "timeout_error": ModelTimedOut,
    "deadline_exceeded": ModelTimedOut,
    "modeltimeoutexception": ModelTimedOut,
    "permission_error": Rejected,
    "request_forbidden": Rejected,
    "permission_denied": Rejected,
    "accessdeniedexception": Rejected,
    "resourcenotfoundexception": Rejected,
    "not_found_error": Rejected,
    "model_not_found": Rejected,
    "content_filter": Refused,
    "content_policy_violation": Refused,
    "invalid_prompt": Refused,
    "invalid_request_error": Refused,
    "invalid_argument": Refused,
    "validationexception": Refused,
    "api_error": ModelUnavailable,
    "server_error": ModelUnavailable,
    "internal": ModelUnavailable,
    "internalserverexception": ModelUnavailable,
    "modelstreamerrorexception": ModelUnavailable,
    "modelerrorexception": ModelUnavailable,
}
_decode_error = msgspec.json.Decoder(dict[str, Any]).decode
_decode_errors = msgspec.json.Decoder(list[dict[str, Any]]).decode
_STATUSES: Final[dict[int, type[ModelError]]] = {
    400: Refused,
    401: AuthRejected,
    402: QuotaExceeded,
    408: ModelTimedOut,
    413: ContextTooLong,
    429: RateLimited,
    503: Overloaded,
    504: ModelTimedOut,
    529: Overloaded,
}
# Kinds so broad that the status, or the sentence, knows better.
_BROAD: Final = frozenset(
    {"invalid_request_error", "invalid_argument", "validationexception", "api_error", "server_error"}
)
_OVERFLOW: Final = re.compile(
    r"context (?:length|window|size|limit)|prompt is too long|input is too long|too many (?:input )?tokens"
    r"|maximum (?:context|prompt|input) length|input token count|exceeds? the (?:maximum|available) (?:number of )?"
    r"(?:tokens|context)|reduce the length of the (?:messages|prompt|input)"
    r"|model token limit|prompt exceeds max length|`inputs` (?:tokens \+|must have less than)",
    re.IGNORECASE,
)
_CREDITS: Final = re.compile(
    r"credit balance|insufficient (?:credits|balance|funds|quota)|exceeded your current quota", re.I
)
_WRONG_KEY: Final = re.compile(r"(?:incorrect|invalid) api key|api key (?:is )?(?:not valid|invalid)", re.I)
_KEYS: Final = re.compile(r"\b(?:(?:sk|pk|gsk|xai|key)[-_]|AIza)[A-Za-z0-9_\-*]{8,}")
_SECONDS: Final = r"\d{1,9}(?:\.\d{1,9})?"  # as many as mean anything: with more digits a number may be infinite
_RETRY_DELAY: Final = re.compile(rf'"retryDelay"\s*:\s*"({_SECONDS})s"'.encode())
_PREFIX: Final[dict[type[ModelError], str]] = {
    RateLimited: "Rate limited by",
    Overloaded: "Overloaded:",
    AuthRejected: "Authentication failed with",
    QuotaExceeded: "No credit left with",
    ModelTimedOut: "Timed out at",
    ContextTooLong: "Context too long for",
    Refused: "Bad request to",
    Rejected: "Rejected by",
    ModelUnavailable: "Error at",
}


def from_response(vendor: str, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """An answer that is not the beginning of a reply."""
    kinds, text = described(body)
    if amazon_type := headers.get(_AMAZON, ""):
        kinds = (amazon_type.partition(":")[0], *kinds)
    retry_after = _retry_after(headers)
    return failure(
        vendor,
        kinds,
        text or f"status {status}",
        status=status,
        retry_after=retry_delay(body) if retry_after is None else retry_after,
    )


def failure(
    vendor: str, kinds: tuple[str, ...], text: str, *, status: int | None = None, retry_after: float | None = None
) -> ModelError:
    """`kinds` is whatever the vendor calls it; `status` is None for an error that came inside a stream."""
    error = _class(tuple(kind.lower() for kind in kinds), text, status)
    named = f"{_PREFIX[error]} {vendor}: {hide_keys(text)[:MAX_TEXT]}"
    return error(
        f"{named} (status {status})" if status and error in (Rejected, ModelUnavailable) else named, retry_after
    )


def in_stream(vendor: str, found: dict[str, Any]) -> ModelError:
    """An error object in the place of an event. Some vendors put the status that it would have had into its code."""
    kinds, text = described_object(found)
    inner = found.get("error")
    error = cast("dict[str, Any]", inner) if isinstance(inner, dict) else found
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else None
    return failure(vendor, kinds, text, status=status)


def described(body: bytes) -> tuple[tuple[str, ...], str]:
    """The names that a vendor's error goes by, and its sentence."""
    try:
        found = _decode_errors(body) if body.lstrip().startswith(b"[") else [_decode_error(body)]
    except NOT_JSON:
        return (), " ".join(body.decode(errors="replace").split())[:MAX_TEXT]
    return described_object(found[0]) if found else ((), "")


def described_object(found: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    inner = found.get("error", found)
    try:
        error = msgspec.convert(inner, dict[str, Any])
    except msgspec.ValidationError:
        return (), str(inner)
    kinds = tuple(name for key in _NAMES if isinstance(name := error.get(key), str) and name)
    kinds = (*_reasons(error.get("details")), *kinds)
    text = (
        error.get("message") or error.get("detail") or error.get("msg") or error.get("Message") or found.get("message")
    )
    text = str(text) if text else msgspec.json.encode(error).decode()
    behind, why = _relayed(error.get("metadata"))
    return (*behind, *kinds), f"{text}: {why}" if why and why not in text else text


def _relayed(metadata: object) -> tuple[tuple[str, ...], str]:
    """OpenRouter says that "Provider returned error", and holds what the provider said as it came."""
    try:
        raw = msgspec.convert(metadata, dict[str, Any]).get("raw")
    except msgspec.ValidationError:
        return (), ""
    if isinstance(raw, dict):
        return described_object(cast("dict[str, Any]", raw))
    return described(raw.encode()) if isinstance(raw, str) else ((), "")


def retry_delay(body: bytes) -> float | None:
    """Google says in the body what others say in a header."""
    found = _RETRY_DELAY.search(body)
    return float(found[1]) if found else None


def hide_keys(text: str) -> str:
    """Vendors quote the key they were shown."""
    return _KEYS.sub("[key]", text)


def _reasons(details: object) -> tuple[str, ...]:
    """Google calls most mistakes an invalid argument, and says in the details which one it is."""
    try:
        found = msgspec.convert(details, list[dict[str, Any]])
    except msgspec.ValidationError:
        return ()
    return tuple(reason for detail in found if isinstance(reason := detail.get("reason"), str))


def _class(kinds: tuple[str, ...], text: str, status: int | None) -> type[ModelError]:
    telling = [_KINDS[kind] for kind in kinds if kind in _KINDS and kind not in _BROAD]
    if telling:
        return telling[0]
    if status != 429 and status != 401 and _OVERFLOW.search(text):
        return ContextTooLong
    if _CREDITS.search(text):
        return QuotaExceeded
    if status == 400 and _WRONG_KEY.search(text):
        return AuthRejected  # xAI calls it an invalid argument
    if status is not None:
        return _STATUSES.get(status) or (ModelUnavailable if status >= 500 else Rejected)
    broad = [_KINDS[kind] for kind in kinds if kind in _BROAD]
    return broad[0] if broad else ModelUnavailable


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from now, or none when the vendor did not say or named a moment that has passed."""
    for name, scale in (("retry-after-ms", 1_000.0), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if re.fullmatch(_SECONDS, text):
            return float(text) / scale
    if text := headers.get("retry-after", ""):
        return _seconds_until(text, headers.get("date", ""))
    return None


def _seconds_until(text: str, now: str) -> float | None:
    """Between the moments of two headers: whose clock is right does not matter."""
    try:
        return max(0.0, (_moment(text) - _moment(now)).total_seconds())
    except ValueError:
        return None


def _moment(text: str) -> datetime:
    """One that names no zone is of Greenwich, as those of headers should be."""
    found = parsedate_to_datetime(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
