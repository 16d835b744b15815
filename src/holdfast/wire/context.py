"""What fills a context window, part by part. Every part is weighed by the same local guess, four bytes to a token, and
the guess by what the model's vendor has been found to count for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from typing_extensions import TypedDict

from holdfast.core import default_texts, model_history
from holdfast.core.messages import Message, text_of
from holdfast.core.records import Agent, Thread, Tool
from holdfast.core.system_prompt import Sections
from holdfast.core.usage import calibrated, estimate_tokens
from holdfast.wire.messages import stored_view


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    agent: Agent
    thread: Thread
    sections: Sections
    window: Sequence[Message]
    tools: Sequence[Tool]
    stored_messages: int
    archived_passages: int


class ContextOverview(TypedDict):
    context_window_size_max: int
    context_window_size_current: int
    num_messages: int
    num_archival_memory: int
    num_recall_memory: int
    num_tokens_external_memory_summary: int
    external_memory_summary: str
    num_tokens_system: int
    system_prompt: str
    num_tokens_core_memory: int
    core_memory: str
    num_tokens_memory_filesystem: int
    memory_filesystem: str | None
    num_tokens_tool_usage_rules: int
    tool_usage_rules: str | None
    num_tokens_directories: int
    directories: str | None
    num_tokens_summary_memory: int
    summary_memory: str | None
    num_tokens_functions_definitions: int
    functions_definitions: list[dict[str, Any]]
    num_tokens_messages: int
    messages: list[dict[str, Any]]


def context_overview(contents: Contents, context_window: int, ratio: float | None = None) -> ContextOverview:
    sections = contents.sections
    instructions = sections.instructions.replace(default_texts.CORE_MEMORY, "").strip()
    said = contents.window[1:]
    summaries = [row for row in said if row.role == "summary"]
    rest = [row for row in said if row.role != "summary"]
    functions = [_function(tool) for tool in contents.tools]
    texts = {
        "external_memory_summary": sections.memory_metadata,
        "system_prompt": instructions,
        "core_memory": sections.memory_blocks,
        "tool_usage_rules": sections.tool_usage_rules,
        "directories": sections.directories,
        "summary_memory": "\n\n".join(text_of(row.parts) for row in summaries),
    }
    guesses = {name: estimate_tokens(text) for name, text in texts.items()}
    guesses["functions"] = model_history.estimate_tools(functions)
    guesses["messages"] = sum(model_history.estimate_shown(row, context_window) for row in rest)
    weights = {name: calibrated(guess, ratio) for name, guess in guesses.items()}
    return {
        "context_window_size_max": context_window,
        "context_window_size_current": sum(weights.values()),
        "num_messages": len(contents.window),
        "num_archival_memory": contents.archived_passages,
        "num_recall_memory": contents.stored_messages,
        "num_tokens_external_memory_summary": weights["external_memory_summary"],
        "external_memory_summary": texts["external_memory_summary"],
        "num_tokens_system": weights["system_prompt"],
        "system_prompt": instructions,
        "num_tokens_core_memory": weights["core_memory"],
        "core_memory": texts["core_memory"],
        "num_tokens_memory_filesystem": 0,
        "memory_filesystem": None,
        "num_tokens_tool_usage_rules": weights["tool_usage_rules"],
        "tool_usage_rules": texts["tool_usage_rules"] or None,
        "num_tokens_directories": weights["directories"],
        "directories": texts["directories"] or None,
        "num_tokens_summary_memory": weights["summary_memory"],
        "summary_memory": texts["summary_memory"] or None,
        "num_tokens_functions_definitions": weights["functions"],
        "functions_definitions": functions,
        "num_tokens_messages": weights["messages"],
        "messages": [_row(row, contents) for row in rest],
    }


def _row(row: Message, contents: Contents) -> dict[str, Any]:
    return stored_view(row, agent_id=contents.agent.id, conversation_id=contents.thread.conversation_id)


def _function(tool: Tool) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.json_schema.get("parameters")}
    return {"type": "function", "function": described}
