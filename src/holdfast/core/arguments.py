"""A model's arguments as data: read leniently, merged with what the tool rules prefill, never guessed."""

from __future__ import annotations

import json
from typing import Any

from holdfast.errors import ToolFailed

_NOT_FOR_THE_TOOL = ("request_heartbeat", "thinking")


def arguments_of(text: str) -> dict[str, Any]:
    """Accepts an object encoded twice, and takes the first of several objects run together."""
    stripped = text.strip()
    if not stripped:
        return {}
    try:
        value, _ = json.JSONDecoder().raw_decode(stripped)
        if isinstance(value, str):
            value = json.loads(value)
    except ValueError as error:
        raise ToolFailed(f"Error: the arguments are not valid JSON ({error}). Call the tool again.") from error
    if not isinstance(value, dict):
        raise ToolFailed("Error: the arguments must be a JSON object. Call the tool again.")
    return {name: given for name, given in value.items() if name not in _NOT_FOR_THE_TOOL}


def merge_prefilled(schema: dict[str, Any], arguments: dict[str, Any], prefilled: dict[str, Any]) -> dict[str, Any]:
    return arguments | prefilled
