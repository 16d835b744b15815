"""A wish for JSON as a sentence: for models that no option holds to it, and for vendors that want to read it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

JSON_ONLY: Final = "Your final answer must be a single JSON object, with no other text around it."


def json_in_words(response_format: dict[str, Any]) -> str:
    """Empty when no JSON is wanted."""
    match response_format.get("type"):
        case "json_object":
            return JSON_ONLY
        case "json_schema":
            shown = msgspec.json.encode(schema_in(response_format)).decode()
            return f"{JSON_ONLY} It must be valid against this JSON schema: {shown}"
        case _:
            return ""


def schema_in(response_format: dict[str, Any]) -> dict[str, Any]:
    """Clients wrap it in its name, or send it as it is."""
    described: dict[str, Any] = response_format.get("json_schema") or {}
    return described.get("schema") or described
