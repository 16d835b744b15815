"""MCP servers that others wrote: one from PyPI, and one from npm that has everything the protocol knows."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ServerProcess
from tests.surroundings import calm

EVERYTHING = "letta-code/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
START_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    allowed = {"HOLDFAST_MCP_STDIO": "true", "HOLDFAST_ALLOWED_HOSTS": "127.0.0.1"}
    with ServerProcess(tmp_path / "data", HOLDFAST_DEFAULT_MODEL="holdfast/offline", **allowed) as server:
        yield server


@contextmanager
def listening(programs: Path, transport: str) -> Generator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = ["node", str(programs / EVERYTHING), transport]
    environment = {**calm(os.environ), "PORT": str(port)}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(program, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        _until_listening(port)
        yield port
    finally:
        process.kill()
        process.wait()


def _until_listening(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the program does not listen")


def tools_of(client: Any, server_id: str) -> dict[str, str]:
    return {tool.name: tool.id for tool in client.mcp_servers.tools.list(server_id)}


def test_the_server_of_times_from_pypi_is_called_by_an_agent(programs: Path, server: ServerProcess) -> None:
    client = server.client()
    config = {
        "mcp_server_type": "stdio",
        "command": sys.executable,
        "args": ["-m", "mcp_server_time", "--local-timezone", "Europe/Berlin"],
        "env": {"PYTHONPATH": str(programs / "mcp-servers")},
    }
    made: Any = client.mcp_servers.create(server_name="time", config=config)  # pyright: ignore[reportArgumentType]
    assert made.sync_error is None, made.sync_error
    known = tools_of(client, made.id)
    assert set(known) == {"get_current_time", "convert_time"}
    agent = client.agents.create(model="holdfast/offline", include_base_tools=False, tool_ids=list(known.values()))
    arguments = '{"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}'
    answer = client.agents.messages.create(agent.id, input=f"[[call:convert_time {arguments}]] [[say:Done.]]")
    told: Any = next(message for message in answer.messages if message.message_type == "tool_return_message")
    assert told.status == "success"
    assert "Asia/Tokyo" in told.tool_return


def check_everything(client: Any, made: Any) -> None:
    assert made.sync_error is None, made.sync_error
    assert made.skipped_tools == {}
    known = tools_of(client, made.id)

    def run(name: str, **arguments: Any) -> Any:
        return client.mcp_servers.tools.run(known[name], mcp_server_id=made.id, args=arguments)

    assert run("echo", message="hello").func_return == "Echo: hello"
    summed = run("get-sum", a=20, b=22)
    assert (summed.status, "42" in summed.func_return) == ("success", True)
    assert any(part["type"] == "image" for part in run("get-tiny-image").func_return)
    assert run("get-sum", a="many").status == "error"
    assert client.mcp_servers.refresh(made.id) == {"deleted": [], "updated": [], "added": []}


@pytest.mark.parametrize(
    ("transport", "kind", "path"), [("streamableHttp", "streamable_http", "/mcp"), ("sse", "sse", "/sse")]
)
def test_the_server_with_everything_from_npm_is_called_over_http(
    programs: Path, server: ServerProcess, transport: str, kind: str, path: str
) -> None:
    client: Any = server.client()
    with listening(programs, transport) as port:
        config = {"mcp_server_type": kind, "server_url": f"http://127.0.0.1:{port}{path}"}
        check_everything(client, client.mcp_servers.create(server_name="everything", config=config))


def test_the_server_with_everything_from_npm_is_called_as_a_program(programs: Path, server: ServerProcess) -> None:
    client: Any = server.client()
    config = {"mcp_server_type": "stdio", "command": "node", "args": [str(programs / EVERYTHING), "stdio"]}
    check_everything(client, client.mcp_servers.create(server_name="everything", config=config))
