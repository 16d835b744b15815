"""Finds tools by words of what they are called and what they say they do."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.records import Tool
from holdfast.core.words import query_words


def matching(tools: Iterable[Tool], query: str | None, tags: Iterable[str]) -> list[Tool]:
    """Those with the most words of the query first, and of these the ones whose names hold them. No query: all.

    A query that has no words, such as of signs only, is looked for as it stands.
    """
    text = (query or "").strip().lower()
    words, wanted = query_words(text) or ([text] if text else []), set(tags)
    found = [
        (score, tool)
        for tool in tools
        if (not wanted or wanted & set(tool.tags)) and ((score := _score(tool, words))[0] or not words)
    ]
    return [tool for _, tool in sorted(found, key=lambda hit: (-hit[0][0], -hit[0][1], hit[1].name))]


def _score(tool: Tool, words: list[str]) -> tuple[int, int]:
    """How many of the words it has at all, and how many in its name."""
    name = tool.name.lower()
    told = f"{name}\n{tool.description.lower()}"
    return sum(word in told for word in words), sum(word in name for word in words)
