"""What a fake vendor is to say, in our words; each protocol puts it into its own."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from holdfast import errors
from holdfast.core.deltas import Delta
from holdfast.llm.base import ModelRequest

FailureKind = Literal[
    "rate_limit",
    "auth",
    "quota",
    "overflow",
    "overloaded",
    "server",
    "bad_request",
    "timeout",
    "permission",
    "not_found",
]
ERRORS: dict[FailureKind, type[errors.ModelError]] = {
    "rate_limit": errors.RateLimited,
    "auth": errors.AuthRejected,
    "quota": errors.QuotaExceeded,
    "overflow": errors.ContextTooLong,
    "overloaded": errors.Overloaded,
    "server": errors.ModelUnavailable,
    "bad_request": errors.Refused,
    "timeout": errors.ModelTimedOut,
    "permission": errors.Rejected,
    "not_found": errors.Rejected,
}

THINKS = "thinks"  # a setting of a request that was understood: whether thoughts were asked for


class Failure(msgspec.Struct, frozen=True):
    """Told by status before a reply begins, or within the stream when it has begun."""

    kind: FailureKind
    message: str = "the vendor says no"
    retry_after: float | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True):
    deltas: tuple[Delta, ...] = ()
    failure: Failure | None = None
    fails_after: int | None = None  # deltas; None: instead of a reply
    hangs: Literal["before_headers", "before_content", "mid_stream"] | None = None
    cut_after: int | None = None  # the connection is lost after so many deltas
    piece_bytes: int | tuple[int, ...] | None = None  # how many go out at a time, in turn; None: an event at a time
    noise: bool = False  # comments, and events of kinds that nobody knows, between the others
    body: bytes | None = None  # sent as it stands, instead of a reply


class Rendering(Protocol):
    """One reply in the words of a protocol. Every item is one whole event."""

    def begin(self) -> list[bytes]: ...

    def delta(self, delta: Delta) -> list[bytes]:
        """Includes UsageDelta and Finish, which may be kept until the end."""
        ...

    def end(self) -> list[bytes]: ...

    def failure(self, failure: Failure) -> list[bytes]:
        """An error after the reply has begun."""
        ...

    def noise(self) -> list[bytes]: ...


class VendorProtocol(Protocol):
    @property
    def name(self) -> str: ...

    def answers(self, method: str, path: str) -> bool: ...

    def listing(self, path: str) -> bytes | None:
        """The answer to a GET, such as the list of models; None when there is nothing at that path."""
        ...

    def complaint(self, path: str, body: dict[str, object]) -> str | None:
        """Why the real vendor would answer 400: calls and returns that do not pair, roles out of order, …"""
        ...

    def decode(self, path: str, body: dict[str, object]) -> ModelRequest: ...

    def rendering(self, path: str, body: dict[str, object]) -> Rendering: ...

    def refusal(self, failure: Failure) -> tuple[int, bytes]:
        """Status and body of an answer that is not a reply."""
        ...


def failure_of(error: errors.ModelError) -> Failure:
    for kind, known in ERRORS.items():
        if known is type(error):
            return Failure(kind, error.message, error.retry_after)
    return Failure("server", error.message, error.retry_after)
