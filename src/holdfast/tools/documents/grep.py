"""Finds a regular expression in texts, as `grep_files` needs it. The pattern is a model's: it may be a hostile one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.errors import ToolFailed
from holdfast.tools.documents.child import Child, ChildLimits, ChildTimedOut, running
from holdfast.tools.files import Match

LONGEST_FILE: Final = 50 << 20  # bytes; what follows is not searched
MOST_BYTES: Final = 200 << 20
TIMEOUT_S: Final = 30.0
_MEMORY: Final = 1 << 30
_CHILD: Final = "holdfast.tools.documents.grep_child"
_decode = msgspec.json.Decoder(dict[str, Any]).decode

ReadText = Callable[[int], AsyncIterator[str]]  # the parts of a text, by the place of its file


async def grep(
    names: Sequence[str], read: ReadText, pattern: str, include: str | None, context: int, timeout_s: float = TIMEOUT_S
) -> list[Match]:
    """In the order of files and lines; as many as the child gives at most."""
    limits = ChildLimits(memory_bytes=_MEMORY, timeout_s=timeout_s)
    asked = {"pattern": pattern, "include": include, "context": context, "names": list(names)}
    try:
        async with running(_CHILD, (), limits, libraries=False) as child:
            await child.write(msgspec.json.encode(asked) + b"\n")
            first = _decode(await child.readline() or b"{}")
            if "wrong" in first:
                raise ToolFailed(f"Invalid regex pattern: {first['wrong']}")
            if "wanted" not in first:
                raise ToolFailed("The search needed more than it may use: use a simpler pattern.")
            sending = asyncio.create_task(_send(child, first["wanted"], read))
            try:
                found = [_match(names, row) async for row in _rows(child)]
                if sending.done():
                    sending.result()  # a text that could not be read is not one without a match
                return found
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except ChildTimedOut as error:
        raise ToolFailed(
            f"The search took longer than {timeout_s:g} seconds: use a simpler pattern, or include fewer files."
        ) from error


async def _rows(child: Child) -> AsyncIterator[dict[str, Any]]:
    while line := await child.readline():
        row = _decode(line)
        if "found" in row:
            return
        yield row
    raise ToolFailed("The search needed more than it may use: use a simpler pattern, or include fewer files.")


async def _send(child: Child, wanted: Sequence[int], read: ReadText) -> None:
    left = MOST_BYTES
    try:
        for place in wanted:
            left_of_file = min(left, LONGEST_FILE)
            left -= left_of_file
            async for part in read(place):
                content = part.encode()[:left_of_file]
                if not content:
                    break
                left_of_file -= len(content)
                await child.write(b"%d\n" % len(content) + content)
            left += left_of_file
            await child.write(b"0\n")
    finally:
        await child.end_input()


def _match(names: Sequence[str], row: dict[str, Any]) -> Match:
    return Match(
        name=names[int(row["file"])],
        line=row["line"],
        text=row["text"],
        before=tuple(row["before"]),
        after=tuple(row["after"]),
    )
