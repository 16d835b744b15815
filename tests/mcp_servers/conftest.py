"""The whole server in this process, on SQLite and on PostgreSQL, and a real MCP server beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.served import ServedClient, served

from .servers import Tools, served_mcp, server_of

HERE = Path(__file__).parent
LOOPBACK = ("127.0.0.1",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each starts a server of its own, and the SDK takes a second to import."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url, allowed_hosts=LOOPBACK) as opened:
        yield opened


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[ServedClient]:
    """For what does not depend on the database."""
    async with served(tmp_path, allowed_hosts=LOOPBACK) as opened:
        yield opened


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
async def url(tools: Tools) -> AsyncIterator[str]:
    async with served_mcp(server_of(tools)) as address:
        yield address
