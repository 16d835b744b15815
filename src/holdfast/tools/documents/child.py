"""A process that works on what cannot be trusted: a file that somebody uploaded, a pattern that a model wrote.

It has no environment, limits of memory and processor time that it sets before it reads anything, and an end: whoever
waits for it stops waiting after a time, or when cancelled, and then it is dead before they go on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

READ_BYTES: Final = 256 * 1024
_ROOT: Final = str(Path(__file__).resolve().parents[3])
_ENTRY: Final = "import sys; sys.path.append(sys.argv[1]); from {module} import main; main(*sys.argv[2:])"
_SPARE_CPU_S: Final = 5  # an end for one that nobody is left to kill


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True):
    memory_bytes: int = 1 << 30
    timeout_s: float = 60.0


class ChildTimedOut(Exception):
    """It was killed because its time was over."""


class Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def write(self, content: bytes) -> None:
        """Returns also when the child has stopped reading: what it says tells why."""
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(content)
            await stdin.drain()

    async def end_input(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            stdin.close()
            await stdin.wait_closed()

    async def read(self) -> bytes:
        """Empty at its end."""
        stdout = self._process.stdout
        assert stdout is not None
        return await stdout.read(READ_BYTES)

    async def readline(self) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        return await stdout.readline()

    async def ended(self) -> tuple[int, str]:
        """Its return code, negative for a signal, and what it said on its way out."""
        stderr = self._process.stderr
        assert stderr is not None
        said = (await stderr.read(READ_BYTES)).decode(errors="replace").replace("\x00", "")  # which nobody can store
        return await self._process.wait(), said.strip()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@asynccontextmanager
async def running(
    module: str, arguments: Sequence[str], limits: ChildLimits, *, libraries: bool
) -> AsyncGenerator[Child]:
    """The `main` of a module beside this one. `libraries`: with what is installed beside the standard library, to find
    which takes longer. Raises ChildTimedOut when the body takes longer than the limits allow."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I" if libraries else "-IS",
        "-c",
        _ENTRY.format(module=module),
        _ROOT,
        str(limits.memory_bytes),
        str(int(limits.timeout_s) + _SPARE_CPU_S),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={"LANG": "C.UTF-8"},
        cwd="/",
        limit=4 * READ_BYTES,
    )
    child = Child(process)
    allowed = asyncio.timeout(limits.timeout_s)
    try:
        async with allowed:
            yield child
    except TimeoutError as error:
        if allowed.expired():
            raise ChildTimedOut(f"after {limits.timeout_s:g} seconds") from error
        raise
    finally:
        child.kill()
        await asyncio.shield(process.wait())
