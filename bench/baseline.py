"""The floor of streaming: aiohttp reads the socket, msgspec decodes every event, and nothing else is done with it."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from bench.payload import CHAT


def bare_chunks_per_cpu_s(url: str, streams: int, tokens: int, pause_us: int) -> float:
    """In a process of its own, so that only its own time is counted."""
    told = subprocess.run(
        [sys.executable, "-m", "bench.baseline", url, str(streams), str(tokens), str(pause_us)],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    return float(told.stdout)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _Said(msgspec.Struct):
    choices: list[_Choice]


async def _read_bare(url: str, streams: int, tokens: int, pause_us: int) -> float:
    decode = msgspec.json.Decoder(_Said).decode
    body = {"messages": [{"role": "user", "content": f"stream {tokens} every {pause_us} us"}], "stream": True}

    async def read(session: aiohttp.ClientSession) -> int:
        seen, rest = 0, b""
        async with session.post(url + CHAT.path, json=body) as answer:
            async for piece in answer.content.iter_any():
                *events, rest = (rest + piece).split(b"\n\n")
                for event in events:
                    if event != b"data: [DONE]":
                        seen += len(decode(event[6:]).choices)
        return seen

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await read(session)
        before = _cpu_s()
        seen = sum(await asyncio.gather(*(read(session) for _ in range(streams))))
        return seen / (_cpu_s() - before)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    given, *numbers = sys.argv[1:]
    print(uvloop.run(_read_bare(given, *map(int, numbers))))
