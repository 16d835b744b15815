"""Calls of tools as vendors take them: their ids, their names and their arguments.

Every call has an id of its own, whatever the vendor sends: some servers send none, some count from zero in every reply.
A history tells calls and returns apart by their ids, so one that is missing, or known from an earlier reply, is
replaced.

Names may have characters that vendors refuse: tools of MCP servers may have dots, and a model may make up any name.

Arguments go back as nothing but a JSON object. What a model wrote instead, half an object or brackets without end, is
wrapped in one: it stays in the history, and sent as it is it would fail every request of the thread from then on.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from holdfast.core.messages import ToolCall
from holdfast.llm.base import ModelRequest, ToolSchema
from holdfast.llm.broken_json import NOT_JSON

# What the pickiest vendor takes. Others make longer ones, and a history may hold them.
LONGEST: Final = 40
_PLAIN: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST}}}")
_TAKEN: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_TAKEN: Final = re.compile(r"[^a-zA-Z0-9_-]")
UNREADABLE: Final = "unreadable_arguments"
_DEEPEST: Final = 100  # far more than any tool takes, and far less than any library on the way gives up at
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class CallIds:
    """For one reply."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._taken: set[str] | None = None

    def own(self, sent: str | None) -> str:
        if self._taken is None:
            self._taken = {part.id for turn in self._request.turns for part in turn.parts if isinstance(part, ToolCall)}
        call_id = sent if sent and sent not in self._taken else f"call_{os.urandom(12).hex()}"
        self._taken.add(call_id)
        return call_id


def short_id(call_id: str) -> str:
    """Itself, or always the same other one when it is empty or too long to be sent."""
    return call_id if 0 < len(call_id) <= LONGEST else _other(call_id)


def plain_id(call_id: str, length: int | None = None) -> str:
    """Also without characters that some vendors refuse. With a length: of letters and digits, exactly as many."""
    if length is None:
        return call_id if _PLAIN.fullmatch(call_id) else _other(call_id)
    fits = len(call_id) == length and call_id.isascii() and call_id.isalnum()
    return call_id if fits else hashlib.blake2b(call_id.encode(), digest_size=20).hexdigest()[:length]


def _other(call_id: str) -> str:
    return f"call_{hashlib.blake2b(call_id.encode(), digest_size=12).hexdigest()}"


def sent_name(name: str) -> str:
    """Itself, or always the same other one when vendors would refuse it."""
    if _TAKEN.fullmatch(name):
        return name
    mark = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{_NOT_TAKEN.sub('_', name)[:55]}_{mark}"


def own_name(sent: str, names: Mapping[str, str]) -> str:
    """What a tool is called here. A name has a column of its own, and no column takes a NUL."""
    return names.get(sent) or sent.replace("\0", "")


def own_names(tools: Iterable[ToolSchema]) -> Mapping[str, str]:
    """By the name that was sent, the name of each tool that has another one here."""
    return {sent: tool.name for tool in tools if (sent := sent_name(tool.name)) != tool.name}


def sent_object(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        found = _decode(text)
    except NOT_JSON:
        return {UNREADABLE: text}
    return {UNREADABLE: text} if _may_be_deep(text) and _is_deep(found) else found


def sent_text(text: str) -> str:
    """As it was said, where it can be."""
    if text == "{}":
        return text
    try:
        _decode_names(text)
        is_sent = not _may_be_deep(text) or not _is_deep(_decode(text))
    except NOT_JSON:
        is_sent = False
    return text if is_sent else msgspec.json.encode(sent_object(text)).decode()


def _may_be_deep(text: str) -> bool:
    return text.count("[") + text.count("{") > _DEEPEST


def _is_deep(found: dict[str, Any]) -> bool:
    level: list[Any] = [found]
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _inside(one) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inside(one: dict[str, Any] | list[Any]) -> list[Any]:
    return list(one.values()) if isinstance(one, dict) else one
