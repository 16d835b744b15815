"""Operations of the V1 API that this server does not have. The one list: whoever builds one removes it here.

They answer 501 with a sentence rather than 404, so that nobody mistakes a missing feature for a missing record.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
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
    dropped: bool = False

    def sentence(self, operation: str) -> str:
        if self.dropped:
            return f"{operation}: {self.name} are not part of Holdfast."
        if self.cloud_only:
            return f"{operation}: {self.name} existed only in the hosted service; this server does not have them."
        return f"{operation}: {self.name} are not built yet in this version of Holdfast."


# Messages are history; the old server refused this as well.
REFUSED: Final = {
    "PATCH /v1/agents/{agent_id}/messages/{message_id}": "Stored messages cannot be changed; send a new one instead.",
    "PATCH /v1/groups/{group_id}/messages/{message_id}": "Stored messages cannot be changed; send a new one instead.",
}

# Families, and their operations below them: the methods, then the path. `hosted`: only the hosted service had them.
# `dropped`: the old server had them, and this one will not.
_TABLE: Final = """\
Scheduled messages | hosted
  POST GET /v1/agents/{agent_id}/schedule
  GET DELETE /v1/agents/{agent_id}/schedule/{scheduled_message_id}
Billing transactions | hosted
  PATCH /v1/steps/{step_id}/transaction/{transaction_id}
Templates | hosted
  POST /v1/templates
  PATCH DELETE /v1/templates/{template_name}
  POST /v1/templates/{template_name}/rollback
  POST /v1/templates/{template_name}/save
  POST /v1/templates/{template_version}/agents
Client-side access tokens | hosted
  POST GET /v1/client-side-access-tokens
  DELETE /v1/client-side-access-tokens/{token}
Environments | hosted
  GET /v1/environments/{device_id}
  GET /v1/environments
  POST /v1/environments/{connection_id}/messages
Batches
  POST GET /v1/messages/batches
  GET /v1/messages/batches/{batch_id}
  PATCH /v1/messages/batches/{batch_id}/cancel
  GET /v1/messages/batches/{batch_id}/messages
Users and organizations
  POST PUT DELETE /v1/admin/users/
  POST PATCH DELETE /v1/admin/orgs/
  POST /v1/auth
Sandbox configurations | dropped
  GET POST /v1/sandbox-config/
  POST /v1/sandbox-config/local
  POST /v1/sandbox-config/local/default
  POST /v1/sandbox-config/local/recreate-venv
  POST /v1/sandbox-config/e2b/default
  PATCH DELETE /v1/sandbox-config/{sandbox_config_id}
  GET POST /v1/sandbox-config/{sandbox_config_id}/environment-variable
  PATCH DELETE /v1/sandbox-config/environment-variable/{env_var_id}
Tools written by a model | dropped
  POST /v1/tools/generate-tool
Tools of Composio | dropped
  GET /v1/tools/composio/apps
  GET /v1/tools/composio/apps/{composio_app_name}/actions
  POST /v1/tools/composio/{composio_action_name}
Voice agents | dropped
  POST /v1/voice-beta/{agent_id}/chat/completions
Relays to vendors | dropped
  POST /v1/anthropic/v1/messages
  POST /v1/zai/v1/messages
Git repositories of memory | dropped
  GET /v1/git/{agent_id}/state.git/info/refs
  POST /v1/git/{agent_id}/state.git/git-upload-pack
  POST /v1/git/{agent_id}/state.git/git-receive-pack
Projects, and templates by project | hosted
  GET /v1/agents/{agent_id}/core-memory/variables
  GET /v1/projects
  GET /v1/templates
  GET /v1/templates/{project_slug}/{name}/versions
  GET /v1/templates/{project}/{template_version}/snapshot
  DELETE POST /v1/templates/{project}/{template_name}
  PATCH /v1/templates/{project}/{template_name}/name
  POST /v1/templates/{project}
  POST /v1/templates/{project}/{template_version}/agents
  POST /v1/templates/{project}/{template_version}/fork
  POST /v1/agents/search
  POST /v1/agents/{agent_id}/migrate
  POST /v1/agents/{agent_id}/template
  POST /v1/agents/{agent_id}/version-template
Internal operations of the hosted service | hosted
  POST /v1/_internal_templates/groups
  POST /v1/_internal_templates/agents
  POST /v1/_internal_templates/blocks
"""


def _families(table: str) -> Iterator[Family]:
    for block in re.split(r"\n(?! )", table.strip()):
        heading, *lines = block.split("\n")
        name, _, kind = heading.partition(" | ")
        listed = (line.split() for line in lines)
        operations = tuple(f"{method} {path}" for *methods, path in listed for method in methods)
        if kind not in ("", "hosted", "dropped"):
            raise ValueError(f"{heading!r} is of no known kind")
        yield Family(name, operations, cloud_only=kind == "hosted", dropped=kind == "dropped")


UNBUILT: Final = tuple(_families(_TABLE))


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
