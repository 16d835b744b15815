"""The one user and the one organisation that own everything on this server."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from holdfast import ids
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter

router = LazyRouter(prefix="/v1/admin", tags=["admin"])


@router.get("/users/", responses={200: {"model": list[dict[str, Any]]}}, response_model=None)
async def list_users() -> Response:
    user = {"id": ids.DEFAULT_USER, "name": "default_user", "organization_id": ids.DEFAULT_ORG, "is_deleted": False}
    return json_response([user | _UNDATED])


@router.get("/orgs/", responses={200: {"model": list[dict[str, Any]]}}, response_model=None)
async def list_organizations() -> Response:
    return json_response([{"id": ids.DEFAULT_ORG, "name": "default_org", "privileged_tools": False} | _UNDATED])


_UNDATED = {"created_at": None, "updated_at": None}
