"""A model behind a socket that counts what it is asked, and may be held up before its last word.

It speaks OpenAI's chat completions. Every request costs, so none may be made twice for the sake of a database. It may
be given a call to make, once in a conversation.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

REPLY = "This reply was paid for."
_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class PaidModel:
    handle = "openai/paid"

    def __init__(self, call: tuple[str, str] | None = None) -> None:
        """`call`: a tool's name, and arguments as JSON."""
        self._call = call
        self.asked = 0
        self.asking = asyncio.Event()  # somebody has asked
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answering = asyncio.Event()  # somebody has been told the beginning
        self.let_go = asyncio.Event()
        self._port = 0

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self._port}/v1",
            "OPENAI_API_KEY": "sk-test",
            "HOLDFAST_OPENAI_RESPONSES": "never",
            "HOLDFAST_MODELS": f"{self.handle}=128000",
        }

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        async with server:
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("POST"):
                length = int(head.lower().partition("content-length:")[2].split("\r\n")[0])
                messages = json.loads(await reader.readexactly(length))["messages"]
                await self._reply(writer, calls=self._call is not None and messages[-1]["role"] == "user")
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the server was killed while it listened
        finally:
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter, *, calls: bool) -> None:
        self.asked += 1
        self.asking.set()
        await self.may_answer.wait()
        first, last = REPLY[:10], REPLY[10:]
        writer.write(_HEAD.encode() + _chunk(content=first))
        await writer.drain()
        self.answering.set()
        await self.let_go.wait()
        call = _call_chunk(*self._call) if calls and self._call else b""
        end = _chunk(finish="tool_calls" if call else "stop")
        writer.write(_chunk(content=last) + call + end + b"data: [DONE]\n\n")
        await writer.drain()


def _chunk(content: str | None = None, finish: str | None = None) -> bytes:
    return _event({} if content is None else {"role": "assistant", "content": content}, finish)


def _call_chunk(name: str, arguments: str) -> bytes:
    function = {"name": name, "arguments": arguments}
    return _event({"tool_calls": [{"index": 0, "id": f"call_{uuid.uuid4().hex}", "function": function}]})


def _event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "paid", "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n".encode()
