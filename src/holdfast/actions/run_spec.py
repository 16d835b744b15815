"""Freezes what a run is asked to do: the agent as it is now, and what the request says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core import prompt
from holdfast.core.records import Agent, ModelChoice, Thread, Tool
from holdfast.core.spec import RunSpec, ToolSpec
from holdfast.llm.base import Catalog
from holdfast.wire.requests import ClientTool, LettaRequest

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "required": []}


async def freeze(
    catalog: Catalog, agent: Agent, thread: Thread, tools: Sequence[Tool], request: LettaRequest, *, stream_tokens: bool
) -> RunSpec:
    return RunSpec(
        agent_id=agent.id,
        thread_id=thread.id,
        model=await effective_model(catalog, agent, thread, request.override_model),
        tools=_tools(tools, request.client_tools or ()),
        rules=agent.tool_rules,
        max_steps=request.max_steps,
        timezone=agent.timezone,
        compaction=agent.compaction,
        stream_tokens=stream_tokens,
        include_compaction=request.include_compaction_messages,
        override_system=request.override_system,
        skills=prompt.skills_section([skill.model_dump() for skill in request.client_skills or ()]),
        autoclear=agent.message_buffer_autoclear,
    )


async def effective_model(catalog: Catalog, agent: Agent, thread: Thread, override: str | None) -> ModelChoice:
    """The request's model beats the conversation's, which beats the agent's; the agent's window limit stays."""
    choice = agent.model
    handle = override or thread.model
    if handle and handle != choice.handle:
        info = await catalog.find(handle)
        window = min(choice.context_window, info.context_window)
        choice = msgspec.structs.replace(choice, handle=info.handle, context_window=window, settings={})
    if thread.context_window_limit:
        choice = msgspec.structs.replace(choice, context_window=min(thread.context_window_limit, choice.context_window))
    if thread.model_settings and not override:
        settings = thread.model_settings
        choice = msgspec.structs.replace(
            choice,
            settings=choice.settings | settings,
            parallel_tool_calls=bool(settings.get("parallel_tool_calls", choice.parallel_tool_calls)),
            max_output_tokens=settings.get("max_output_tokens", choice.max_output_tokens),
            temperature=settings.get("temperature", choice.temperature),
        )
    return choice


def _tools(tools: Sequence[Tool], client_tools: Sequence[ClientTool]) -> tuple[ToolSpec, ...]:
    """A client tool takes the place of an attached tool of the same name, for this run."""
    client = {tool.name: _client_tool(tool) for tool in client_tools}
    attached = [_server_tool(tool) for tool in tools if tool.name not in client]
    return (*attached, *client.values())


def _server_tool(tool: Tool) -> ToolSpec:
    custom = tool.tool_type == "custom"
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters=tool.json_schema.get("parameters") or _NO_PARAMETERS,
        effect="inline" if not custom else "retry_safe" if tool.retry_safe else "once",
        tool_id=tool.id,
        version=tool.version,
        parallel=tool.enable_parallel_execution,
        return_char_limit=tool.return_char_limit,
    )


def _client_tool(tool: ClientTool) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=tool.description or "",
        parameters=tool.parameters or _NO_PARAMETERS,
        effect="client",
    )
