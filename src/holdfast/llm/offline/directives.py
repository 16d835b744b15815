"""Orders to the offline model inside a message: `[[name]]`, `[[name:value]]`, with `@2` for the second model call only.

Documented for users in docs/offline-model.md.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from holdfast.errors import Refused

NAMES: Final = frozenset(
    {
        "tokens",
        "ttft",
        "delay",
        "stall",
        "stall_after",
        "error",
        "error_after",
        "error_times",
        "retry_after",
        "cut",
        "message",
        "finish",
        "empty",
        "no_reasoning",
        "reasoning",
        "say",
        "call",
        "no_call",
        "parallel",
        "repeat",
        "usage",
        "window",
        "summary",
        "summary_error",
    }
)
_OPENING = re.compile(r"\[\[([a-z_]+)(?=[:@\]])")
_SECONDS = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_CALL = re.compile(r"\s*([\w.-]+)\s*")
_CLOSING = re.compile(r"(?:@(\d{1,9}))?\s*\]\]")
_NEXT_CLOSING = re.compile(r"(?:@(\d{1,9})\s*)?\]\]")
_MOST_DIGITS: Final = 7  # of a count: what it counts is held in memory


class Directive(msgspec.Struct, frozen=True):
    name: str
    value: str | None = None
    model_call: int | None = None  # None: every model call of the turn


class Directives(msgspec.Struct, frozen=True):
    """Those of one message; `on(n)` leaves the ones that act on its n-th model call."""

    found: tuple[Directive, ...] = ()

    def on(self, model_call: int) -> Directives:
        if not self.found:
            return self
        return Directives(tuple(one for one in self.found if one.model_call in (None, model_call)))

    def has(self, name: str) -> bool:
        return self.text(name) is not None

    def text(self, name: str) -> str | None:
        """The last one given wins."""
        for one in reversed(self.found):  # a loop: every turn asks some twenty times, mostly of nothing
            if one.name == name:
                return one.value or ""
        return None

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isdecimal() or len(value) > _MOST_DIGITS:
            most = 10**_MOST_DIGITS - 1
            raise Refused(f"The directive [[{name}:…]] wants a whole number up to {most}, not {value[:40]!r}.")
        return int(value)

    def seconds(self, name: str) -> float:
        value = self.text(name)
        if value is None:
            return 0.0
        if not _SECONDS.fullmatch(value):
            raise Refused(f"The directive [[{name}:…]] wants seconds, not {value!r}.")
        return float(value)

    def every(self, name: str) -> tuple[Directive, ...]:
        return tuple(one for one in self.found if one.name == name)


class ParsedText(msgspec.Struct, frozen=True):
    plain: str  # the message without its directives
    directives: Directives


def parse(text: str) -> ParsedText:
    """Double brackets that name no directive are left in the text."""
    found: list[Directive] = []
    plain: list[str] = []
    at, last = 0, text.rfind("]]")
    while (opening := _OPENING.search(text, at)) is not None and opening.end() <= last:
        read = _read(text, opening) if opening[1] in NAMES else None
        if read is None:
            plain.append(text[at : opening.end()])
            at = opening.end()
            continue
        directive, end = read
        found.append(directive)
        plain.append(text[at : opening.start()])
        at = end
    plain.append(text[at:])
    return ParsedText("".join(plain).strip(), Directives(tuple(found)))


def call_parts(value: str) -> tuple[str, str]:
    """`tool_name {"json": "arguments"}` as name and argument text; the text may be malformed on purpose."""
    name = _CALL.match(value)
    if name is None:
        return value.strip(), "{}"
    return name[1], value[name.end() :].strip() or "{}"


def _read(text: str, opening: re.Match[str]) -> tuple[Directive, int] | None:
    start = opening.end()
    if text[start] != ":":
        closing = _CLOSING.match(text, start)
        return None if closing is None else (Directive(opening[1], None, _number(closing)), closing.end())
    start += 1
    closing = _after_json(text, start) if opening[1] == "call" else None
    closing = closing or _NEXT_CLOSING.search(text, start)
    if closing is None:
        return None
    return Directive(opening[1], text[start : closing.start()].strip(), _number(closing)), closing.end()


def _after_json(text: str, start: int) -> re.Match[str] | None:
    """Arguments may hold `]]` themselves, so whole JSON is skipped before the closing brackets are looked for."""
    name = _CALL.match(text, start)
    if name is None:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text, name.end())
    except (ValueError, RecursionError):
        return None
    return _CLOSING.match(text, end)


def _number(closing: re.Match[str]) -> int | None:
    return int(closing[1]) if closing[1] else None
