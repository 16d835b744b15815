"""List tools, count them, and find them by words of their names and descriptions."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.records import Tool
from holdfast.core.words import query_words
from holdfast.store import agents as agent_rows
from holdfast.store import tools as tool_rows
from holdfast.store.paging import Page
from holdfast.store.tools import ToolFilter
from holdfast.store.transaction import Database, Transaction


async def list_tools(database: Database, filters: ToolFilter, page: Page) -> list[Tool]:
    return await database.read(lambda tx: tool_rows.list_tools(tx, filters, page))


async def list_tools_of_agent(database: Database, agent_id: str, page: Page) -> list[Tool]:
    filters = ToolFilter(agent_id=agent_id)

    async def read(tx: Transaction) -> list[Tool]:
        await agent_rows.require(tx, agent_id)
        return await tool_rows.list_tools(tx, filters, page)

    return await database.read(read)


async def count_tools(database: Database, filters: ToolFilter) -> int:
    return await database.read(lambda tx: tool_rows.count_tools(tx, filters))


async def read_tool(database: Database, tool_id: str) -> Tool:
    return await database.read(lambda tx: tool_rows.get(tx, tool_id))


async def search_tools(
    database: Database, types: tuple[str, ...] | None, query: str | None, tags: Iterable[str]
) -> list[Tool]:
    filters = ToolFilter(types=types)
    tools = await database.read(lambda tx: tool_rows.list_tools(tx, filters, Page(limit=None)))
    return matching(tools, query, tags)


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
