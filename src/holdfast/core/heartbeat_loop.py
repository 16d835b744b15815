"""The loop of agents that speak through a tool: one call a step, and another step only if the call asks for one.

Each tool of such a run has an argument `request_heartbeat`, unless a rule says that it ends the turn. Models that do
not reason by themselves get another, `thinking`, before all others. Neither is meant for the tool. This module adds
them to schemas, takes them out of calls, and decides whether the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.core import tool_rules
from holdfast.core.arguments import ArgumentStream, Piece, all_arguments_of
from holdfast.core.deltas import Reply
from holdfast.core.messages import Parts, Text, Thoughts, ToolCall
from holdfast.core.records import StopReason
from holdfast.core.spec import HeartbeatLoop, RunSpec, Speaking
from holdfast.core.tool_rules import Called, Children, Conditional, ContinueLoop, Rule
from holdfast.errors import ToolFailed

AGENT_TYPES: Final = frozenset(
    {
        "memgpt_agent",
        "memgpt_v2_agent",
        "react_agent",
        "workflow_agent",
        "split_thread_agent",
        "voice_convo_agent",
        "voice_sleeptime_agent",
    }
)
THINKING: Final = "thinking"
HEARTBEAT: Final = "request_heartbeat"
_MESSAGE: Final = Speaking().argument
_DEFINITIONS: Final = ("$defs", "definitions")
NO_CALL: Final = "No tool calls found in response, model must make a tool call"
_THINKING_SCHEMA: Final = {
    "type": "string",
    "description": "Your private thoughts: what you intend, and why this call. The user does not see them.",
}
_HEARTBEAT_SCHEMA: Final = {
    "type": "boolean",
    "description": "True to get another step after this call, before the user answers. False to end your turn with it.",
}
_RETURNING_CONTROL: Final = "Function called using request_heartbeat=true, returning control"
_FAILED: Final = "Function call failed, returning control"
_VIOLATION: Final = "Continuing: tool rule violation."
_CHILD_RULE: Final = "Continuing: child tool rule."
_CONTINUE_RULE: Final = "Continuing: continue tool rule."
_DENIED: Final = "Continuing: user denied request to call tool."

Outcome = Literal["ran", "refused", "denied"]


class NextStep(msgspec.Struct, frozen=True):
    """What follows a call: another step, with the reason that the model is told, or the end of the turn."""

    reason: str | None
    stop_reason: StopReason = "end_turn"


class HeartbeatArguments(msgspec.Struct, frozen=True):
    """The arguments of a call that are meant for the loop and not for its tool."""

    thoughts: str = ""
    heartbeat: bool = False


def with_arguments(parameters: Mapping[str, Any], *, thinking: bool, heartbeat: bool) -> dict[str, Any]:
    """The schema of a tool as such a model is shown it. A tool may bring an argument of such a name itself, as those of
    MCP servers do: it is asked for once, and vendors refuse a name that is required twice."""
    added = {THINKING} if thinking else set[str]()
    properties: dict[str, Any] = dict(parameters.get("properties") or {})
    properties.pop(HEARTBEAT, None)
    required = [name for name in parameters.get("required") or () if name not in added | {HEARTBEAT}]
    if thinking:
        properties = {THINKING: _THINKING_SCHEMA, **properties}
        required = [THINKING, *(name for name in required if name != THINKING)]
    if heartbeat:
        properties[HEARTBEAT] = _HEARTBEAT_SCHEMA
        required = [*(name for name in required if name != HEARTBEAT), HEARTBEAT]
    return {**parameters, "properties": properties, "required": required}


def with_shaped_message(parameters: Mapping[str, Any], response_format: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the speaking tool for an agent whose answers must have a given shape.

    What the shape refers to by `#/$defs/…` is looked for at the root, so it is moved there.
    """
    properties: dict[str, Any] = dict(parameters.get("properties") or {})
    shape: Mapping[str, Any] = {"type": "object", "additionalProperties": True, "properties": {}}
    match response_format.get("type"):
        case "json_schema":
            given: Mapping[str, Any] = response_format.get("json_schema") or {}
            shape = given.get("schema") or given
        case "json_object":
            pass
        case _:
            return dict(parameters)
    described = {"description": properties.get(_MESSAGE, {}).get("description", "")}
    moved = {
        name: {**parameters.get(name, {}), **shape[name]}
        for name in _DEFINITIONS
        if isinstance(shape.get(name), Mapping)
    }
    kept = {name: value for name, value in shape.items() if name not in moved}
    return {**parameters, **moved, "properties": {**properties, _MESSAGE: {**described, **kept}}}


