"""Requests that no client should make. A server refuses them or hears them out, and serves everybody else meanwhile."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

HOLD_S = 1.0
_BIG = 40 * 1024 * 1024  # more than a server takes by default
_TIMEOUT_S = 60.0
_RESET = struct.pack("ii", 1, 0)  # linger for 0 s: closing resets

Hostile = Callable[[str, str], Awaitable[list[int]]]  # given address and agent: the statuses that came back


async def oversized_body(url: str, agent_id: str) -> list[int]:
    """Announced, and begun."""
    head = f"content-length: {_BIG}\r\ncontent-type: application/json\r\n\r\n"
    return [await _raw(url, f"POST /v1/agents/ HTTP/1.1\r\nhost: x\r\n{head}".encode() + b" " * 100_000)]


async def endless_headers(url: str, agent_id: str) -> list[int]:
    lines = "".join(f"x-{number}: {'y' * 100}\r\n" for number in range(20_000))
    return [await _raw(url, f"GET /v1/agents/ HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}\r\n".encode())]


async def half_headers(url: str, agent_id: str) -> list[int]:
    """From many connections, which then stay silent for a while."""
    writers = [await _connect(url) for _ in range(20)]
    for _, writer in writers:
        writer.write(b"GET /v1/agents/ HTTP/1.1\r\nho")
    await asyncio.sleep(HOLD_S)
    for _, writer in writers:
        writer.close()
    return []


async def garbage(url: str, agent_id: str) -> list[int]:
    bodies = (b"{{{{", b"\xff\xfe\x00", b"null", b"[]", b'{"input": NaN}', b'{"input": "\\ud800"}', b'{"input": 1e999}')
    return [await _post(url, f"/v1/agents/{agent_id}/messages", body) for body in bodies]


async def deep_nesting(url: str, agent_id: str) -> list[int]:
    nested = b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return [await _post(url, path, nested) for path in (f"/v1/agents/{agent_id}/messages", "/v1/agents/")]


async def many_tool_rules(url: str, agent_id: str) -> list[int]:
    rules = [{"type": "exit_loop", "tool_name": f"tool_{number}"} for number in range(16_000)]
    body: dict[str, Any] = {"model": "holdfast/offline", "include_base_tools": False, "tool_rules": rules}
    return [await _post(url, "/v1/agents/", json.dumps(body).encode())]


async def slow_readers(url: str, agent_id: str) -> list[int]:
    """Ask for a long stream and do not read it."""
    body = json.dumps({"input": "Hi [[tokens:2000]]", "stream_tokens": True}).encode()
    asking = _request(f"/v1/agents/{agent_id}/messages/stream", body)
    writers = [await _connect(url) for _ in range(3)]
    for _, writer in writers:
        writer.write(asking)
    await asyncio.sleep(HOLD_S)
    for _, writer in writers:
        writer.close()
    return []


async def resets(url: str, agent_id: str) -> list[int]:
    """The connection is reset in the middle of a request, and right after one."""
    asking = _request(f"/v1/agents/{agent_id}/messages", json.dumps({"input": "Hi"}).encode())
    for end in (10, len(asking) - 5, len(asking)):
        _, writer = await _connect(url)
        writer.write(asking[:end])
        await writer.drain()
        line: socket.socket = writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
    return []


HOSTILE: dict[str, Hostile] = {
    each.__name__.replace("_", " "): each
    for each in (
        oversized_body,
        endless_headers,
        half_headers,
        garbage,
        deep_nesting,
        many_tool_rules,
        slow_readers,
        resets,
    )
}


async def send(name: str, url: str, agent_id: str) -> None:
    """A server may refuse, hang up, or be away. It may not say that it has failed."""
    try:
        statuses = await HOSTILE[name](url, agent_id)
    except (OSError, httpx.TransportError, asyncio.IncompleteReadError):
        return
    assert all(status < 500 or status == 503 for status in statuses), f"{name} was answered {statuses}"


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def _raw(url: str, sent: bytes) -> int:
    """The status of whatever is answered."""
    reader, writer = await _connect(url)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            writer.write(sent)
            line = await reader.readuntil(b"\r\n")
        return int(line.split()[1])
    finally:
        writer.close()


async def _post(url: str, path: str, body: bytes) -> int:
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as http:
        answer = await http.post(path, content=body, headers={"content-type": "application/json"})
    return answer.status_code
