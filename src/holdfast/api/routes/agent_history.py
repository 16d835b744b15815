"""An agent's own history: what is in view, and how to shorten it or begin again."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from holdfast.actions.messages.preview import preview_request
from holdfast.actions.messages.send import SendRequest
from holdfast.actions.threads import context
from holdfast.actions.threads.compact import compact_thread
from holdfast.actions.threads.find import DEFAULT, thread_of
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import AgentId, Deps
from holdfast.api.routes.messages import parse
from holdfast.wire.agents import AgentState
from holdfast.wire.context import ContextOverview
from holdfast.wire.conversations import CompactionRequest, CompactionView, ResetMessagesRequest, compaction_view
from holdfast.wire.requests import LettaStreamingRequest

router = LazyRouter(prefix="/v1/agents/{agent_id}", tags=["agents"])


@router.post("/summarize", responses={200: {"model": CompactionView}}, response_model=None)
async def compact(deps: Deps, agent_id: AgentId, request: CompactionRequest | None = None) -> Response:
    made = await compact_thread(
        agent_id,
        request.compaction_settings if request else None,
        database=deps.database,
        catalog=deps.catalog,
        compactor=deps.compactor,
        clock=deps.clock,
        refuse_empty=False,
    )
    return json_response(compaction_view(made.summary, made.before, made.after))


@router.patch("/reset-messages", responses={200: {"model": AgentState}}, response_model=None)
async def reset(deps: Deps, agent_id: AgentId, request: ResetMessagesRequest | None = None) -> Response:
    greet = request is not None and request.add_default_initial_messages
    return json_response(await context.reset_messages(deps.database, agent_id, deps.clock, greet=greet))


@router.post("/recompile", response_model=str)
@router.post("/system-prompt/recompile", response_model=str, deprecated=True)
async def recompile(deps: Deps, agent_id: AgentId, update_timestamp: bool = False, dry_run: bool = False) -> Response:
    now_us = deps.clock.now_us()
    text = await context.recompile(deps.database, agent_id, now_us, dry_run=dry_run, update_timestamp=update_timestamp)
    return json_response(text)


@router.get("/context", deprecated=True, responses={200: {"model": ContextOverview}}, response_model=None)
async def overview(deps: Deps, agent_id: AgentId, conversation_id: str = DEFAULT) -> Response:
    thread_id = thread_of(conversation_id, agent_id)
    ratios = deps.compactor.ratios
    return json_response(
        await context.read_context(deps.database, deps.catalog, ratios, agent_id, thread_id, deps.clock.now_us())
    )


@router.post("/messages/preview-raw-payload", responses={200: {"model": dict[str, Any]}}, response_model=None)
async def preview(deps: Deps, agent_id: AgentId, request: LettaStreamingRequest) -> Response:
    sending = SendRequest(
        thread_id=agent_id,
        parsed=await parse(deps, request),
        request=request,
        run_type="preview",
        request_config=request.request_config(),
    )
    payload = await preview_request(sending, database=deps.database, catalog=deps.catalog, clock=deps.clock)
    return json_response(payload)