class ThoughtReader:
    """Reads thoughts while they are streamed. Thoughts that are not a JSON string are read when they are complete."""

    def __init__(self) -> None:
        self._raw: list[str] = []

    def read(self, piece: Piece) -> str:
        if piece.text is not None:
            return piece.text
        self._raw.append(piece.raw)
        if not piece.ends:
            return ""
        raw, self._raw = "".join(self._raw), []
        try:
            return _as_text(msgspec.json.decode(raw))
        except msgspec.DecodeError:  # the whole call is refused for it
            return ""


def _as_text(thoughts: Any) -> str:
    if thoughts is None or isinstance(thoughts, str):
        return thoughts or ""
    return msgspec.json.encode(thoughts).decode()


def heartbeat_arguments(arguments: str) -> HeartbeatArguments:
    """Raises ToolFailed for what is not a JSON object. A model may write the flag as text."""
    given = all_arguments_of(arguments)
    heartbeat = given.get(HEARTBEAT)
    if isinstance(heartbeat, str):
        heartbeat = heartbeat.strip().lower() == "true"
    return HeartbeatArguments(_as_text(given.get(THINKING)), bool(heartbeat))


def stored_arguments(arguments: Mapping[str, Any], *, heartbeat: bool) -> str:
    """As they are stored and shown: the flag comes last, and says what the loop decided."""
    return msgspec.json.encode({**arguments, HEARTBEAT: heartbeat}).decode()


def arguments_with_thoughts(arguments: str, thoughts: str) -> str:
    """A stored call as it is shown to the model that made it: thoughts are an argument again."""
    return msgspec.json.encode({THINKING: thoughts, **all_arguments_of(arguments)}).decode()


def reply_parts(loop: HeartbeatLoop, reply: Reply) -> Parts:
    """What is kept of a reply besides its call."""
    if not loop.thinking:
        return _text_as_thoughts(reply)
    try:
        thoughts = heartbeat_arguments(reply.calls[0].arguments).thoughts if reply.calls else ""
    except ToolFailed:  # the call is refused for it; what it was seen to think is kept
        thoughts = _shown_of(loop, reply.calls[0])[0]
    return (*_without_text(reply), Thoughts(thoughts)) if thoughts else _without_text(reply)


def partial_parts(spec: RunSpec, loop: HeartbeatLoop, reply: Reply) -> Parts:
    """What was shown of a reply that was cut off: its thoughts, and the words that its call had got to. Words are shown
    once the thoughts are whole, and never of a call that asks first."""
    thoughts = words = ""
    for call in reply.calls[:1]:
        thoughts, words = _shown_of(loop, call)
        if spec.may_ask(call.name):
            words = ""
    spoken = _without_text(reply) if loop.thinking else _text_as_thoughts(reply)
    shown = (Thoughts(thoughts) if thoughts else None, Text(words) if words else None)
    return (*spoken, *(part for part in shown if part is not None))


def _shown_of(loop: HeartbeatLoop, call: ToolCall) -> tuple[str, str]:
    """The thoughts and the words of a call, as far as they were shown while it was written."""
    thoughts, words, thoughts_due, reader = "", "", loop.thinking, ThoughtReader()
    for piece in ArgumentStream().feed(call.arguments):
        if loop.thinking and piece.name == THINKING:
            thoughts += reader.read(piece)
            thoughts_due = thoughts_due and not piece.ends
        elif loop.speaking and (call.name, piece.name) == (loop.speaking.tool, loop.speaking.argument):
            words += piece.text or ""
    return thoughts, "" if thoughts_due else words


def _without_text(reply: Reply) -> Parts:
    """Text beside a call is left out where the model was given an argument for its thoughts."""
    return tuple(part for part in reply.spoken if not isinstance(part, Text))


def _text_as_thoughts(reply: Reply) -> Parts:
    return tuple(Thoughts(part.text) if isinstance(part, Text) else part for part in reply.spoken)


def after_call(
    rules: Sequence[Rule],
    attached: Sequence[str],
    history: Sequence[Called],
    name: str,
    *,
    heartbeat: bool,
    outcome: Outcome = "ran",
    failed: bool = False,
) -> NextStep:
    """`history` includes the call, if it ran."""
    if outcome == "refused":
        return NextStep(_VIOLATION)
    if outcome == "denied":
        return NextStep(_DENIED)
    ends = tool_rules.any_ends_turn(rules, (name,))
    if not ends:
        of_tool = [rule for rule in rules if rule.tool_name == name]
        if any(isinstance(rule, (Children, Conditional)) for rule in of_tool):
            return NextStep(_CHILD_RULE)
        if any(isinstance(rule, ContinueLoop) for rule in of_tool):
            return NextStep(_CONTINUE_RULE)
        if heartbeat:
            return NextStep(_FAILED if failed else _RETURNING_CONTROL)
    missing = tool_rules.uncalled_required(rules, attached, history)
    if missing:
        return NextStep(f"Continuing, user expects these tools: [{', '.join(missing)}] to be called still.")
    return NextStep(None, "tool_rule" if ends and heartbeat else "end_turn")
