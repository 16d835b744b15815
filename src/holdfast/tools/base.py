"""The interface between the engine and whatever runs a tool call."""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from holdfast.core.egress_policy import Egress
from holdfast.core.messages import Content, Status, Text

_FAILURE_CHARS: Final = 1_000


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
