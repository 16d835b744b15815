"""Builds what a model is sent for one step: system prompt, history, tools, choice."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from holdfast.core import envelopes, heartbeats, model_history, system_prompt, tool_rules
from holdfast.core.messages import Message, Text, text_of
from holdfast.core.records import Agent, Block
from holdfast.core.run import CallModel
from holdfast.core.spec import HeartbeatLoop, RunSpec, Speaking, ToolSpec
from holdfast.llm.base import ModelRequest, NamedTool, ToolChoice, ToolSchema
from holdfast.store import passages, threads
from holdfast.store.transaction import Transaction


def build(
    spec: RunSpec,
    intent: CallModel,
    window: list[Message],
    run_id: str,
    history_builder: model_history.HistoryBuilder,
) -> ModelRequest:
    model = spec.model
    built = history(spec, window, run_id, history_builder)
    return ModelRequest(
        handle=model.handle,
        system=system_text(spec, window),
        turns=built.turns,
        turns_size=built.size,
        tools=schemas(spec, intent.choice.allowed),
        tool_choice=_tool_choice(intent),
        parallel_tool_calls=intent.parallel,
        context_window=model.context_window,
        max_output_tokens=model.max_output_tokens,
        temperature=model.temperature,
        response_format=model.response_format if spec.heartbeats is None else None,
        settings=model.settings,
        user=spec.agent_id,
    )


def schemas(spec: RunSpec, names: Collection[str]) -> tuple[ToolSchema, ...]:
    wanted = set(names)
    offered = [tool for tool in spec.tools if tool.name in wanted]
    if spec.heartbeats is None:
        return tuple(ToolSchema(tool.name, tool.description, tool.parameters) for tool in offered)
    return tuple(_heartbeat_schema(spec, spec.heartbeats, tool) for tool in offered)


def _heartbeat_schema(spec: RunSpec, loop: HeartbeatLoop, tool: ToolSpec) -> ToolSchema:
    ends_turn = tool_rules.any_ends_turn(spec.rules, (tool.name,))
    parameters = tool.parameters
    if tool.name == Speaking().tool and spec.model.response_format is not None:
        parameters = heartbeats.with_shaped_message(parameters, spec.model.response_format)
    offered = heartbeats.with_arguments(parameters, thinking=loop.thinking, heartbeat=not ends_turn)
    return ToolSchema(tool.name, tool.description, offered)


def history(
    spec: RunSpec, window: list[Message], run_id: str, history_builder: model_history.HistoryBuilder
) -> model_history.History:
    rows = model_history.rows_of_turn(window, run_id) if spec.autoclear else window
    thinking = spec.heartbeats is not None and spec.heartbeats.thinking
    key = model_history.HistoryKey(spec.model.handle, spec.model.context_window, spec.timezone, thinking)
    return history_builder.build(rows, key)


def system_text(spec: RunSpec, window: list[Message]) -> str:
    stored = text_of(window[0].parts) if window and window[0].role == "system" else ""
    if spec.override_system is not None:
        return spec.override_system
    return f"{stored}\n\n{spec.skills}" if spec.skills else stored


def system_message(
    known: Message,
    agent: Agent,
    blocks: list[Block],
    *,
    conversation_id: str | None,
    hidden: int,
    archived: int,
    now_us: int,
    directories: str = "",
) -> Message:
    """The thread's system message compiled anew; it keeps its id."""
    compiled = system_prompt.compile_system(
        agent,
        blocks,
        conversation_id=conversation_id,
        recompiled_at_text=envelopes.local_time(now_us, agent.timezone),
        previous_messages=hidden,
        archival_count=archived,
        directories=directories,
    )
    return msgspec.structs.replace(known, parts=(Text(compiled),))


async def counts(tx: Transaction, agent_id: str, thread_id: str) -> tuple[int, int]:
    """What a system message tells of: messages of the thread, and passages in the agent's archive."""
    return await threads.count_messages(tx, thread_id), await passages.count_of_agent(tx, agent_id)


def _tool_choice(intent: CallModel) -> ToolChoice:
    if not intent.choice.allowed:
        return "none"
    if not intent.choice.forced:
        return "auto"
    return NamedTool(intent.choice.allowed[0]) if len(intent.choice.allowed) == 1 else "required"
