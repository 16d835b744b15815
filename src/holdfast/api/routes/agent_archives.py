"""The archival memory of one agent."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from holdfast.actions import archives as actions
from holdfast.api.deps import Deps
from holdfast.api.ids import AgentId
from holdfast.api.json import json_response
from holdfast.api.params import After, Before, Count, Limit, SearchQuery
from holdfast.api.routing import LazyRouter
from holdfast.store import agents as agent_rows
from holdfast.store import archives as archive_rows
from holdfast.store import passages as passage_rows
from holdfast.store.paging import Page
from holdfast.store.transaction import Transaction
from holdfast.tools.archival import DEFAULT_RESULTS, MOST_RESULTS, search_results
from holdfast.wire.archives import (
    AgentPassageCreate,
    MemorySearchAnswer,
    PassageView,
    TagMatchMode,
    passage_view,
)
from holdfast.wire.bounds import MAX_ITEMS, MAX_QUERY

router = LazyRouter(prefix="/v1/agents/{agent_id}", tags=["agents"])


@router.get("/archival-memory", responses={200: {"model": list[PassageView]}}, response_model=None)
async def list_memory(
    deps: Deps,
    agent_id: AgentId,
    after: After = None,
    before: Before = None,
    limit: Limit = 100,
    search: SearchQuery = None,
    ascending: bool = True,
) -> Response:
    page = Page(limit=limit, before=before, after=after, order="asc" if ascending else "desc")

    async def read(tx: Transaction) -> list[PassageView]:
        await agent_rows.require(tx, agent_id)
        archive = await archive_rows.of_agent(tx, agent_id)
        if archive is None:
            return []
        listed = await passage_rows.list_of_archive(tx, archive.id, page, search)
        return [passage_view(passage, archive) for passage in listed]

    long = page.is_long or search is not None
    return json_response(await (deps.database.read_long(read) if long else deps.database.read(read)))


@router.post("/archival-memory", responses={200: {"model": list[PassageView]}}, response_model=None)
async def add_memory(deps: Deps, agent_id: AgentId, request: AgentPassageCreate) -> Response:
    return json_response(await actions.add_memory(deps.archival, agent_id, request))


@router.get("/archival-memory/search", responses={200: {"model": MemorySearchAnswer}}, response_model=None)
async def search_memory(
    deps: Deps,
    agent_id: AgentId,
    query: Annotated[str, Query(max_length=MAX_QUERY)],
    tags: Annotated[list[str] | None, Query(max_length=MAX_ITEMS)] = None,
    tag_match_mode: TagMatchMode = "any",
    top_k: Count | None = None,
    start_datetime: str | None = None,
    end_datetime: str | None = None,
) -> Response:
    timezone, passages = await actions.search_memory(
        deps.database,
        deps.archival,
        agent_id,
        query,
        min(top_k or DEFAULT_RESULTS, MOST_RESULTS),
        tags=tags or (),
        match_all_tags=tag_match_mode == "all",
        start=start_datetime,
        end=end_datetime,
    )
    return json_response({"results": search_results(passages, timezone), "count": len(passages)})


@router.delete("/archival-memory/{memory_id}", responses={200: {"model": dict[str, Any]}}, response_model=None)
async def delete_memory(deps: Deps, agent_id: AgentId, memory_id: str) -> Response:
    deps.archival.forget(await deps.database.write(lambda tx: actions.delete_memory(tx, agent_id, memory_id)))
    return json_response({"message": f"Memory id={memory_id} successfully deleted"})


@router.patch("/archives/attach/{archive_id}", response_model=None)
async def attach_archive(deps: Deps, agent_id: AgentId, archive_id: str) -> Response:
    await deps.database.write(lambda tx: actions.attach_archive(tx, agent_id, archive_id))
    return json_response(None)


@router.patch("/archives/detach/{archive_id}", response_model=None)
async def detach_archive(deps: Deps, agent_id: AgentId, archive_id: str) -> Response:
    await deps.database.write(lambda tx: actions.detach_archive(tx, agent_id, archive_id))
    return json_response(None)
