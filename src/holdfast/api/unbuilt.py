"""Operations of the V1 API that this server does not have. The one list: whoever builds one removes it here.

They answer 501 with a sentence rather than 404, so that nobody mistakes a missing feature for a missing record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.errors import NotAllowed, RequestError, Unsupported


class Family(msgspec.Struct, frozen=True):
    name: str
    operations: tuple[str, ...]
    cloud_only: bool = False

    def sentence(self, operation: str) -> str:
        if self.cloud_only:
            return f"{operation}: {self.name} existed only in the hosted service; this server does not have them."
        return f"{operation}: {self.name} are not built yet in this version of Holdfast."


# Messages are history; the old server refused this as well.
REFUSED: Final = {
    "PATCH /v1/agents/{agent_id}/messages/{message_id}": "Stored messages cannot be changed; send a new one instead.",
}

UNBUILT: Final[tuple[Family, ...]] = (
    Family(
        "Agent files",
        (
            "GET /v1/agents/{agent_id}/export",
            "POST /v1/agents/import",
            "POST /v1/agents/{agent_id}/export",
        ),
    ),
    Family(
        "Folders and files",
        (
            "GET /v1/agents/{agent_id}/folders",
            "PATCH /v1/agents/{agent_id}/folders/attach/{folder_id}",
            "PATCH /v1/agents/{agent_id}/folders/detach/{folder_id}",
            "GET /v1/agents/{agent_id}/files",
            "PATCH /v1/agents/{agent_id}/files/{file_id}/close",
            "PATCH /v1/agents/{agent_id}/files/close-all",
            "PATCH /v1/agents/{agent_id}/files/{file_id}/open",
            "POST /v1/folders/",
            "GET /v1/folders/{folder_id}",
            "PATCH /v1/folders/{folder_id}",
            "GET /v1/folders/",
            "DELETE /v1/folders/{folder_id}",
            "GET /v1/folders/{folder_id}/files/{file_id}",
            "GET /v1/folders/{folder_id}/files",
            "DELETE /v1/folders/{folder_id}/{file_id}",
            "POST /v1/folders/{folder_id}/upload",
            "GET /v1/folders/{folder_id}/agents",
            "GET /v1/folders/count",
            "GET /v1/folders/metadata",
            "GET /v1/folders/name/{folder_name}",
            "GET /v1/folders/{folder_id}/passages",
        ),
    ),
    Family(
        "Identities",
        (
            "PATCH /v1/agents/{agent_id}/identities/attach/{identity_id}",
            "PATCH /v1/agents/{agent_id}/identities/detach/{identity_id}",
            "PATCH /v1/blocks/{block_id}/identities/attach/{identity_id}",
            "PATCH /v1/blocks/{block_id}/identities/detach/{identity_id}",
            "GET /v1/identities/",
            "POST /v1/identities/",
            "PUT /v1/identities/",
            "GET /v1/identities/count",
            "GET /v1/identities/{identity_id}",
            "PATCH /v1/identities/{identity_id}",
            "DELETE /v1/identities/{identity_id}",
            "GET /v1/identities/{identity_id}/agents",
            "GET /v1/identities/{identity_id}/blocks",
            "PUT /v1/identities/{identity_id}/properties",
        ),
    ),
    Family(
        "Scheduled messages",
        (
            "POST /v1/agents/{agent_id}/schedule",
            "GET /v1/agents/{agent_id}/schedule/{scheduled_message_id}",
            "GET /v1/agents/{agent_id}/schedule",
            "DELETE /v1/agents/{agent_id}/schedule/{scheduled_message_id}",
        ),
        cloud_only=True,
    ),
    Family(
        "Billing transactions",
        ("PATCH /v1/steps/{step_id}/transaction/{transaction_id}",),
        cloud_only=True,
    ),
    Family(
        "Message lookup",
        (
            "GET /v1/messages/{message_id}",
            "GET /v1/messages/",
        ),
    ),
    Family(
        "MCP servers",
        (
            "POST /v1/mcp-servers/",
            "GET /v1/mcp-servers/{mcp_server_id}",
            "PATCH /v1/mcp-servers/{mcp_server_id}",
            "GET /v1/mcp-servers/",
            "DELETE /v1/mcp-servers/{mcp_server_id}",
            "PATCH /v1/mcp-servers/{mcp_server_id}/refresh",
            "GET /v1/mcp-servers/{mcp_server_id}/tools/{tool_id}",
            "GET /v1/mcp-servers/{mcp_server_id}/tools",
            "POST /v1/mcp-servers/{mcp_server_id}/tools/{tool_id}/run",
            "GET /v1/mcp-servers/connect/{mcp_server_id}",
        ),
    ),
    Family(
        "Tags",
        ("GET /v1/tags/",),
    ),
    Family(
        "Templates",
        (
            "POST /v1/templates",
            "PATCH /v1/templates/{template_name}",
            "DELETE /v1/templates/{template_name}",
            "POST /v1/templates/{template_name}/rollback",
            "POST /v1/templates/{template_name}/save",
            "POST /v1/templates/{template_version}/agents",
        ),
        cloud_only=True,
    ),
    Family(
        "Client-side access tokens",
        (
            "POST /v1/client-side-access-tokens",
            "GET /v1/client-side-access-tokens",
            "DELETE /v1/client-side-access-tokens/{token}",
        ),
        cloud_only=True,
    ),
    Family(
        "Environments",
        (
            "GET /v1/environments/{device_id}",
            "GET /v1/environments",
            "POST /v1/environments/{connection_id}/messages",
        ),
        cloud_only=True,
    ),
    Family(
        "One-off generation",
        ("POST /v1/agents/{agent_id}/generate",),
    ),
    Family(
        "Groups",
        (
            "GET /v1/agents/{agent_id}/groups",
            "GET /v1/groups/",
            "POST /v1/groups/",
            "GET /v1/groups/count",
            "GET /v1/groups/{group_id}",
            "PATCH /v1/groups/{group_id}",
            "DELETE /v1/groups/{group_id}",
            "PATCH /v1/groups/{group_id}/blocks/attach/{block_id}",
            "PATCH /v1/groups/{group_id}/blocks/detach/{block_id}",
            "GET /v1/groups/{group_id}/messages",
            "PATCH /v1/groups/{group_id}/messages/{message_id}",
            "PATCH /v1/groups/{group_id}/reset-messages",
        ),
    ),
    Family(
        "Chat completions",
        ("POST /v1/chat/completions",),
    ),
    Family(
        "Jobs",
        (
            "GET /v1/jobs/",
            "GET /v1/jobs/active",
            "GET /v1/jobs/{job_id}",
            "DELETE /v1/jobs/{job_id}",
            "PATCH /v1/jobs/{job_id}/cancel",
        ),
    ),
    Family(
        "Batches",
        (
            "POST /v1/messages/batches",
            "GET /v1/messages/batches",
            "GET /v1/messages/batches/{batch_id}",
            "PATCH /v1/messages/batches/{batch_id}/cancel",
            "GET /v1/messages/batches/{batch_id}/messages",
        ),
    ),
)


def unbuilt_routes() -> Iterator[Route]:
    """Come after every real route, which therefore wins."""
    for family in UNBUILT:
        for operation in family.operations:
            yield _refusing(operation, Unsupported(family.sentence(operation)))
    for operation, sentence in REFUSED.items():
        yield _refusing(operation, NotAllowed(sentence))


def _refusing(operation: str, error: RequestError) -> Route:
    method, path = operation.split(" ")
    return Route(path, _raising(error), methods=[method], include_in_schema=False)


def _raising(error: RequestError) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise type(error)(error.message)

    return refuse
