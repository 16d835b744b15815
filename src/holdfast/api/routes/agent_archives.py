"""The archival memory of one agent."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from holdfast.actions import archives as actions
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, AgentId, Before, Count, Deps, Limit, SearchQuery
from holdfast.wire.archives import (
    AgentPassageCreate,
    MemorySearchAnswer,
    PassageUpdate,
    PassageView,
    TagMatchMode,
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
    return json_response(await actions.list_memory(deps.database, agent_id, page, search))


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
    answer = await actions.search_memory(
        deps.database,
        deps.archival,
        agent_id,
        query,
        top_k,
        tags=tags or (),
        match_all_tags=tag_match_mode == "all",
        start=start_datetime,
        end=end_datetime,
    )
    return json_response(answer)


@router.patch("/archival-memory/{memory_id}", responses={200: {"model": list[PassageView]}}, response_model=None)
async def change_memory(
    deps: Deps, agent_id: AgentId, memory_id: str, request: PassageUpdate | None = None
) -> Response:
    """The answer is a list, as that to a new passage is."""
    changed = await actions.change_memory(deps.archival, agent_id, memory_id, request or PassageUpdate())
    return json_response(changed)


@router.delete("/archival-memory/{memory_id}", responses={200: {"model": dict[str, Any]}}, response_model=None)
async def delete_memory(deps: Deps, agent_id: AgentId, memory_id: str) -> Response:
    await actions.delete_memory(deps.database, deps.archival, agent_id, memory_id)
    return json_response({"message": f"Memory id={memory_id} successfully deleted"})


@router.patch("/archives/attach/{archive_id}", response_model=None)
async def attach_archive(deps: Deps, agent_id: AgentId, archive_id: str) -> Response:
    await actions.attach_archive(deps.database, agent_id, archive_id)
    return json_response(None)


@router.patch("/archives/detach/{archive_id}", response_model=None)
async def detach_archive(deps: Deps, agent_id: AgentId, archive_id: str) -> Response:
    await actions.detach_archive(deps.database, agent_id, archive_id)
    return json_response(None)
