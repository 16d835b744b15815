"""Freezes what a run is asked to do: the agent as it is now, and what the request says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from holdfast.actions.agents.model_choice import CallSettings, moved
from holdfast.core import heartbeat_loop, system_prompt
from holdfast.core.records import Agent, ModelChoice, Thread, Tool
from holdfast.core.spec import Effect, HeartbeatLoop, RunSpec, Speaking, ToolSpec
from holdfast.llm.anthropic.traits import loses_thinking
from holdfast.llm.base import Catalog, ModelInfo
from holdfast.llm.catalog.presets import completed
from holdfast.wire.model_settings import ModelSettings, writes_thoughts
from holdfast.wire.requests import ClientTool, LettaRequest

# Shipped tools whose effects do not commit with their return.
_ACTING_OUTSIDE: Final = ("letta_multi_agent_core", "letta_builtin")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "required": []}


async def freeze(
    catalog: Catalog,
    agent: Agent,
    thread: Thread,
    tools: Sequence[Tool],
    request: LettaRequest,
    *,
    stream_tokens: bool,
    retries: int = 0,
    kept: Collection[str] = (),
) -> RunSpec:
    """`kept`: names of attached tools whose place no client tool takes, because an approval lets them run."""
    model = await effective_model(catalog, agent, thread, request.override_model)
    return RunSpec(
        agent_id=agent.id,
        agent_name=agent.name,
        thread_id=thread.id,
        model=model,
        tools=tool_specs(tools, request.client_tools or (), kept),
        rules=agent.tool_rules,
        max_steps=request.max_steps,
        retries=retries,
        timezone=agent.timezone,
        compaction=agent.compaction,
        stream_tokens=stream_tokens,
        include_compaction=request.include_compaction_messages,
        override_system=request.override_system,
        skills=system_prompt.skills_section([skill.model_dump() for skill in request.client_skills or ()]),
        autoclear=agent.message_buffer_autoclear,
        heartbeats=_heartbeats(model, request) if agent.agent_type in heartbeat_loop.AGENT_TYPES else None,
    )


def _heartbeats(model: ModelChoice, request: LettaRequest) -> HeartbeatLoop:
    speaking = None
    if request.use_assistant_message:
        speaking = Speaking(request.assistant_message_tool_name, request.assistant_message_tool_kwarg)
    return HeartbeatLoop(thinking=writes_thoughts(model.settings) or _is_hushed(model), speaking=speaking)


def _is_hushed(model: ModelChoice) -> bool:
    """Claude would think by itself, but not in a loop that forces every call."""
    _, _, name = model.handle.partition("/")
    return model.settings.get("provider_type") == "anthropic" and loses_thinking(name, model.settings)


async def effective_model(catalog: Catalog, agent: Agent, thread: Thread, override: str | None) -> ModelChoice:
    """The request's model beats the conversation's, which beats the agent's; the agent's window limit stays."""
    choice = completed(agent.model, in_words=agent.agent_type in heartbeat_loop.AGENT_TYPES)
    handle = override or thread.model
    if handle and handle != choice.handle:
        choice = _switched(choice, await catalog.find(handle))
    if thread.context_window_limit:
        choice = msgspec.structs.replace(choice, context_window=min(thread.context_window_limit, choice.context_window))
    if thread.model_settings and not override:
        call = CallSettings(choice, await catalog.find(choice.handle))
        call.read_settings(ModelSettings.model_validate(thread.model_settings))
        choice = call.result()
    return choice


def _switched(choice: ModelChoice, info: ModelInfo) -> ModelChoice:
    """To another model for a while: within the limits of both, and without settings that only the agent's own takes."""
    other = moved(choice, info, choice.context_window)
    most = [limit for limit in (choice.max_output_tokens, other.max_output_tokens) if limit is not None]
    return msgspec.structs.replace(other, max_output_tokens=min(most))


def tool_specs(
    tools: Sequence[Tool], client_tools: Sequence[ClientTool] = (), kept: Collection[str] = ()
) -> tuple[ToolSpec, ...]:
    """A client tool takes the place of an attached tool of the same name, for this run, unless that one is kept."""
    keeping = {tool.name for tool in tools if tool.name in kept} if kept else frozenset[str]()
    client = {tool.name: _client_tool(tool) for tool in client_tools if tool.name not in keeping}
    attached = [_server_tool(tool) for tool in tools if tool.name not in client]
    return (*attached, *client.values())


def _server_tool(tool: Tool) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters=tool.json_schema.get("parameters") or _NO_PARAMETERS,
        effect=_effect(tool),
        tool_id=tool.id,
        version=tool.version,
        parallel=tool.enable_parallel_execution,
        return_char_limit=tool.return_char_limit,
        mcp=tool.tool_type == "external_mcp",
    )


def _effect(tool: Tool) -> Effect:
    if tool.tool_type in ("custom", "external_mcp"):
        return "retry_safe" if tool.retry_safe else "once"
    return "once" if tool.tool_type in _ACTING_OUTSIDE else "inline"


def _client_tool(tool: ClientTool) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=tool.description or "",
        parameters=tool.parameters or _NO_PARAMETERS,
        effect="client",
    )
