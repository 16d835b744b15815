"""A model asked through pydantic-ai: one request out, one stream of deltas in, and failures as errors of ours."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from typing import Final, Protocol, cast

import httpx2
import msgspec
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelTimeoutError, UnexpectedModelBehavior, UserError
from pydantic_ai.models import StreamedResponse

from holdfast.core.deltas import Delta
from holdfast.errors import AddressRefused, BadReply, ModelError, ModelTimedOut, ModelUnavailable, Refused, Rejected
from holdfast.llm import failures
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.bridge.messages import messages, parameters, with_called_tools
from holdfast.llm.bridge.replies import Translation
from holdfast.llm.bridge.response_tap import CURRENT_TAP, ResponseTap, open_client
from holdfast.llm.bridge.vendor import Errors, Vendor
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import without_key
from holdfast.ssrf_guard import Guard, NotPublic

# By the type of the provider, the module that knows its vendor. Each imports an SDK, so each is loaded when needed.
MODULES: Final = {
    "openai": "openai",
    "google_ai": "google",
    "google_vertex": "google",
    "bedrock": "bedrock",
    "cohere": "cohere",
}


class _Module(Protocol):
    def open_vendor(self, endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor: ...


class Bridge:
    def __init__(
        self, endpoint: Endpoint, info: ModelInfo, *, first_byte_s: float, total_s: float, guard: Guard | None = None
    ) -> None:
        self._endpoint = endpoint
        self._first_byte_s = first_byte_s
        self._total_s = total_s
        module = _vendor_module(endpoint.provider_type)
        self._client = open_client(endpoint, first_byte_s=first_byte_s, total_s=total_s, guard=guard)
        with named_failures(endpoint, first_byte_s):  # the library knows of models that it cannot reach
            vendor = module.open_vendor(endpoint, info, self._client)
        self._vendor = msgspec.structs.replace(vendor, sees=vendor.sees and info.abilities.images)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        vendor = self._vendor
        tap, translation = (
            vendor.tap(self._endpoint, vendor.wants, vendor.reworded),
            Translation(request, vendor),
        )
        deadline = asyncio.get_running_loop().time() + self._total_s
        async with AsyncExitStack() as stack:
            stack.push_async_callback(tap.hang_up)
            streamed = await self._ask(request, tap, stack)
            events = aiter(streamed)
            while True:
                try:
                    with named_failures(self._endpoint, self._total_s, vendor.errors):
                        async with asyncio.timeout_at(deadline):
                            event = await anext(events)
                except StopAsyncIteration:
                    break
                for delta in translation.deltas(event):
                    yield delta
            for delta in translation.end(streamed, tap.figures):
                yield delta

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _ask(self, request: ModelRequest, tap: ResponseTap, stack: AsyncExitStack) -> StreamedResponse:
        request = with_called_tools(request, self._vendor)
        try:
            return await self._ask_once(request, tap, stack)
        except ModelError as refusal:
            if not self._vendor.concedes(refusal):
                raise
        return await self._ask_once(request, tap, stack)

    async def _ask_once(self, request: ModelRequest, tap: ResponseTap, stack: AsyncExitStack) -> StreamedResponse:
        params = parameters(request, self._vendor)
        history, settings = messages(request, self._vendor), self._vendor.settings(request)
        with named_failures(self._endpoint, self._first_byte_s, self._vendor.errors):
            asking = self._vendor.model.request_stream(history, settings, params)
            token = CURRENT_TAP.set(tap)
            try:
                async with asyncio.timeout(self._first_byte_s):
                    return await stack.enter_async_context(asking)
            finally:
                CURRENT_TAP.reset(token)


def _vendor_module(provider_type: str) -> _Module:
    if provider_type not in MODULES:
        raise Rejected(f"There is no way to talk to providers of the type {provider_type!r}.")
    try:
        return cast("_Module", importlib.import_module(f"holdfast.llm.bridge.{MODULES[provider_type]}"))
    except ImportError as missing:
        raise Rejected(
            f"Models of {provider_type} need an SDK that is not installed: pip install 'holdfast[vendors]'"
        ) from missing


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
