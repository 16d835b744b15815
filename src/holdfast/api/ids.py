"""Types for ids in paths. A malformed id is a 422 with an example; a well-formed unknown one is the route's 404.

Run ids and MCP server ids are not checked here: clients of the old server rely on 404 for any unknown value.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path

from holdfast.ids import UUID4_PATTERN

_EXAMPLE_UUID: Final = "123e4567-e89b-42d3-8456-426614174000"


def id_pattern(prefix: str) -> str:
    return f"^{prefix}-{UUID4_PATTERN}$"


def readable_pattern(pattern: str) -> str:
    """`agent-{uuid4}` says more to a person than the regular expression does."""
    return pattern.removeprefix("^").removesuffix("$").replace(UUID4_PATTERN, "{uuid4}")


def examples_for(pattern: str) -> list[str]:
    """Ids that the pattern accepts; empty when it is not a pattern of ids."""
    if UUID4_PATTERN not in pattern:
        return []
    forms = readable_pattern(pattern).strip("()").split("|")
    return [form.replace("{uuid4}", _EXAMPLE_UUID) for form in forms]


_CONVERSATION: Final = f"^(default|conv-{UUID4_PATTERN}|agent-{UUID4_PATTERN})$"

AgentId = Annotated[str, Path(pattern=id_pattern("agent"))]
ArchiveId = Annotated[str, Path(pattern=id_pattern("archive"))]
BlockId = Annotated[str, Path(pattern=id_pattern("block"))]
MessageId = Annotated[str, Path(pattern=id_pattern("message"))]
PassageId = Annotated[str, Path(pattern=id_pattern("passage"))]
ProviderId = Annotated[str, Path(pattern=id_pattern("provider"))]
StepId = Annotated[str, Path(pattern=id_pattern("step"))]
ToolId = Annotated[str, Path(pattern=id_pattern("tool"))]

# `default` and a bare agent id mean an agent's own history, which has no conversation record to read or edit.
ConversationId = Annotated[str, Path(pattern=_CONVERSATION)]
RealConversationId = Annotated[str, Path(pattern=id_pattern("conv"))]

RunId = Annotated[str, Path()]
