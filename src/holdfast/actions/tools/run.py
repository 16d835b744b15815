"""Run a tool by hand: from source that is not stored, or one that an agent has. No run, and no message is written."""

from __future__ import annotations

import ast
from typing import Any

from holdfast import ids
from holdfast.actions.mcp.run import run_for_agent
from holdfast.actions.tools.base_tools import is_base_tool
from holdfast.core.records import Agent, Tool
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.clock import Clock
from holdfast.engine.mcp_servers import McpServers
from holdfast.engine.tool_calls import InlineTools
from holdfast.errors import Invalid, NotFound
from holdfast.secretbox import SecretBox
from holdfast.store import agents as agent_rows
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import Database, Transaction
from holdfast.tools import agents as talk
from holdfast.tools import archival as archival_tools
from holdfast.tools import builtin, history
from holdfast.tools.base import Job, Sandbox
from holdfast.tools.code_with_tools import with_tools
from holdfast.wire.tools import (
    ToolExecutionResult,
    ToolRunFromSource,
    ToolRunResponse,
    execution_view,
    run_view,
)


async def run_source(
    request: ToolRunFromSource, *, sandbox: Sandbox, clock: Clock, timeout_s: float
) -> ToolRunResponse:
    """A tool that fails is an answer, not an error: the caller wants to see how it failed."""
    _require_python(request.source_type or "python")
    name = request.name or (request.json_schema or {}).get("name") or _last_function(request.source_code)
    job = Job(
        call_id=ids.new("call"),
        tool_name=str(name),
        source_code=request.source_code,
        arguments=request.args,
        args_schema=request.args_json_schema,
        environment=request.env_vars or {},
        timeout_s=timeout_s,
    )
    outcome = await sandbox.run(job)
    return run_view(job.tool_name, outcome.status, outcome.content, outcome.stdout, outcome.stderr, clock.now_us())


async def run_attached(
    agent_id: str,
    tool_name: str,
    arguments: dict[str, Any],
    *,
    database: Database,
    sandbox: Sandbox,
    secretbox: SecretBox,
    clock: Clock,
    archival: ArchivalMemory,
    mcp: McpServers,
    timeout_s: float,
) -> ToolExecutionResult:
    async def load(tx: Transaction) -> tuple[Agent, list[Tool], list[agent_rows.SealedSecret]]:
        agent, attached = await agent_rows.get(tx, agent_id), await tool_rows.of_agent(tx, agent_id)
        return agent, attached, (await agent_rows.secrets_of(tx, (agent_id,))).get(agent_id, [])

    agent, attached, sealed = await database.read(load)
    tool = next((tool for tool in attached if tool.name == tool_name), None)
    if tool is None:
        raise NotFound(f"Tool {tool_name!r} not found or not attached to agent {agent_id!r}")
    if is_base_tool(tool) and tool.name in talk.NAMES:
        raise Invalid(f"The tool {tool.name!r} sends messages on behalf of a run: send the agent a message instead.")
    if tool.tool_type == "external_mcp":
        return await run_for_agent(database, mcp, agent_id, tool, arguments)
    source = builtin.sandboxed_source(tool)
    if is_base_tool(tool) and not source:
        performed = await InlineTools(database, clock, archival).run_by_hand(agent, tool, arguments)
        result = execution_view(performed.status, performed.content, (), (), None)
        if tool.name in (archival_tools.INSERT, archival_tools.SEARCH, history.NAME) and performed.status == "success":
            result["func_return"] = ast.literal_eval(str(performed.content))
        return result
    _require_python(tool.source_type)
    secrets = {secret.key: secretbox.open(secret.sealed) for secret in sealed}
    job = Job(
        call_id=ids.new("call"),
        tool_name=tool.name,
        source_code=source,
        arguments=arguments,
        args_schema=tool.args_json_schema,
        tool_id=tool.id,
        agent_id=agent.id,
        agent_name=agent.name,
        environment=secrets if tool.gets_secrets else {},
        timeout_s=timeout_s,
        return_char_limit=tool.return_char_limit,
        egress=tool.egress,
    )
    if tool.calls_others:
        job = with_tools(job, attached, agent.tool_rules, secrets)
    outcome = await sandbox.run(job)
    return execution_view(outcome.status, outcome.content, outcome.stdout, outcome.stderr, outcome.isolation)


def _require_python(source_type: str) -> None:
    if source_type != "python":
        raise Invalid(f"Only tools written in Python can be run here, not {source_type!r}.")


def _last_function(source: str) -> str:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise Invalid(f"The source is not valid Python: {error}") from error
    names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not names:
        raise Invalid("The source defines no function: write one with `def` at the top level.")
    return names[-1]
