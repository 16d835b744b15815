"""The interface between the engine and whatever runs a tool call."""

from __future__ import annotations

from ast import literal_eval
from typing import Any, Final, Literal, Protocol

import msgspec

from holdfast.core.egress import Egress
from holdfast.core.messages import Content, Status, Text
from holdfast.core.moments import moments
from holdfast.errors import ToolFailed

_FAILURE_CHARS: Final = 1_000
_DAY_OR_MOMENT: Final = "Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a custom tool. Arguments are passed as data and never put into source code: a model writes them."""

    call_id: str  # also the idempotency key; visible to the tool as HOLDFAST_CALL_ID
    tool_name: str
    source_code: str
    arguments: dict[str, Any]
    args_schema: dict[str, Any] | None = None  # of models that the source names and does not define
    tool_id: str | None = None
    agent_id: str | None = None
    agent_name: str | None = None
    environment: dict[str, str] = {}  # the agent's declared secrets and nothing else
    timeout_s: float = 180.0
    return_char_limit: int = 50_000
    egress: Egress | None = None  # the tool's own policy, which can only narrow the server's


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    status: Status
    content: Content
    stdout: tuple[str, ...] | None = None
    stderr: tuple[str, ...] | None = None
    isolation: str | None = None  # which layers were in force: "bubblewrap+namespaces+landlock+seccomp", …


class SandboxStatus(msgspec.Struct, frozen=True):
    """What isolates tools, as text for whoever starts the server."""

    tools: str  # what isolates them
    egress: str  # what they may connect to


class Sandbox(Protocol):
    async def status(self) -> SandboxStatus:
        """Once every layer of isolation was tried."""
        ...

    async def run(self, job: Job) -> Outcome:
        """A tool that raises or times out is an Outcome with status error, never an exception.

        When the awaiting task is cancelled, every process of the tool is dead before CancelledError leaves here.
        """
        ...

    async def aclose(self) -> None: ...


def failure_text(tool_name: str, kind: str, message: str) -> str:
    """What the model is told when a tool did not succeed."""
    return f"Error executing function {tool_name}: {kind}: {message}"[:_FAILURE_CHARS]


def cut_to_limit(content: Content, limit: int) -> Content:
    """A tool's or a client's return, at the length its tool allows. Images are left whole."""
    if isinstance(content, str):
        return _cut(content, limit)
    return tuple(Text(_cut(part.text, limit)) if isinstance(part, Text) else part for part in content)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    note = f"function output was truncated since it exceeded the character limit ({len(text)} > {limit})"
    return f"{text[:limit]}... [NOTE: {note}]"


def moment_us(name: str, text: str | None, timezone: str, end: Literal["first", "last"]) -> int | None:
    """The first or the last moment that an argument means: a day has both. None when nothing was said."""
    if not text:
        return None
    try:
        first, last = moments(text, timezone)
    except ValueError as error:
        raise ToolFailed(f"Invalid {name} format: {text}. {_DAY_OR_MOMENT}") from error
    return first if end == "first" else last


def parse_literal(text: str) -> Any:
    """What the model is shown as Python writes it, as the value itself."""
    return literal_eval(text)
