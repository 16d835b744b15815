"""Builds what a model is sent for one step: system prompt, history, tools, choice."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from holdfast.core import context, envelopes, prompt
from holdfast.core.messages import Message, Text, Turn, text_of
from holdfast.core.records import Agent, Block
from holdfast.core.run import CallModel
from holdfast.core.spec import RunSpec
from holdfast.llm.base import ModelRequest, NamedTool, ToolChoice, ToolSchema
from holdfast.store import passages, threads
from holdfast.store.transaction import Transaction


def build(
    spec: RunSpec, intent: CallModel, window: list[Message], run_id: str, retelling: context.Retelling
) -> ModelRequest:
    model = spec.model
    return ModelRequest(
        handle=model.handle,
        system=system_text(spec, window),
        turns=turns(spec, window, run_id, retelling),
        tools=schemas(spec, intent.choice.allowed),
        tool_choice=_tool_choice(intent),
        parallel_tool_calls=intent.parallel,
        context_window=model.context_window,
        max_output_tokens=model.max_output_tokens,
        temperature=model.temperature,
        response_format=model.response_format,
        settings=model.settings,
        user=spec.agent_id,
    )


def schemas(spec: RunSpec, names: Collection[str]) -> tuple[ToolSchema, ...]:
    wanted = set(names)
    return tuple(ToolSchema(tool.name, tool.description, tool.parameters) for tool in spec.tools if tool.name in wanted)


def turns(spec: RunSpec, window: list[Message], run_id: str, retelling: context.Retelling) -> tuple[Turn, ...]:
    rows = [row for row in window if row.run_id == run_id] if spec.autoclear else window
    return retelling.turns(rows, context.Terms(spec.model.handle, spec.model.context_window, spec.timezone))


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
) -> Message:
    """The thread's system message compiled anew; it keeps its id."""
    compiled = prompt.compile_system(
        agent,
        blocks,
        conversation_id=conversation_id,
        recompiled_at_text=envelopes.local_time(now_us, agent.timezone),
        previous_messages=hidden,
        archival_count=archived,
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
