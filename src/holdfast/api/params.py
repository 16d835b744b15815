"""What routes take: ids in paths, what queries may say, the server that wiring built, and who is asking.

A malformed id is a 422 with an example; a well-formed unknown one is the route's 404. Run ids and MCP server ids are
not checked here: clients of the old server rely on 404 for any unknown value. Cursors are ids, exclusive, and relative
to the order asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from fastapi import Depends, Path, Query, Request
from pydantic import AfterValidator
from starlette.types import Scope

from holdfast import ids
from holdfast.actions.agents.model_choice import Defaults
from holdfast.actions.dependencies import Holdfast
from holdfast.core.spec import Speaking
from holdfast.errors import Invalid
from holdfast.ids import UUID4_PATTERN
from holdfast.secretbox import SecretBox
from holdfast.wire.bounds import MAX_QUERY

MAX_LIMIT: Final = 1000
INT64_MAX: Final = 2**63 - 1
READS_SECRETS: Final = "holdfast.reads_secrets"  # in the scope of a request that may
_EXAMPLE_UUID: Final = "123e4567-e89b-42d3-8456-426614174000"
_STAINLESS: Final = b"x-stainless-package-version"
_USER_AGENT: Final = b"user-agent"
_SDK_1: Final = re.compile(rb"(@letta-ai/)?letta-client/1\.[^/]*")


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
FileId = Annotated[str, Path(pattern=id_pattern("file"))]
FolderId = Annotated[str, Path(pattern=id_pattern("source"))]
GroupId = Annotated[str, Path(pattern=id_pattern("group"))]
IdentityId = Annotated[str, Path(pattern=id_pattern("identity"))]
JobId = Annotated[str, Path(pattern=f"^(job|run)-{UUID4_PATTERN}$")]
MessageId = Annotated[str, Path(pattern=id_pattern("message"))]
PassageId = Annotated[str, Path(pattern=id_pattern("passage"))]
ProviderId = Annotated[str, Path(pattern=id_pattern("provider"))]
StepId = Annotated[str, Path(pattern=id_pattern("step"))]
ToolId = Annotated[str, Path(pattern=id_pattern("tool"))]

# `default` and a bare agent id mean an agent's own history, which has no conversation record to read or edit.
ConversationId = Annotated[str, Path(pattern=_CONVERSATION)]
RealConversationId = Annotated[str, Path(pattern=id_pattern("conv"))]

RunId = Annotated[str, Path()]


def _page_size(limit: int) -> int:
    """Programs that want everything ask for 10,000 or more. They get a full page, and can ask for the next."""
    return min(limit, MAX_LIMIT)


def _cursor(id: str | None) -> str | None:
    """Form builders send every parameter, with nothing in it where there is no cursor yet."""
    return id or None


# Pages differ in their default, so it is given in the signature: `limit: Limit = 50`.
Limit = Annotated[
    int, Query(ge=1, description=f"How many items a page may hold; at most {MAX_LIMIT}."), AfterValidator(_page_size)
]
Before = Annotated[
    str | None, Query(description="Only items before this id, in the order asked for."), AfterValidator(_cursor)
]
After = Annotated[
    str | None, Query(description="Only items after this id, in the order asked for."), AfterValidator(_cursor)
]
SearchQuery = Annotated[str | None, Query(max_length=MAX_QUERY)]
Order = Annotated[Literal["asc", "desc"], Query(description="`asc` is oldest first, `desc` newest first.")]
OrderBy = Annotated[Literal["created_at"], Query(description="The field that decides the order.")]


def _speaking(
    use_assistant_message: bool = True,
    assistant_message_tool_name: str = Speaking().tool,
    assistant_message_tool_kwarg: str = Speaking().argument,
) -> Speaking | None:
    return Speaking(assistant_message_tool_name, assistant_message_tool_kwarg) if use_assistant_message else None


# The tool whose calls are listed as what the agent says.
SpeakingTool = Annotated[Speaking | None, Depends(_speaking)]

# Databases keep 64 bits; larger numbers are refused at the door.
Int64 = Annotated[int, Query(ge=-INT64_MAX - 1, le=INT64_MAX)]
Count = Annotated[int, Query(ge=0, le=INT64_MAX)]


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """Two generations of clients send the same requests and expect different answers. Only `client_of` tells them
    apart: routes ask for what a client expects, never for its version."""

    whole_agents: bool  # agents that are read come with all relations, unless the request names some
    agent_after_change: bool  # a changed tool list is answered with the agent, otherwise with null
    streams_by_option: bool  # `streaming: true` makes the main message route stream


CLIENT_0X: Final = Client(whole_agents=True, agent_after_change=True, streams_by_option=False)
CLIENT_1X: Final = Client(whole_agents=False, agent_after_change=False, streams_by_option=True)


def client_of(headers: Iterable[tuple[bytes, bytes]]) -> Client:
    """SDKs of 1.x send a Stainless header, whose version is not looked at. Whoever names itself otherwise, as curl and
    every HTTP library do, is served as 0.x; whoever does not name itself is served as 1.x."""
    user_agent = b""
    for name, value in headers:
        if name == _STAINLESS and value:
            return CLIENT_1X
        if name == _USER_AGENT:
            user_agent = value
    return CLIENT_1X if not user_agent or _SDK_1.fullmatch(user_agent) else CLIENT_0X


# These are `async` because FastAPI runs plain functions in a thread, which costs more than they do.
async def _assembled(request: Request) -> Holdfast:
    return holdfast_for(request.scope)


def holdfast_for(scope: Scope) -> Holdfast:
    return scope["app"].state.holdfast


def defaults_of(deps: Holdfast) -> Defaults:
    settings = deps.settings
    return Defaults(settings.default_model, settings.default_embedding, settings.max_context_window)


def check_actor(header: str) -> None:
    """Whoever is named, there is one user; a name that no client would send is refused all the same."""
    if header and not ids.is_id("user", header):
        raise Invalid(f"The user_id header must look like {ids.DEFAULT_USER}, not {header!r}.")


async def _opener(request: Request) -> SecretBox | None:
    return opener_for(request.scope)


def opener_for(scope: Scope) -> SecretBox | None:
    """Opens secrets for a request that came with the key for it."""
    return holdfast_for(scope).secretbox if scope.get(READS_SECRETS) else None


async def _client(request: Request) -> Client:
    return client_for(request.scope)


def client_for(scope: Scope) -> Client:
    return client_of(scope["headers"])


Deps = Annotated[Holdfast, Depends(_assembled)]
Opener = Annotated[SecretBox | None, Depends(_opener)]
Asking = Annotated[Client, Depends(_client)]


def is_json_type(content_type: bytes) -> bool:
    """The one judgement of a Content-Type header: what it takes for JSON is checked and read as JSON, nothing else."""
    if content_type == b"application/json":  # as nearly all write it
        return True
    media_type = content_type.partition(b";")[0].strip().lower()
    return media_type == b"application/json" or (
        media_type.startswith(b"application/") and media_type.endswith(b"+json")
    )
