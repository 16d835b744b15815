"""Where a conversation stands, as the offline model reads it: what was last asked, and what has happened since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from holdfast.core.context import EARLIER_NOT_SHOWN
from holdfast.core.messages import Text, ToolCall, ToolReturn, Turn, content_text
from holdfast.llm.base import ToolSchema
from holdfast.llm.broken_json import NOT_JSON
from holdfast.llm.offline import directives, instructions

_ALERT_OPENINGS: Final = ("<system-alert>", "ToolRuleViolated:", EARLIER_NOT_SHOWN)


class Alert(msgspec.Struct, frozen=True):
    """An automatic message in the user's place, and the names of the tools called since."""

    text: str
    called_since: frozenset[str]


class Situation(msgspec.Struct, frozen=True):
    last_text: directives.ParsedText  # the last text that a person wrote
    model_call: int  # 1 for the first model call after it
    called: dict[str, int]  # how often each tool was called since
    returns: tuple[ToolReturn, ...]
    alerts: tuple[Alert, ...] = ()

    @property
    def directives(self) -> directives.Directives:
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


def read(turns: Sequence[Turn]) -> Situation:
    """Only the last text of a user turn counts: turns of a run that failed are merged with the next one's."""
    alerts: list[Alert] = []
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].role != "user":
            continue
        texts = [part for part in turns[index].parts if isinstance(part, Text)]
        for part in reversed(texts or [Text("")]):
            written = _written_by_person(part.text)
            if written is not None:
                return _since(turns[index + 1 :], directives.parse(written), alerts)
            called = frozenset(call.name for call in _calls(turns[index + 1 :]))
            alerts.append(Alert(part.text, called))
    return _since(turns, directives.parse(""), alerts)


def result_text(returned: ToolReturn) -> str:
    """What the tool said, out of the envelope that history puts around it."""
    text = content_text(returned.content)
    packed = _json_object(text)
    if packed is None or "status" not in packed or "message" not in packed:
        return text
    message = packed["message"]
    return message if isinstance(message, str) else msgspec.json.encode(message).decode()


def _since(turns: Sequence[Turn], last_text: directives.ParsedText, alerts: list[Alert]) -> Situation:
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
