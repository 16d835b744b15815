"""The seam between the engine and whatever carries out a tool call."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.core.messages import Content, Status


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a custom tool. Arguments travel as data, never as code."""

    call_id: str  # also the idempotency key; visible to the tool as HOLDFAST_CALL_ID
    tool_name: str
    source_code: str
    arguments: dict[str, Any]
    tool_id: str | None = None
    agent_id: str | None = None
    environment: dict[str, str] = {}  # the agent's declared secrets and nothing else
    timeout_s: float = 180.0
    return_char_limit: int = 50_000


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    status: Status
    content: Content
    stdout: tuple[str, ...] | None = None
    stderr: tuple[str, ...] | None = None
    isolation: str | None = None  # which walls stood around it: "bubblewrap+landlock+seccomp", "process", …


class Sandbox(Protocol):
    async def run(self, job: Job) -> Outcome:
        """A tool that raises or times out is an Outcome with status error, never an exception.

        When the awaiting task is cancelled, every process of the tool is dead before CancelledError leaves here.
        """
        ...

    async def aclose(self) -> None: ...
