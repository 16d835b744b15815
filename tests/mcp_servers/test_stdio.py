"""MCP servers that are programs: only where the operator allows it, with nothing of ours, and never left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.settings import Settings
from tests.scenario import eventually
from tests.served import ServedClient, served

from .asking import SERVERS, Json, run, tools_of
from .servers import stdio_config


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, mcp_stdio=True, mcp_connect_timeout_s=60.0, mcp_answer_bytes=100_000) as opened:
        yield opened


async def start(client: ServedClient, config: Json) -> Json:
    return await client.ask("POST", SERVERS, {"server_name": "program", "config": config})


def script(text: str) -> Json:
    return {"mcp_server_type": "stdio", "command": sys.executable, "args": ["-c", text]}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def test_programs_are_not_started_unless_the_operator_allows_it(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        body: Json = {"server_name": "program", "config": stdio_config()}
        assert "MCP stdio servers are disabled" in await client.refusal(400, "POST", SERVERS, body)
        by_name: Json = {"server_name": "program", "type": "stdio", "command": "true", "args": []}
        for method, path in (("PUT", ""), ("POST", "/test")):
            refused = await client.refusal(400, method, f"/v1/tools/mcp/servers{path}", by_name)
            assert "MCP stdio servers are disabled" in refused
        assert await client.ask("GET", SERVERS) == []


@pytest.mark.parametrize(
    ("environment", "allowed"),
    [
        ({}, False),
        ({"HOLDFAST_MCP_STDIO": "true"}, True),
        ({"MCP_DISABLE_STDIO": "false"}, True),
        ({"MCP_DISABLE_STDIO": "true"}, False),
        ({"MCP_DISABLE_STDIO": "false", "HOLDFAST_MCP_STDIO": "false"}, False),
    ],
)
def test_the_old_server_s_setting_is_honoured_after_ours(environment: dict[str, str], allowed: bool) -> None:
    assert Settings.from_environment(environment).mcp_stdio is allowed


@pytest.mark.slow
async def test_a_program_runs_for_one_call_and_is_given_its_own_environment_only(
    client: ServedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEY", "not for programs")
    server = await start(client, stdio_config())
    assert server["sync_error"] is None, server["sync_error"]
    assert set(server["env"].values()) == {"********"}
    tool = (await tools_of(client, server))["process"]
    pid, *rest = (await run(client, server, tool))["func_return"].split(" ", 1)
    assert rest == ["in the environment None"]
    await client.deps.mcp.aclose()
    assert not is_alive(int(pid))


@pytest.mark.slow
async def test_a_cancel_kills_a_program_that_hears_nothing_with_what_it_has_started(
    client: ServedClient, tmp_path: Path
) -> None:
    server = await start(client, stdio_config())
    tool = (await tools_of(client, server))["block"]
    agent = await client.agent(tool_ids=[tool["id"]])
    marker = tmp_path / "marker"
    asking = asyncio.create_task(client.say(agent.id, f'[[call:block {{"marker": "{marker}"}}]] [[say:Done.]]'))
    await eventually(lambda: marker.exists() and len(marker.read_text().split()) == 2)
    pids = [int(word) for word in marker.read_text().split()]
    assert all(map(is_alive, pids))
    await client.agents.messages.cancel(agent.id)
    assert (await asking).stop_reason.stop_reason == "cancelled"
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(
    ("config", "because"),
    [
        ({"mcp_server_type": "stdio", "command": "no-such-program-here", "args": []}, "could not be started"),
        (script("import sys; sys.exit('no licence found')"), "no licence found"),
        (script("print('x' * 200_000, flush=True); input()"), "a line of more than 100000 bytes"),
        (script("print('welcome, friend', flush=True)"), "could not be talked to"),
    ],
)
async def test_a_program_that_fails_is_kept_and_says_why(client: ServedClient, config: Json, because: str) -> None:
    server = await start(client, config)
    assert because in server["sync_error"]


async def test_a_program_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    async with served(tmp_path, mcp_stdio=True, mcp_connect_timeout_s=1.0) as client:
        server = await start(client, script("import time; time.sleep(60)"))
        assert "did not connect within 1 seconds" in server["sync_error"]


async def test_a_secret_of_a_program_is_not_given_to_another(client: ServedClient) -> None:
    server = await start(client, {**script("pass"), "env": {"KEY": "secret"}})
    path, other = SERVERS + server["id"], script("import os; print(os.environ['KEY'])")
    refused = await client.refusal(400, "PATCH", path, {"config": other})
    assert "env" in refused
    changed: Any = await client.ask("PATCH", path, {"config": {**other, "env": None}})
    assert changed["env"] is None
