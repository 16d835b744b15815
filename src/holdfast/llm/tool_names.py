"""Names of tools as vendors take them. Tools of MCP servers may have dots, and a model may make up any name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.llm.base import ToolSchema

_TAKEN: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_TAKEN: Final = re.compile(r"[^a-zA-Z0-9_-]")


def sent_name(name: str) -> str:
    """Itself, or always the same other one when vendors would refuse it."""
    if _TAKEN.fullmatch(name):
        return name
    mark = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{_NOT_TAKEN.sub('_', name)[:55]}_{mark}"


def own_name(said: str, names: Mapping[str, str]) -> str:
    """What a tool is called here. A name has a column of its own, and no column takes a NUL."""
    return names.get(said) or said.replace("\0", "")


def renamed(tools: Iterable[ToolSchema]) -> Mapping[str, str]:
    """By the name that was sent, the name of each tool that has another one here."""
    return {sent: tool.name for tool in tools if (sent := sent_name(tool.name)) != tool.name}
