"""A model behind a socket that counts what it is asked, and may be held up before its last word.

It speaks OpenAI's chat completions. Every request costs, so none may be made twice for the sake of a database.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

REPLY = "This reply was paid for."
_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class PaidModel:
    handle = "openai/paid"

    def __init__(self) -> None:
        self.asked = 0
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
                await self._reply(writer)
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the server was killed while it listened
        finally:
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        first, last = REPLY[:10], REPLY[10:]
        writer.write(_HEAD.encode() + _chunk(content=first))
        await writer.drain()
        self.answering.set()
        await self.let_go.wait()
        writer.write(_chunk(content=last) + _chunk(finish="stop") + b"data: [DONE]\n\n")
        await writer.drain()


def _chunk(content: str | None = None, finish: str | None = None) -> bytes:
    delta = {} if content is None else {"role": "assistant", "content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "paid", "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n".encode()
