"""MCP servers that do everything wrong: plain asyncio, so that any bytes can be sent, or none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

# What to do with a request: its JSON, the way to answer.
Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Any]


def reply(writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK", kind: str = "application/json") -> None:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def result(writer: asyncio.StreamWriter, asked: dict[str, Any], value: Any) -> None:
    reply(writer, json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": value}).encode())


def polite(asked: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
    """Answers the handshake of the year 2025; False for anything else."""
    match asked.get("method"):
        case "initialize":
            about = {"name": "hostile", "version": "1"}
            known: dict[str, Any] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": about,
            }
            result(writer, asked, known)
        case "notifications/initialized" | "notifications/cancelled":
            reply(writer, b"", "202 Accepted")
        case "server/discover":
            error = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "what?"}}
            reply(writer, json.dumps(error).encode())
        case _:
            return False
    return True


def listing(tools: Any) -> Answer:
    def answer(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if not polite(asked, writer):
            result(writer, asked, {"tools": tools})

    return answer


class Hostile:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[dict[str, Any]] = []
        self.connections: set[asyncio.Task[None]] = set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            while head := await _head(reader):
                length = next((int(line[15:]) for line in head if line.lower().startswith(b"content-length:")), 0)
                body = await reader.readexactly(length)
                if not head[0].startswith(b"POST"):
                    reply(writer, b"", "405 Method Not Allowed")
                    continue
                self.asked.append(json.loads(body))
                self._answer(self.asked[-1], writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.connections.discard(task)


async def _head(reader: asyncio.StreamReader) -> list[bytes]:
    lines: list[bytes] = []
    while line := (await reader.readline()).rstrip():
        lines.append(line)
    return lines


@asynccontextmanager
async def hostile(answer: Answer) -> AsyncGenerator[Hostile]:
    served = Hostile(answer)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield served
    finally:
        server.close()
        for task in list(served.connections):
            task.cancel()
        await server.wait_closed()
