"""Counts what tools do to the world outside, apart from the servers: these may be killed, and a mark that was made
stays."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.histories import Effect

TALLY = '''
import os, socket, time

def {name}(port: int, key: str, pause: float) -> str:
    """Leaves a mark in the world outside.

    Args:
        port: where marks are counted
        key: what is counted
        pause: seconds to wait afterwards
    """
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall((key + " " + os.environ["HOLDFAST_CALL_ID"] + "\\n").encode())
        line.recv(1)
    time.sleep(pause)
    return "marked " + key
'''


class Tally:
    def __init__(self) -> None:
        self.marks = Counter[str]()  # by key
        self.effects: list[Effect] = []
        self.marked = asyncio.Event()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        server = await asyncio.start_server(self._mark, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield

    def message(self, tool: str, key: str, pause: float = 0.0) -> str:
        """Makes the offline model call a tool that is made of `TALLY`, and then end its turn."""
        given = json.dumps({"port": self.port, "key": key, "pause": pause})
        return f"[[call:{tool} {given}]] [[no_reasoning]] [[say:Done.]]"

    async def _mark(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key, _, call_id = (await reader.readline()).decode().strip().partition(" ")
        if key:
            self.marks[key] += 1
            self.effects.append(Effect(at_s=time.monotonic(), call_id=call_id, key=key))
            self.marked.set()
        try:
            writer.write(b".")
            await writer.drain()
        except ConnectionError:
            pass  # the tool was killed; its mark stays
        finally:
            writer.close()
