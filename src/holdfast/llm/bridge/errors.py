"""Whatever went wrong below, in the words of our errors."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import msgspec
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelTimeoutError, UnexpectedModelBehavior, UserError

from holdfast.errors import AddressRefused, BadReply, ModelError, ModelTimedOut, ModelUnavailable, Refused
from holdfast.llm import failures
from holdfast.llm.bridge.vendor import Errors
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import without_key
from holdfast.netguard import NotPublic


class named_failures:
    """Says of a failure which vendor it was. What is neither the library's nor the network's passes as it is."""

    def __init__(self, endpoint: Endpoint, waited_s: float, errors: Errors | None = None) -> None:
        self._endpoint = endpoint
        self._errors = errors or {}
        self._waited_s = waited_s

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, StopAsyncIteration | ModelError):
            return
        if (named := self._named(error)) is not None:
            raise named from error

    def _named(self, error: Exception) -> ModelError | None:
        vendor = f"{self._endpoint.provider_name} ({self._endpoint.base_url})"
        for cause in _causes(error):
            match cause:
                case ModelError():
                    return cause
                case NotPublic():
                    return AddressRefused(f"{vendor} is not called: {cause.strerror}")
                case TimeoutError() | httpx2.TimeoutException():
                    return ModelTimedOut(f"{vendor} did not answer within {self._waited_s:g} seconds.")
                case httpx2.ConnectError():
                    return ModelUnavailable(f"{vendor} cannot be reached: {cause}.")
                case httpx2.TransportError() | OSError():
                    return ModelUnavailable(f"The connection to {vendor} was lost: {cause}")
                case _:
                    pass
            known = next((ours for theirs, ours in self._errors.items() if isinstance(cause, theirs)), None)
            if known is not None:
                return known(f"{vendor} cannot be asked: {_shown(self._endpoint, str(cause))}")
        return _said_by_library(self._endpoint, error)


def _said_by_library(endpoint: Endpoint, error: Exception) -> ModelError | None:
    """For vendors whose SDK does not use our client, and for what the library itself objects to."""
    vendor = endpoint.provider_name
    match error:
        case ModelHTTPError():
            detail = error.body if error.body is not None else {"message": error.message}
            body = detail.encode() if isinstance(detail, str) else msgspec.json.encode(detail, enc_hook=str)
            return failures.from_response(vendor, error.status_code, error.headers or {}, without_key(endpoint, body))
        case ModelTimeoutError():
            return ModelTimedOut(f"{vendor} timed out: {_shown(endpoint, error.message)}")
        case ModelAPIError():
            kinds = tuple(kind for kind in (error.provider_error_code, error.provider_error_type) if kind)
            return failures.failure(vendor, kinds, _shown(endpoint, error.message), retry_after=error.retry_after)
        case UnexpectedModelBehavior():
            shown = _shown(endpoint, error.message)
            return BadReply(f"{vendor} replied with something that cannot be understood: {shown}")
        case UserError():
            return Refused(f"{vendor} cannot be asked for this: {_shown(endpoint, error.message)}")
        case ValueError() | TypeError() | LookupError() | AttributeError() | AssertionError() | RecursionError():
            # What library and SDK do when a vendor says something of a shape that they do not expect.
            shown = _shown(endpoint, repr(error))
            return BadReply(f"{vendor} replied with something that cannot be understood: {shown:.500}")
        case _:
            return None


def _shown(endpoint: Endpoint, message: str) -> str:
    """Libraries quote what they were told, and vendors the key they were shown."""
    text = without_key(endpoint, message.encode(errors="replace")).decode()
    return failures.hide_keys(text)[: failures.MAX_TEXT]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What a failure came from, innermost last. SDKs wrap what they catch."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
