"""Searches texts for a regular expression. A process of its own: one can take for ever, and nothing else ends it.

It needs only the standard library, so that it starts quickly. It reads and writes lines of JSON. First
comes what to search for, with the names of all files; it answers with the places of those that are to be searched, or
with what is wrong with a pattern. Then come these texts, each in parts: a line with the length of a part in bytes, and
so many bytes, until a length of 0. It answers with a line for each match, and one at the end.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, BinaryIO, Final

from holdfast.tools.documents import child_limits

LONGEST_LINE: Final = 500  # characters that are shown of one
MOST_MATCHES: Final = 1_000


def main(memory_bytes: str, cpu_s: str) -> None:
    child_limits.apply(int(memory_bytes), int(cpu_s))
    search(sys.stdin.buffer, sys.stdout.buffer)


def search(given: BinaryIO, told: BinaryIO) -> None:
    asked = json.loads(given.readline())
    try:
        pattern = re.compile(asked["pattern"], re.IGNORECASE)
        include = re.compile(asked["include"], re.IGNORECASE) if asked["include"] else None
    except (re.error, OverflowError, RecursionError) as error:
        _say(told, {"wrong": str(error)})
        return
    wanted = [place for place, name in enumerate(asked["names"]) if include is None or include.search(name)]
    _say(told, {"wanted": wanted})
    found = 0
    for place in wanted:
        text = _read_text(given)
        if text is None:
            break
        for match in matches(pattern, text, asked["context"], MOST_MATCHES - found):
            found += 1
            _say(told, {"file": place, **match})
        if found >= MOST_MATCHES:
            break
    _say(told, {"found": found})


def _read_text(given: BinaryIO) -> str | None:
    """None when there are no more."""
    parts: list[bytes] = []
    while header := given.readline():
        length = int(header)
        if not length:
            return b"".join(parts).decode(errors="replace")
        parts.append(given.read(length))
    return None


def matches(pattern: re.Pattern[str], text: str, context: int, most: int) -> list[dict[str, Any]]:
    """Of one text: the lines that match, each once, with as many around them."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    found: list[dict[str, Any]] = []
    for at, line in enumerate(lines):
        if len(found) >= most:
            break
        hit = pattern.search(line)
        if hit is not None:
            before = [_cut(other) for other in lines[max(0, at - context) : at]]
            after = [_cut(other) for other in lines[at + 1 : at + 1 + context]]
            found.append({"line": at + 1, "text": _cut(line, hit.start()), "before": before, "after": after})
    return found


def _cut(line: str, at: int = 0) -> str:
    """The part of a long line that the match is in."""
    if len(line) <= LONGEST_LINE:
        return line
    first = max(0, min(at - LONGEST_LINE // 4, len(line) - LONGEST_LINE))
    head, tail = "…" if first else "", "…" if first + LONGEST_LINE < len(line) else ""
    return head + line[first : first + LONGEST_LINE] + tail


def _say(told: BinaryIO, answer: dict[str, Any]) -> None:
    told.write(json.dumps(answer).encode() + b"\n")
    told.flush()
