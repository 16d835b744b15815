"""Messages found by their words."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.actions.messages.read import search_said, search_stored
from holdfast.api.deps import Deps
from holdfast.api.json import json_response
from holdfast.api.routing import LazyRouter
from holdfast.wire.message_search import MessageHit, MessageItem, MessageSearch, SearchAllMessages

router = LazyRouter(prefix="/v1", tags=["messages"])


@router.post("/messages/search", responses={200: {"model": list[MessageItem]}}, response_model=None)
async def search_all_messages(deps: Deps, request: SearchAllMessages) -> Response:
    return json_response(await search_said(deps.database, request))


@router.post("/agents/messages/search", responses={200: {"model": list[MessageHit]}}, response_model=None)
async def search_agent_messages(deps: Deps, request: MessageSearch) -> Response:
    return json_response(await search_stored(deps.database, request))
