"""Conversations with MCP servers through the SDK: a connection for each, bounded in time and size, closed at its end.

Each runs in a task of its own. Whoever waits for it has the answer as soon as it is there, however long the server
takes to say goodbye; and a cancel closes the request, tells the server, and does not wait for what it makes of that.

Lists of tools are read before the SDK checks them: it would refuse a whole list for one tool that is malformed.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import httpx2
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from holdfast.core.messages import Content, Image, Text, readable_image
from holdfast.errors import McpLoginNeeded, McpTimedOut, McpUnavailable
from holdfast.ssrf_guard import Guard
from holdfast.tools.mcp.transports import StdioServer, Wire, open_http
from holdfast.tools.mcp.values import MOST_TOOLS, Called, Destination, Limits, ListedTool, Listing
from holdfast.version import VERSION

T = TypeVar("T")
Work = Callable[[Client], Awaitable[T]]

# How long a server may take to close what is over; less when somebody waits for it.
_GOODBYE_S: Final = 4.0
_STOPPED_S: Final = 0.5
_MOST_PAGES: Final = 50
_MOST_REASON: Final = 500
_WE: Final = types.Implementation(name="holdfast", version=VERSION)
_NOTHING: Final = "Empty response from tool"
KEY_IN_META: Final = "holdfast/idempotency-key"
_MOST_NAME: Final = 256
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


# It writes tracebacks for whatever a server does wrong; all of that ends in an error of ours.
logging.getLogger("mcp").setLevel(logging.CRITICAL)
logging.getLogger("httpx2").setLevel(logging.WARNING)


class McpClient:
    def __init__(self, guard: Guard, limits: Limits) -> None:
        self._guard = guard
        self._limits = limits
        self._trusted = ssl.create_default_context()
        self._leaving: set[asyncio.Task[None]] = set()

    async def list_tools(self, destination: Destination, auth: httpx2.Auth | None = None) -> Listing:
        found: list[Any] = []

        async def work(client: Client) -> Listing:
            async with asyncio.timeout(self._limits.list_s):
                await _read_pages(client, found)
            return read_tools(found)

        slow = f"list its tools within {self._limits.list_s:g} seconds"
        return await self._converse(destination, auth, work, slow, found)

    async def call(
        self,
        destination: Destination,
        name: str,
        arguments: dict[str, Any],
        call_id: str,
        auth: httpx2.Auth | None = None,
    ) -> Called:
        async def work(client: Client) -> Called:
            # The return is the tool's own matter: one that is not as its schema says is still what it returned.
            client.session.validate_tool_result = _accept_result
            try:
                async with asyncio.timeout(self._limits.call_s):
                    result = await client.call_tool(name, arguments, meta={KEY_IN_META: call_id})
            except MCPError as error:
                if error.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
                    raise
                return Called("error", _cut(error.message))
            return Called("error" if result.is_error else "success", _content(result))

        slow = f"answer within {self._limits.call_s:g} seconds"
        return await self._converse(destination, auth, work, slow, doubt=" Whether it was carried out is not known.")

    async def request(self, request: httpx2.Request, auth: httpx2.Auth | None = None) -> httpx2.Response:
        """One plain request, for a login. The answer is read whole."""
        wire = Wire(self._guard, self._trusted, self._limits.answer_bytes)
        try:
            async with (
                asyncio.timeout(self._limits.connect_s),
                open_http(wire, {}, auth, self._limits.connect_s) as client,
            ):
                return await client.send(request)
        except TimeoutError as error:
            raise McpTimedOut(f"The server did not answer within {self._limits.connect_s:g} seconds.") from error
        except (httpx2.HTTPError, OSError) as error:
            refusal = wire.refusal.strerror if wire.refusal else None
            raise McpUnavailable(refusal or f"The server could not be talked to: {_reason(error)}.") from error

    async def _converse(
        self,
        destination: Destination,
        auth: httpx2.Auth | None,
        work: Work[T],
        slow: str,
        tools: list[Any] | None = None,
        doubt: str = "",
    ) -> T:
        """`tools`: where the tools are put that the server lists, if that is what it is asked. `doubt`: what is said of
        a failure once the server was asked."""
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        talk = _Talk(destination, auth, self._limits, Wire(self._guard, self._trusted, self._limits.answer_bytes))
        talking = asyncio.create_task(talk.run(work, told, slow, tools, doubt))
        answered = False
        try:
            answer = await told
            answered = True
        finally:
            if not answered:
                talking.cancel()
                await _ended(talking, _STOPPED_S)
        leaving = asyncio.create_task(_ended(talking, _GOODBYE_S))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return answer

    async def aclose(self) -> None:
        """Returns when every conversation is over."""
        if self._leaving:
            await asyncio.wait(self._leaving)


class _Talk:
    """One conversation."""

    def __init__(self, destination: Destination, auth: httpx2.Auth | None, limits: Limits, wire: Wire) -> None:
        self._destination = destination
        self._auth = auth
        self._limits = limits
        self._wire = wire
        self._stdio = StdioServer(destination, limits.answer_bytes) if destination.kind == "stdio" else None

    async def run(self, work: Work[T], told: asyncio.Future[T], slow: str, tools: list[Any] | None, doubt: str) -> None:
        asked = False
        late = f"connect within {self._limits.connect_s:g} seconds"
        transport: Any = self._transport()
        try:
            async with AsyncExitStack() as stack:
                talking_over = transport if tools is None else TappedTransport(transport, tools)
                async with asyncio.timeout(self._limits.connect_s):
                    client = await stack.enter_async_context(Client(talking_over, client_info=_WE, cache=None))
                asked, late = True, slow
                answer = await work(client)
                if not told.done():
                    told.set_result(answer)
        except Exception as error:
            # Whatever the SDK raises, and it may raise anything, is the failure of this conversation and no other.
            if not told.done():
                problem = self._problem(error, late)
                if asked and not isinstance(problem, McpLoginNeeded):
                    problem.message += doubt
                told.set_exception(problem)
        finally:
            if not told.done():
                told.cancel()

    def _transport(self) -> Any:
        if self._stdio is not None:
            return self._stdio.transport()
        if self._destination.kind == "sse":
            return sse_client(
                self._destination.url, dict(self._destination.headers), httpx_client_factory=self._http, auth=self._auth
            )
        return self._streamable()

    @asynccontextmanager
    async def _streamable(self) -> AsyncGenerator[Any]:
        most = self._limits.answer_bytes
        async with (
            self._http(self._destination.headers, None, self._auth) as client,
            streamable_http_client(self._destination.url, http_client=client, max_sse_event_size=most) as streams,
        ):
            yield streams

    def _http(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """How the SDK asks for one; the times that it has in mind are not ours."""
        return open_http(self._wire, headers or {}, auth, self._limits.connect_s)

    def _problem(self, error: Exception, late: str) -> McpUnavailable:
        leaves = list(_leaves(error))
        for leaf in leaves:
            if isinstance(leaf, McpUnavailable):
                return leaf
        said = f" It last wrote: {_cut(self._stdio.said)}" if self._stdio and self._stdio.said else ""
        if self._wire.refusal is not None:
            return McpUnavailable(str(self._wire.refusal.strerror))
        if any(isinstance(leaf, TimeoutError) for leaf in leaves):
            return McpTimedOut(f"The server did not {late}.{said}")
        if self._wire.wants_login:
            return McpLoginNeeded("The server wants a login, or refuses the token that it was sent (401).")
        reason = self._wire.problem or (self._stdio and self._stdio.problem) or _reason(leaves[0])
        if self._stdio and any(isinstance(leaf, OSError) for leaf in leaves):
            return McpUnavailable(f"The server could not be started: {reason}.")
        return McpUnavailable(f"The server could not be talked to: {reason}.{said}")


async def _read_pages(client: Client, found: list[Any]) -> None:
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        cursor = (await client.list_tools(cursor=cursor)).next_cursor
        if len(found) > MOST_TOOLS:
            raise McpUnavailable(f"The server offers more than {MOST_TOOLS} tools.")
        if cursor is None:
            return
    raise McpUnavailable(f"The list of the server's tools does not end: {_MOST_PAGES} pages were read.")


async def _accept_result(name: str, result: types.CallToolResult) -> None:
    pass


def _content(result: types.CallToolResult) -> Content:
    """Texts are joined with a space; images are kept as images; anything else is described."""
    texts: list[str] = []
    images: list[Image] = []
    for part in result.content:
        if isinstance(part, types.ImageContent) and (image := readable_image(part.mime_type, part.data)):
            images.append(image)
        else:
            texts.append(_told(part))
    text = " ".join(texts)
    if not text and not images:
        structured = result.structured_content
        text = msgspec.json.encode(structured).decode() if structured else _NOTHING
    if not images:
        return text
    return (*((Text(text),) if text else ()), *images)


def _told(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ResourceLink():
            return f"{part.name}: {part.uri}"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.EmbeddedResource():
            return f"[a resource that is not text: {part.resource.uri}]"
        case types.AudioContent() | types.ImageContent():
            return f"[{part.type} that cannot be shown: {part.mime_type}]"


async def _ended(talking: asyncio.Task[None], within_s: float) -> None:
    """Told again and again to end, until it has: a server that does not answer must not keep us."""
    await asyncio.wait([talking], timeout=within_s)
    while not talking.done():
        talking.cancel()
        await asyncio.wait([talking], timeout=_STOPPED_S)
    if not talking.cancelled():
        talking.exception()  # taken notice of


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _reason(error: BaseException) -> str:
    match error:
        case MCPError():
            return _cut(error.message)
        case httpx2.HTTPStatusError():
            return f"it answered {error.response.status_code} {error.response.reason_phrase}"
        case OSError() if error.strerror:
            return error.strerror
        case UnicodeError():
            return "what is sent to it holds other characters than ASCII"
        case ValueError():  # what the SDK raises for JSON that is not as the protocol says
            return "its answer is not what the protocol says"
        case _:
            return _cut(str(error)) or type(error).__name__


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_REASON else f"{text[:_MOST_REASON]}…"


class TappedTransport:
    """Takes the tools out of every list that passes. The SDK sees an empty list, and its cursor."""

    def __init__(self, inner: Transport, taken: list[Any]) -> None:
        self._inner = inner
        self._taken = taken

    async def __aenter__(self) -> tuple[Any, Any]:
        reading, writing = await self._inner.__aenter__()
        return _Tapped(reading, self._taken), writing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


class _Tapped:
    def __init__(self, inner: Any, taken: list[Any]) -> None:
        self._inner = inner
        self._taken = taken

    async def receive(self) -> SessionMessage | Exception:
        return self._passed(await self._inner.receive())

    def _passed(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            tools = item.message.result.get("tools")
            if isinstance(tools, list):
                self._taken += cast("list[Any]", tools)
                item.message.result["tools"] = []
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._passed(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


def read_tools(raw_tools: list[Any]) -> Listing:
    """Of two with one name the first counts."""
    tools: dict[str, ListedTool] = {}
    left_out: dict[str, str] = {}
    for number, raw in enumerate(raw_tools, start=1):
        given = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        name, schema = given.get("name"), given.get("inputSchema")
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
            left_out[f"tool {number}"] = "it has no name of a usable length"
        elif not isinstance(schema, dict):
            left_out[name] = "it has no input schema"
        elif name not in tools:
            tools[name] = _listed(name, cast("dict[str, Any]", schema), given)
    return Listing(tuple(tools.values()), left_out)


def _listed(name: str, schema: dict[str, Any], given: dict[str, Any]) -> ListedTool:
    title, description = given.get("title"), given.get("description")
    output = given.get("outputSchema")
    return ListedTool(
        name=name,
        title=title if isinstance(title, str) else None,
        description=description if isinstance(description, str) else "",
        input_schema=schema,
        output_schema=cast("dict[str, Any]", output) if isinstance(output, dict) else None,
        annotations=_hints(given.get("annotations")),
    )


def _hints(annotations: Any) -> dict[str, Any]:
    given = cast("dict[str, Any]", annotations) if isinstance(annotations, dict) else {}
    return {name: given[name] for name in _HINTS if isinstance(given.get(name), bool)}
