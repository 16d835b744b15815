"""Operations of the V1 API that this server does not have. The one list: whoever builds one removes it here.

They answer 501 with a sentence rather than 404, so that nobody mistakes a missing feature for a missing record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
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
    dropped: bool = False  # the old server had them, and this one will not

    def sentence(self, operation: str) -> str:
        if self.dropped:
            return f"{operation}: {self.name} are not part of Holdfast."
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
    Family(
        "Sources (the old name of folders)",
        (
            "GET /v1/sources/",
            "POST /v1/sources/",
            "GET /v1/sources/count",
            "GET /v1/sources/metadata",
            "GET /v1/sources/name/{source_name}",
            "GET /v1/sources/{source_id}",
            "PATCH /v1/sources/{source_id}",
            "DELETE /v1/sources/{source_id}",
            "GET /v1/sources/{source_id}/agents",
            "GET /v1/sources/{source_id}/passages",
            "GET /v1/sources/{source_id}/files",
            "GET /v1/sources/{source_id}/files/{file_id}",
            "DELETE /v1/sources/{source_id}/{file_id}",
            "POST /v1/sources/{source_id}/upload",
            "GET /v1/agents/{agent_id}/sources",
            "PATCH /v1/agents/{agent_id}/sources/attach/{source_id}",
            "PATCH /v1/agents/{agent_id}/sources/detach/{source_id}",
            "PATCH /v1/agents/{agent_id}/files",
        ),
    ),
    Family(
        "MCP servers by name",
        (
            "GET /v1/tools/mcp/servers",
            "PUT /v1/tools/mcp/servers",
            "PATCH /v1/tools/mcp/servers/{mcp_server_name}",
            "DELETE /v1/tools/mcp/servers/{mcp_server_name}",
            "POST /v1/tools/mcp/servers/test",
            "POST /v1/tools/mcp/servers/connect",
            "GET /v1/tools/mcp/servers/{mcp_server_name}/tools",
            "POST /v1/tools/mcp/servers/{mcp_server_name}/resync",
            "POST /v1/tools/mcp/servers/{mcp_server_name}/{mcp_tool_name}",
            "POST /v1/tools/mcp/servers/{mcp_server_name}/tools/{tool_name}/execute",
            "GET /v1/tools/mcp/oauth/callback",
        ),
    ),
    Family(
        "Changes of passages",
        ("PATCH /v1/agents/{agent_id}/archival-memory/{memory_id}",),
    ),
    Family(
        "Captured messages",
        ("POST /v1/agents/{agent_id}/messages/capture",),
    ),
    Family(
        "Messages to groups",
        (
            "POST /v1/groups/{group_id}/messages",
            "POST /v1/groups/{group_id}/messages/stream",
        ),
    ),
    Family(
        "Users and organizations",
        (
            "GET /v1/admin/users/",
            "POST /v1/admin/users/",
            "PUT /v1/admin/users/",
            "DELETE /v1/admin/users/",
            "GET /v1/admin/orgs/",
            "POST /v1/admin/orgs/",
            "PATCH /v1/admin/orgs/",
            "DELETE /v1/admin/orgs/",
            "POST /v1/auth",
        ),
    ),
    Family(
        "Figures of stored embeddings",
        ("GET /v1/embeddings/total_storage_size",),
    ),
    Family(
        "Sandbox configurations",
        (
            "GET /v1/sandbox-config/",
            "POST /v1/sandbox-config/",
            "POST /v1/sandbox-config/local",
            "POST /v1/sandbox-config/local/default",
            "POST /v1/sandbox-config/local/recreate-venv",
            "POST /v1/sandbox-config/e2b/default",
            "PATCH /v1/sandbox-config/{sandbox_config_id}",
            "DELETE /v1/sandbox-config/{sandbox_config_id}",
            "GET /v1/sandbox-config/{sandbox_config_id}/environment-variable",
            "POST /v1/sandbox-config/{sandbox_config_id}/environment-variable",
            "PATCH /v1/sandbox-config/environment-variable/{env_var_id}",
            "DELETE /v1/sandbox-config/environment-variable/{env_var_id}",
        ),
        dropped=True,
    ),
    Family(
        "Tools written by a model",
        ("POST /v1/tools/generate-tool",),
        dropped=True,
    ),
    Family(
        "Tools of Composio",
        (
            "GET /v1/tools/composio/apps",
            "GET /v1/tools/composio/apps/{composio_app_name}/actions",
            "POST /v1/tools/composio/{composio_action_name}",
        ),
        dropped=True,
    ),
    Family(
        "Voice agents",
        ("POST /v1/voice-beta/{agent_id}/chat/completions",),
        dropped=True,
    ),
    Family(
        "Relays to vendors",
        (
            "POST /v1/anthropic/v1/messages",
            "POST /v1/zai/v1/messages",
        ),
        dropped=True,
    ),
    Family(
        "Git repositories of memory",
        (
            "GET /v1/git/{agent_id}/state.git/info/refs",
            "POST /v1/git/{agent_id}/state.git/git-upload-pack",
            "POST /v1/git/{agent_id}/state.git/git-receive-pack",
        ),
        dropped=True,
    ),
    Family(
        "Projects, and templates by project",
        (
            "GET /v1/agents/{agent_id}/core-memory/variables",
            "GET /v1/projects",
            "GET /v1/templates",
            "GET /v1/templates/{project_slug}/{name}/versions",
            "GET /v1/templates/{project}/{template_version}/snapshot",
            "DELETE /v1/templates/{project}/{template_name}",
            "PATCH /v1/templates/{project}/{template_name}/name",
            "POST /v1/templates/{project}",
            "POST /v1/templates/{project}/{template_name}",
            "POST /v1/templates/{project}/{template_version}/agents",
            "POST /v1/templates/{project}/{template_version}/fork",
            "POST /v1/agents/search",
            "POST /v1/agents/{agent_id}/migrate",
            "POST /v1/agents/{agent_id}/template",
            "POST /v1/agents/{agent_id}/version-template",
        ),
        cloud_only=True,
    ),
    Family(
        "Internal operations of the hosted service",
        (
            "GET /v1/_internal_agents/count",
            "POST /v1/_internal_templates/groups",
            "POST /v1/_internal_templates/agents",
            "POST /v1/_internal_templates/blocks",
        ),
        cloud_only=True,
    ),
)


@cache
def unbuilt_routes() -> tuple[Route, ...]:
    """Come after every real route, which therefore wins. All applications of a process share them."""
    unsupported = ((operation, family) for family in UNBUILT for operation in family.operations)
    return (
        *(_refusing(operation, Unsupported(family.sentence(operation))) for operation, family in unsupported),
        *(_refusing(operation, NotAllowed(sentence)) for operation, sentence in REFUSED.items()),
    )


def _refusing(operation: str, error: RequestError) -> Route:
    method, path = operation.split(" ")
    return Route(path, _raising(error), methods=[method], include_in_schema=False)


def _raising(error: RequestError) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise type(error)(error.message)

    return refuse
