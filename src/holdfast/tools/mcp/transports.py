"""How an MCP server is reached: over HTTP, or as a process, over its standard input and output.

HTTP: where requests may go, how much may come back, and what went wrong on the way.

The SDK has a transport for processes, too. This one is used because a line has a maximum, because no process of the
server outlives the call whatever ends it, and because nothing of our environment is handed on. A process that is asked
to end and does not is killed with everything that it has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from holdfast.guarded_httpx import GuardedTransport
from holdfast.ssrf_guard import Guard, NotPublic
from holdfast.tools.mcp.values import Destination

_INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
# To end by itself once its input is closed; less when the call was stopped, because somebody waits for that.
_GRACE_S: Final = 1.0
_STOPPED_GRACE_S: Final = 0.25
_REAP_S: Final = 2.0
_TOLD_BYTES: Final = 2_000  # of what it wrote to standard error last, for whoever asks why it failed
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


def open_http(wire: Wire, headers: dict[str, str], auth: httpx2.Auth | None, connect_s: float) -> httpx2.AsyncClient:
    """How long a server may be silent is decided by the phase of the conversation. The environment's proxy has no part
    in it: it would look names up by itself."""
    timeout = httpx2.Timeout(connect_s, read=None)
    return httpx2.AsyncClient(transport=wire, headers=headers, auth=auth, timeout=timeout, trust_env=False)


class Wire(httpx2.AsyncBaseTransport):
    """The requests of one conversation. It remembers what went wrong: the SDK, which is told, does not always pass it
    on."""

    def __init__(self, guard: Guard, trusted: ssl.SSLContext, most_bytes: int) -> None:
        self._inner = GuardedTransport(guard, trusted, httpx2.Limits())
        self._most_bytes = most_bytes
        self.refusal: NotPublic | None = None
        self.problem: str | None = None
        self.wants_login = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except NotPublic as error:
            self.refusal = error
            raise
        except (httpx2.TransportError, OSError) as error:
            self.problem = str(error) or type(error).__name__
            raise
        self.wants_login = response.status_code == 401
        if response.status_code >= 500:
            self.problem = f"it answered {response.status_code} {response.reason_phrase}".strip()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(response.stream, self, self._most_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, wire: Wire, most_bytes: int) -> None:
        self._inner = inner
        self._wire = wire
        self._most_bytes = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > self._most_bytes:
                self._wire.problem = f"its answer is larger than {self._most_bytes} bytes"
                raise httpx2.ReadError(self._wire.problem)
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class StdioServer:
    def __init__(self, destination: Destination, most_line_bytes: int) -> None:
        self._destination = destination
        self._most_line_bytes = most_line_bytes
        self._said: deque[bytes] = deque(maxlen=20)
        self.problem: str | None = None

    @property
    def said(self) -> str:
        """The end of what it wrote to standard error."""
        return b"".join(self._said)[-_TOLD_BYTES:].decode(errors="replace").strip()

    @asynccontextmanager
    async def transport(self) -> AsyncGenerator[Streams]:
        process = await asyncio.create_subprocess_exec(
            self._destination.command,
            *self._destination.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(self._destination.env),
            start_new_session=True,
            limit=self._most_line_bytes,
        )
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sending, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        carrying = [
            asyncio.create_task(self._read(process, incoming)),
            asyncio.create_task(self._write(process, outgoing)),
            asyncio.create_task(self._listen(process)),
        ]
        grace_s = _STOPPED_GRACE_S
        try:
            yield received, sending
            grace_s = _GRACE_S
        finally:
            try:
                await _let_end(process, grace_s)
            finally:
                _signal(process, signal.SIGKILL)
                for task in carrying:
                    task.cancel()
                await asyncio.wait(carrying)
                for stream in (incoming, received, sending, outgoing):
                    stream.close()
                await _reaped(process)

    async def _read(
        self, process: asyncio.subprocess.Process, incoming: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        assert process.stdout is not None
        with incoming, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    self.problem = f"it sent a line of more than {self._most_line_bytes} bytes"
                    return
                if not line:
                    return
                try:
                    message: Any = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                except ValueError as error:  # such as what it prints for people: the next line may be a message
                    message = error
                await incoming.send(message)

    async def _write(
        self, process: asyncio.subprocess.Process, outgoing: MemoryObjectReceiveStream[SessionMessage]
    ) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError):
            async with outgoing:
                async for message in outgoing:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Read, so that the server is never held up by a full pipe."""
        assert process.stderr is not None
        while some := await process.stderr.read(4096):
            self._said.append(some)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Not ours: that holds the keys of providers and of the database."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(own)


async def _let_end(process: asyncio.subprocess.Process, grace_s: float) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), grace_s)
    except TimeoutError:
        _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), grace_s)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Also when the first process has ended: its children may not have. They are its group, which is never ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _reaped(process: asyncio.subprocess.Process) -> None:
    """A process that left the group may keep the pipes open; it is not waited for."""
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _REAP_S)
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
