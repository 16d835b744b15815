"""What waits for a decision, whoever asked: one list for the person who decides."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.actions.queries import Page
from holdfast.actions.runs import records
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, Before, Deps, Limit, Order
from holdfast.wire.runs import WaitingApproval

router = LazyRouter(prefix="/v1/approvals", tags=["approvals"])


@router.get("/", responses={200: {"model": list[WaitingApproval]}}, response_model=None)
async def list_approvals(
    deps: Deps,
    agent_id: str | None = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
) -> Response:
    """Newest first; cursors are run ids."""
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response(await records.list_approvals(deps.database, agent_id, page))
