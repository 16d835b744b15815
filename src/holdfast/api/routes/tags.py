"""Tags: the words that agents and blocks are marked with."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.agents.read import list_tags as tags_of_agents_and_blocks
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import Deps, Limit, SearchQuery

router = LazyRouter(prefix="/v1/tags", tags=["tags"])

Before = Annotated[str | None, Query(description="Only tags before this one, in the order asked for.")]
After = Annotated[str | None, Query(description="Only tags after this one, in the order asked for.")]
Order = Annotated[Literal["asc", "desc"], Query(description="`asc` is by the alphabet, `desc` against it.")]
OrderBy = Annotated[Literal["name"], Query(description="The field that decides the order.")]
Deprecated = Annotated[SearchQuery, Query(deprecated=True)]


@router.get("/", responses={200: {"model": list[str]}}, response_model=None)
async def list_tags(
    deps: Deps,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "asc",
    order_by: OrderBy = "name",
    query_text: Deprecated = None,
    name: SearchQuery = None,
) -> Response:
    """Those of agents and of blocks; `name` is a part of a tag, and so is `query_text`, its older spelling."""
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response(await tags_of_agents_and_blocks(deps.database, name or query_text, page))
