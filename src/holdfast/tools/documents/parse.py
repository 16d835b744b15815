"""Reads the text of an uploaded file, whatever is in it, without harm to the server."""

from __future__ import annotations

import asyncio
import codecs
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from typing import Final

from holdfast.core.file_types import Kind
from holdfast.errors import ToolError
from holdfast.tools.documents.child import Child, ChildLimits, ChildTimedOut, running
from holdfast.tools.documents.child_limits import REFUSED

_CHILD: Final = "holdfast.tools.documents.parse_child"
_KILLED: Final = -signal.SIGKILL
_PDF: Final = (
    "PDF files need pypdf, which is not installed here: pip install 'holdfast[files]', and restart the server."
)


TakeText = Callable[[str], Awaitable[None]]


class CannotParse(ToolError):
    """With the reason, for whoever uploaded the file."""


def missing_parser(kind: Kind) -> str | None:
    """What to install before files of this kind can be read."""
    return _PDF if kind == "pdf" and find_spec("pypdf") is None else None


async def parse(
    kind: Kind, content: AsyncIterator[bytes], limits: ChildLimits, most_bytes: int, take: TakeText
) -> None:
    """Gives the text to `take`, in pieces. CannotParse may come after some of them: then they are not to be used."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    told = 0
    try:
        async with running(_CHILD, (kind,), limits, libraries=True) as child:
            sending = asyncio.create_task(_send(child, content))
            try:
                while piece := await child.read():
                    told += len(piece)
                    if told > most_bytes:
                        raise CannotParse(f"it holds more than {most_bytes} bytes of text; split it.")
                    await take(decoder.decode(piece))
                code, said = await child.ended()
                if not code:
                    await sending  # it has read the end, or what it took for the end
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except ChildTimedOut as error:
        raise CannotParse(
            f"reading it took longer than HOLDFAST_FILE_TIMEOUT_S ({limits.timeout_s:g} seconds); split it."
        ) from error
    if code:
        raise CannotParse(_reason(code, said))


async def _send(child: Child, content: AsyncIterator[bytes]) -> None:
    try:
        async for part in content:
            await child.write(part)
    finally:
        await child.end_input()


def _reason(code: int, said: str) -> str:
    if code == REFUSED:
        return said + "."
    if code == -signal.SIGXCPU:
        return "reading it took too much processor time; split it."
    if "MemoryError" in said or code in (_KILLED, -signal.SIGSEGV, -signal.SIGABRT):
        return "reading it needs more memory than a file may use (HOLDFAST_FILE_MEMORY_BYTES); split it."
    last = said.rpartition("\n")[2][:200]
    return f"its parser failed ({last or code}); save it in another format."
