"""Agents: create, read, change, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from starlette.responses import Response

from holdfast import ids
from holdfast.actions.agents import read
from holdfast.actions.agents.create import create_agent
from holdfast.actions.agents.generate import generate
from holdfast.actions.agents.update import delete_agent, update_agent
from holdfast.actions.queries import AgentFilter, Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, AgentId, Asking, Before, Deps, Limit, Opener, Order, SearchQuery, defaults_of
from holdfast.core.records import StopReason
from holdfast.wire.agents import AgentState, CreateAgentRequest, Include, MemoryView, UpdateAgent, shown_relations
from holdfast.wire.generate import GenerateRequest, GenerateResponse

router = LazyRouter(prefix="/v1/agents", tags=["agents"])
counting_router = LazyRouter(prefix="/v1/_internal_agents", tags=["agents"])

Texts = Annotated[list[str] | None, Query()]
Included = Annotated[list[Include], Query(description="Relations to show; the others come back empty.")]
Relationships = Annotated[list[str] | None, Query(deprecated=True)]


class Which:
    """Query parameters that say which agents are meant."""

    def __init__(
        self,
        name: str | None = None,
        tags: Texts = None,
        match_all_tags: bool = False,
        query_text: SearchQuery = None,
        project_id: str | None = None,
        template_id: str | None = None,
        base_template_id: str | None = None,
        identity_id: str | None = None,
        identifier_keys: Texts = None,
        last_stop_reason: StopReason | None = None,
        created_by_id: str | None = None,
        show_hidden_agents: bool = False,
    ) -> None:
        # One user owns everything.
        self.nobody = created_by_id not in (None, ids.DEFAULT_USER)
        self.filters = AgentFilter(
            name=name,
            query_text=query_text,
            tags=tuple(tags or ()),
            match_all_tags=match_all_tags,
            project_id=project_id,
            template_id=template_id,
            base_template_id=base_template_id,
            identity_id=identity_id,
            identifier_keys=tuple(identifier_keys or ()),
            last_stop_reason=last_stop_reason,
            show_hidden=show_hidden_agents,
        )


@router.get("/", responses={200: {"model": list[AgentState]}}, response_model=None)
async def list_agents(
    deps: Deps,
    opener: Opener,
    asking: Asking,
    which: Annotated[Which, Depends()],
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    include_relationships: Relationships = None,
    include: Included = [],  # noqa: B006 - FastAPI copies it
    order: Order = "desc",
    order_by: Literal["created_at", "updated_at", "last_run_completion"] = "created_at",
    ascending: Annotated[bool, Query(deprecated=True)] = False,
    sort_by: Annotated[str | None, Query(deprecated=True)] = None,
) -> Response:
    if which.nobody:
        return json_response([])
    relations = shown_relations(include, include_relationships, whole=asking.whole_agents)
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response(await read.list_agents(deps.database, which.filters, page, relations, opener, order_by))


@router.post("/", responses={200: {"model": AgentState}}, response_model=None)
async def create(deps: Deps, request: CreateAgentRequest) -> Response:
    state = await create_agent(
        request,
        database=deps.database,
        catalog=deps.catalog,
        secretbox=deps.secretbox,
        defaults=defaults_of(deps),
        now_us=deps.clock.now_us(),
    )
    return json_response(state)


@router.get("/count", response_model=int)
async def count_agents(deps: Deps, which: Annotated[Which, Depends()]) -> Response:
    return json_response(0 if which.nobody else await read.count_agents(deps.database, which.filters))


@counting_router.get("/count", response_model=int)
async def count_all(deps: Deps, exclude_hidden: bool = True) -> Response:
    """All agents; `/v1/agents/count` counts some."""
    return json_response(await read.count_agents(deps.database, AgentFilter(show_hidden=not exclude_hidden)))


@router.get("/{agent_id}", responses={200: {"model": AgentState}}, response_model=None)
async def retrieve(
    deps: Deps,
    opener: Opener,
    asking: Asking,
    agent_id: AgentId,
    include_relationships: Relationships = None,
    include: Included = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    relations = shown_relations(include, include_relationships, whole=asking.whole_agents)
    return json_response(await read.read_agent(deps.database, agent_id, relations, opener))


@router.patch("/{agent_id}", responses={200: {"model": AgentState}}, response_model=None)
async def update(deps: Deps, agent_id: AgentId, request: UpdateAgent) -> Response:
    state = await update_agent(
        agent_id,
        request,
        database=deps.database,
        catalog=deps.catalog,
        secretbox=deps.secretbox,
        defaults=defaults_of(deps),
        now_us=deps.clock.now_us(),
    )
    return json_response(state)


@router.delete("/{agent_id}", responses={200: {"model": dict[str, Any]}}, response_model=None)
async def delete(deps: Deps, agent_id: AgentId) -> Response:
    await delete_agent(agent_id, database=deps.database, cancel=deps.cancel, archival=deps.archival, clock=deps.clock)
    return json_response({"message": f"Agent id={agent_id} successfully deleted"})


@router.get("/{agent_id}/core-memory", deprecated=True, responses={200: {"model": MemoryView}}, response_model=None)
async def retrieve_memory(deps: Deps, agent_id: AgentId) -> Response:
    return json_response(await read.read_memory(deps.database, agent_id))


@router.post("/{agent_id}/generate", responses={200: {"model": GenerateResponse}}, response_model=None)
async def generate_once(deps: Deps, agent_id: AgentId, request: GenerateRequest) -> Response:
    asker = deps.compactor.asker
    return json_response(await generate(agent_id, request, database=deps.database, catalog=deps.catalog, asker=asker))
