"""What a run was asked to do: frozen by its first event. An edit to the agent during a run affects the next run.

Part of it is which tool speaks for the agent, if one does: what its calls say is shown as the agent's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import msgspec

from holdfast.core.arguments import all_arguments_of
from holdfast.core.messages import Message, ToolCall, ToolReturn, content_text, text_of
from holdfast.core.records import CompactionSettings, ModelChoice
from holdfast.core.tool_rules import Rule, approval_names
from holdfast.errors import ToolFailed

Effect = Literal["inline", "retry_safe", "once", "client"]


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    agent_id: str
    agent_name: str = ""
    thread_id: str
    model: ModelChoice
    tools: tuple[ToolSpec, ...] = ()
    rules: tuple[Rule, ...] = ()
    max_steps: int = 50
    retries: int = 0  # of each model call that fails in passing
    timezone: str = "UTC"
    compaction: CompactionSettings = CompactionSettings()
    stream_tokens: bool = False
    include_compaction: bool = False
    override_system: str | None = None
    skills: str = ""
    autoclear: bool = False
    heartbeats: HeartbeatLoop | None = None

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    def tool(self, name: str) -> ToolSpec | None:
        return self._by_name.get(name)

    def may_ask(self, name: str) -> bool:
        """Whether a call of this tool waits for a person, or for the client."""
        tool = self.tool(name)
        return tool is not None and (tool.effect == "client" or name in approval_names(self.rules))

    @cached_property
    def _by_name(self) -> dict[str, ToolSpec]:
        """Asked for with every call of every reply. Of two tools with one name the first counts."""
        return {tool.name: tool for tool in reversed(self.tools)}


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`effect` says what a crash between start and return means: an inline tool commits with its return, a retry-safe
    one may run again, any other is never repeated, and a client tool runs elsewhere."""

    name: str
    description: str
    parameters: dict[str, Any]
    effect: Effect
    tool_id: str | None = None
    version: int = 0
    parallel: bool = False
    return_char_limit: int = 50_000
    mcp: bool = False  # an MCP server runs it


class HeartbeatLoop(msgspec.Struct, frozen=True, omit_defaults=True):
    """Set for agents that speak through a tool: see `core.heartbeats`."""

    thinking: bool = False  # the model does not reason by itself, so each tool has an argument for its thoughts
    speaking: Speaking | None = None  # None: calls of the speaking tool are shown like any other


class Speaking(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tool whose calls are shown as the agent's words, and the argument that holds them."""

    tool: str = "send_message"
    argument: str = "message"


def speaking_in(config: Mapping[str, Any]) -> Speaking | None:
    """What a request says about the tool that speaks for the agent; an older one may say nothing."""
    if not config.get("use_assistant_message", True):
        return None
    usual = Speaking()
    return Speaking(
        config.get("assistant_message_tool_name") or usual.tool,
        config.get("assistant_message_tool_kwarg") or usual.argument,
    )


def spoken_text(call: ToolCall, speaking: Speaking | None) -> str | None:
    """What a call of the speaking tool says, or None for any other call. What is not a text is shown as JSON."""
    if speaking is None or call.name != speaking.tool:
        return None
    try:
        words = all_arguments_of(call.arguments).get(speaking.argument)
    except ToolFailed:
        return None
    if words is None or isinstance(words, str):
        return words
    return msgspec.json.format(msgspec.json.encode(words), indent=2).decode()


def only_confirms_speech(answer: ToolReturn, speaking: Speaking | None) -> bool:
    """Whether a return only confirms a call of the speaking tool. It is not shown, because the text of the call is."""
    is_speech = speaking is not None and answer.name == speaking.tool
    return is_speech and answer.status != "error" and not answer.was_asked


def visible_text(message: Message) -> str:
    """What a reader sees of it: what was said, in texts and through send_message, and what tools returned."""
    words = [words for call in message.calls if (words := spoken_text(call, Speaking()))]
    returned = [content_text(answer.content) for answer in message.returns]
    return "\n".join([text_of(message.parts), *words, *returned])
