"""A server process that calls an MCP server over a socket: as its how-to says, and across a SIGKILL."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ServerProcess

from .servers import ROOT, Tools

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "mcp.md"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """Started and stopped beside this loop, which serves the MCP server meanwhile."""
    allowed = {"HOLDFAST_DEFAULT_MODEL": "holdfast/offline", "HOLDFAST_ALLOWED_HOSTS": "127.0.0.1"}
    process = ServerProcess(tmp_path, **allowed)
    await asyncio.to_thread(process.start)
    yield process
    await asyncio.to_thread(process.stop)


async def test_the_program_of_the_how_to_runs_as_it_stands(server: ServerProcess, url: str, tools: Tools) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    there = program.replace("http://127.0.0.1:8283", server.url).replace("http://127.0.0.1:8000/mcp", url)
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", there], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "['42']\n"), ran.stderr
    assert tools.headers[-1]["authorization"] == "Bearer token-of-this-agent"


async def test_a_call_that_a_kill_cut_off_is_not_made_again_and_its_outcome_is_unknown(
    server: ServerProcess, url: str, tools: Tools
) -> None:
    async with server.async_client(max_retries=0) as client:
        config: Any = {"mcp_server_type": "streamable_http", "server_url": url}
        made: Any = await client.mcp_servers.create(server_name="harbour", config=config)
        known = {tool.name: tool.id for tool in await client.mcp_servers.tools.list(made.id)}
        agent = await client.agents.create(include_base_tools=False, tool_ids=[known["wait"] or ""])
        started: Any = await client.agents.messages.create_async(agent.id, input="[[call:wait {}]] [[say:Done.]]")
        await asyncio.wait_for(tools.waiting.wait(), 60)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await client.agents.messages.create(agent.id, input="[[say:Here.]]")  # waits until the run is over
        assert (await client.runs.retrieve(started.id)).status == "completed"
        rows: list[Any] = [row async for row in client.agents.messages.list(agent.id, order="asc")]
        told = [row for row in rows if row.message_type == "tool_return_message"]
        assert [(row.status, "unknown" in row.tool_return) for row in told] == [("error", True)]
        assert len(tools.calls) == 1
