"""`{{ NAME }}` and `{{ NAME | default }}` in what is sent to an MCP server, filled in from the agent's secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_TEMPLATE: Final = re.compile(r"\{\{\s*([A-Z_][A-Z0-9_]*)\s*(?:\|([^{}]*))?\}\}")
# What holds no secret itself: it only says which one is meant.
_ONLY_A_NAME: Final = re.compile(r"(Bearer )?\{\{\s*[A-Z_][A-Z0-9_]*\s*\}\}")


def has_template(text: str) -> bool:
    return _TEMPLATE.search(text) is not None


def only_names_a_secret(text: str) -> bool:
    return _ONLY_A_NAME.fullmatch(text) is not None


def filled(text: str, secrets: Mapping[str, str]) -> str:
    """As it stands, if one of its names is no secret of the agent's and has no default: half a header helps nobody."""
    missing = False

    def value(found: re.Match[str]) -> str:
        nonlocal missing
        name, default = found[1], found[2]
        if name in secrets:
            return secrets[name]
        missing = missing or default is None
        return (default or "").strip()

    result = _TEMPLATE.sub(value, text)
    return text if missing else result
