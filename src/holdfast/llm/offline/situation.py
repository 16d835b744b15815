"""Where a conversation stands, as the offline model reads it: what was last asked, and what has happened since.

What was asked may hold directives, orders to the model itself: `[[name]]`, `[[name:value]]`, with `@2` for the second
model call only. They are documented for users in docs/offline-model.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from holdfast.core.messages import Text, ToolCall, ToolReturn, Turn, content_text
from holdfast.core.model_history import EARLIER_NOT_SHOWN
from holdfast.errors import Refused
from holdfast.llm.base import ToolSchema
from holdfast.llm.broken_json import NOT_JSON
from holdfast.llm.offline import instructions

_ALERT_OPENINGS: Final = ("<system-alert>", "ToolRuleViolated:", EARLIER_NOT_SHOWN)
DIRECTIVES: Final = frozenset(
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


class Alert(msgspec.Struct, frozen=True):
    """An automatic message in the user's place, and the names of the tools called since."""

    text: str
    called_since: frozenset[str]


class Situation(msgspec.Struct, frozen=True):
    last_text: ParsedText  # the last text that a person wrote
    model_call: int  # 1 for the first model call after it
    called: dict[str, int]  # how often each tool was called since
    returns: tuple[ToolReturn, ...]
    alerts: tuple[Alert, ...] = ()

    @property
    def directives(self) -> Directives:
        """Those that act now."""
        return self.last_text.directives.on(self.model_call)

    def demanded(self, tools: Sequence[ToolSchema]) -> tuple[str, ...]:
        wanted = (
            name
            for alert in self.alerts
            for name in instructions.demanded_tools(alert.text, tools)
            if name not in alert.called_since
        )
        return tuple(dict.fromkeys(wanted))


def situation_of(turns: Sequence[Turn]) -> Situation:
    """Only the last text of a user turn counts: turns of a run that failed are merged with the next one's."""
    alerts: list[Alert] = []
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].role != "user":
            continue
        texts = [part for part in turns[index].parts if isinstance(part, Text)]
        for part in reversed(texts or [Text("")]):
            written = _written_by_person(part.text)
            if written is not None:
                return _since(turns[index + 1 :], parsed_text(written), alerts)
            called = frozenset(call.name for call in _calls(turns[index + 1 :]))
            alerts.append(Alert(part.text, called))
    return _since(turns, parsed_text(""), alerts)


def result_text(returned: ToolReturn) -> str:
    """What the tool said, out of the envelope that history puts around it."""
    text = content_text(returned.content)
    packed = _json_object(text)
    if packed is None or "status" not in packed or "message" not in packed:
        return text
    message = packed["message"]
    return message if isinstance(message, str) else msgspec.json.encode(message).decode()


def _since(turns: Sequence[Turn], last_text: ParsedText, alerts: list[Alert]) -> Situation:
    model_call = 1 + sum(turn.role == "assistant" for turn in turns)
    returns = tuple(part for turn in turns for part in turn.parts if isinstance(part, ToolReturn))
    called = dict(Counter(call.name for call in _calls(turns)))
    return Situation(last_text, model_call, called, returns, tuple(alerts))


def _calls(turns: Sequence[Turn]) -> list[ToolCall]:
    return [part for turn in turns for part in turn.parts if isinstance(part, ToolCall)]


def _written_by_person(text: str) -> str | None:
    """The person's words, unpacked if need be; None for heartbeats, summaries and other automatic messages."""
    if text.startswith(_ALERT_OPENINGS):
        return None
    packed = _json_object(text)
    if packed is None or not isinstance(packed.get("type"), str):
        return text
    return str(packed.get("message", "")) if packed["type"] == "user_message" else None


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        value: object = msgspec.json.decode(text)
    except NOT_JSON:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


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


def parsed_text(text: str) -> ParsedText:
    """Double brackets that name no directive are left in the text."""
    found: list[Directive] = []
    plain: list[str] = []
    at, last = 0, text.rfind("]]")
    while (opening := _OPENING.search(text, at)) is not None and opening.end() <= last:
        read = _read(text, opening) if opening[1] in DIRECTIVES else None
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
