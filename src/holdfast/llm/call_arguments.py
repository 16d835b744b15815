"""A call's arguments as they go back to vendors, who take nothing but a JSON object.

What a model wrote instead, half an object or brackets without end, is wrapped in one: it stays in the history, and
sent as it is it would fail every request of the thread from then on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

# What reading JSON may raise: nested deeper than we can follow it, it is as good as unreadable.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
UNREADABLE: Final = "unreadable_arguments"
_DEEPEST: Final = 100  # far more than any tool takes, and far less than any library on the way gives up at
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


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
