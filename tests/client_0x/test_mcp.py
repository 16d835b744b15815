from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.client_0x.refusals import refused
from tests.mcp_servers.servers import stdio_config

_types: Any = import_module("letta_client.types")  # which 1.x, and so a type checker, has otherwise
NAME = "program"


def program() -> Any:
    config = stdio_config()
    return _types.StdioServerConfig(
        server_name=NAME, type="stdio", command=config["command"], args=config["args"], env=config["env"]
    )


def test_a_server_is_added_tried_changed_and_deleted_by_name(client: Any, make_agent: Any) -> None:
    assert [server.server_name for server in client.tools.add_mcp_server(request=program())] == [NAME]
    listed = client.tools.list_mcp_servers()
    assert listed[NAME].command == program().command
    assert set(listed[NAME].env.values()) == {"********"}
    live = {tool.name: tool for tool in client.tools.list_mcp_tools_by_server(mcp_server_name=NAME)}
    assert live["process"].health.status == "STRICT_COMPLIANT"
    tool = client.tools.add_mcp_tool(mcp_server_name=NAME, mcp_tool_name="process")
    assert tool.tags == [f"mcp:{NAME}"]
    agent = make_agent(tool_ids=[tool.id])
    answer = client.agents.messages.create(
        agent_id=agent.id, messages=[{"role": "user", "content": "[[call:process {}]] [[say:Done.]]"}]
    )
    told = next(message for message in answer.messages if message.message_type == "tool_return_message")
    assert "in the environment" in told.tool_return
    changed = client.tools.update_mcp_server(
        mcp_server_name=NAME, request=_types.UpdateStdioMcpServer(stdio_config=program())
    )
    assert changed.command == program().command
    assert client.tools.test_mcp_server(request=program())["status"] == "success"
    events = [event.event for event in client.tools.connect_mcp_server(request=program())]
    assert events == ["connection_attempt", "success"]
    assert client.tools.delete_mcp_server(mcp_server_name=NAME) == []
    with refused(404):
        client.tools.list_mcp_tools_by_server(mcp_server_name=NAME)
