"""What waits for a decision, whoever asked: one list for the person who decides."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.json import json_response
from holdfast.api.params import After, Before, Limit, Order
from holdfast.api.routing import LazyRouter
from holdfast.store import agents, holds
from holdfast.store.paging import Page
from holdfast.store.transaction import Transaction
from holdfast.wire.approvals import WaitingApproval, approval_view

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

    async def read(tx: Transaction) -> list[WaitingApproval]:
        found = await holds.list_open(tx, agent_id, page)
        secrets = await agents.secret_ids_of_many(tx, {row.agent_id for row in found})
        return [
            approval_view(
                row.run_id, row.agent_id, row.thread_id, row.hold, row.asked_us, secrets.get(row.agent_id, {})
            )
            for row in found
        ]

    return json_response(await deps.database.read(read))
