"""Runs the calls of MCP tools. What was approved is what runs: this tool, with this schema, of this server."""

from __future__ import annotations

from holdfast.core.arguments import arguments_of
from holdfast.core.fingerprint import identity_of
from holdfast.core.messages import ToolReturn
from holdfast.core.records import Tool
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.mcp_servers import NO_SERVER, McpServers, Reached
from holdfast.engine.tool_calls import NOT_FOUND, Execute, changed_text
from holdfast.errors import ConfigError, NotFound, RequestError
from holdfast.store import mcp_servers, tools
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.base import cut_to_limit, failure_text

_Found = tuple[Tool, Reached]


class McpExecutor:
    def __init__(self, database: Database, servers: McpServers) -> None:
        self._database = database
        self._servers = servers

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        found = await self._look_up(spec, call)

        async def execute() -> ToolReturn:
            if isinstance(found, str):
                return _failed(call, found)
            tool, reached = found
            try:
                called = await self._servers.call(
                    reached, tool.mcp_name or tool.name, arguments_of(call.call.arguments), call.call.id
                )
            except (RequestError, ConfigError) as error:
                return _failed(call, failure_text(tool.name, type(error).__name__, error.message))
            content = cut_to_limit(called.content, tool.return_char_limit)
            return ToolReturn(call.call.id, tool.name, called.status, content, (), ())

        return execute

    async def _look_up(self, spec: RunSpec, call: OpenCall) -> _Found | str:
        """What is to be called, or why nothing is."""
        told = spec.tool(call.call.name)
        tool_id = told.tool_id if told is not None else None
        if tool_id is None:
            return NOT_FOUND

        async def read(tx: Transaction) -> _Found | str:
            tool = await tools.get(tx, tool_id)
            if tool.mcp_server_id is None:
                return failure_text(tool.name, "NotFound", NO_SERVER)
            server = await mcp_servers.get(tx, tool.mcp_server_id)
            return tool, await self._servers.reach(tx, server, spec.agent_id)

        try:
            found = await self._database.read(read)
        except NotFound:
            return NOT_FOUND
        if isinstance(found, str):
            return found
        tool, reached = found
        # What was read here is what is called: the database is not asked again.
        if call.approved is not None and identity_of(tool, reached.secrets) != call.approved:
            return changed_text(tool.name, again=call.status == "started")
        return tool, reached


def _failed(call: OpenCall, text: str) -> ToolReturn:
    return ToolReturn(call.call.id, call.call.name, "error", text, (), ())
