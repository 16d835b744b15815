"""What changes, as it changes: a stream of short events that say what to read again."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.feed_stream import FeedStream
from holdfast.api.framework.routing import LazyRouter
from holdfast.core.changes import ChangeType
from holdfast.wire.feed import FeedEvent

router = LazyRouter(prefix="/v1/events", tags=["events"])


@router.get(
    "/",
    responses={
        200: {
            "description": "Server-sent events, without an end. The data of each is a FeedEvent.",
            "content": {"text/event-stream": {}},
            "model": FeedEvent,
        }
    },
    response_model=None,
)
async def follow_events(
    deps: Deps,
    agent_id: Annotated[str | None, Query(description="Only changes of this agent.")] = None,
    types: Annotated[list[ChangeType] | None, Query(description="Only changes of these types.")] = None,
) -> Response:
    """Runs, approvals, agents and files that were created or changed. After `hello`, and after each `resync`, read the
    lists: they are the truth, and the events say when to read them again."""
    return FeedStream(
        deps.feed, deps.clock, keepalive_s=deps.settings.keepalive_s, agent_id=agent_id or None, types=types
    )
