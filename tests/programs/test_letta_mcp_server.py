"""letta-mcp-server from PyPI: agents behind an MCP server, which we talk to as Claude would, over its pipes.

Left out is what fails with the old server too: it asks for paths that 0.16.8 did not have (`memory-blocks`,
`GET messages/search`), and its streaming raises in the program itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ServerProcess
from tests.surroundings import calm

PROTOCOL = "2025-06-18"


class McpProgram:
    """JSON-RPC, a line each way. Logs go to a file: a full pipe would stop the program."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._asked = 0

    def open(self) -> None:
        about = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
        self.ask("initialize", about)
        self._write({"method": "notifications/initialized"})

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._asked += 1
        self._write({"id": self._asked, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._asked:
                assert "error" not in answer, answer
                return answer["result"]
        raise AssertionError("the program has ended")

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        told = json.loads(result["content"][0]["text"])
        assert told["success"], told
        return told

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        self._process.stdin.flush()


@pytest.fixture
def mcp(programs: Path, server: ServerProcess, tmp_path: Path) -> Generator[McpProgram]:
    told = {
        "HOME": str(tmp_path),
        "LETTA_BASE_URL": server.url,
        "LETTA_API_KEY": "not needed",
        "LETTA_DEFAULT_MODEL": "holdfast/offline",
        "LETTA_DEFAULT_EMBEDDING": "letta/letta-free",
        "FASTMCP_CHECK_FOR_UPDATES": "off",
    }
    with (
        (tmp_path / "mcp.log").open("w") as log,
        subprocess.Popen(
            [programs / "letta-mcp-server" / "bin" / "letta-mcp-server"],
            cwd=tmp_path,
            env=calm(os.environ) | told,
            stdin=subprocess.PIPE,  # closed at the end of the block, which is how the program is told to end
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        program = McpProgram(process)
        program.open()
        yield program


def test_an_agent_is_made_talked_to_changed_and_deleted(mcp: McpProgram, server: ServerProcess) -> None:
    assert mcp.call("letta_health_check")["status"] == "healthy"
    made = mcp.call(
        "letta_create_agent", name="Bridge", human_memory="Ada.", persona_memory="Kind.", tools=["memory_insert"]
    )
    agent_id = made["agent"]["id"]
    listed = mcp.call("letta_list_agents", filter="bridge")["agents"]
    assert [(agent["id"], agent["model"]) for agent in listed] == [(agent_id, "holdfast/offline")]
    tools = mcp.call("letta_get_agent_tools", agent_id=agent_id)["tools"]
    assert listed[0]["tool_count"] == len(tools)
    assert "memory_insert" in {tool["name"] for tool in tools}
    mcp.call("letta_update_agent", agent_id=agent_id, description="knows much")
    with server.client() as client:
        agent = client.agents.retrieve(agent_id, include=["agent.blocks"])
        assert (agent.name, agent.description) == ("Bridge", "knows much")
        assert {block.label: block.value for block in agent.blocks} == {"human": "Ada.", "persona": "Kind."}
        mcp.call("letta_delete_agent", agent_id=agent_id, confirm=True)
        assert list(client.agents.list()) == []


def test_a_message_calls_a_tool_and_is_in_the_history(mcp: McpProgram, server: ServerProcess) -> None:
    agent_id = mcp.call("letta_create_agent", name="Bridge", human_memory="Ada.", tools=["memory_insert"])["agent"][
        "id"
    ]
    message = 'Remember [[no_reasoning]] [[call:memory_insert {"label": "human", "new_string": "Likes tea."}@1]]'
    answer = mcp.call("letta_send_message", agent_id=agent_id, message=message)
    assert [call["name"] for call in answer["tool_calls"]] == ["memory_insert"]
    assert answer["response"].startswith("memory_insert returned")
    with server.client() as client:
        block = client.agents.blocks.retrieve("human", agent_id=agent_id)
        assert block.value == "Ada.\nLikes tea."
        kept = [each.message_type for each in client.agents.messages.list(agent_id, order="asc")]
    history = mcp.call("letta_get_conversation_history", agent_id=agent_id)["messages"]
    assert [each["type"] for each in history] == kept
    assert kept[1:] == ["user_message", "tool_call_message", "tool_return_message", "assistant_message"]
    exported = mcp.call("letta_export_conversation", agent_id=agent_id, include_tools=True)["content"]
    assert "### Tool Call: memory_insert" in exported


def test_the_tools_of_the_server_are_listed(mcp: McpProgram) -> None:
    tools = mcp.call("letta_list_tools")["tools"]
    assert {"send_message", "memory_insert", "conversation_search"} <= {tool["name"] for tool in tools}
