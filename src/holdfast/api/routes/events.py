"""What changes, as it changes: a stream of short events that say what to read again.

It ends when the reader leaves, or the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Annotated

from fastapi import Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.api.answers import EVENT_STREAM_HEADERS, reader_left
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import Deps
from holdfast.core.changes import ChangeType
from holdfast.engine.clock import Clock
from holdfast.engine.feed import Feed, FeedReader, Hello, News, Resync
from holdfast.wire.feed import KEEP_ALIVE, FeedEvent, feed_event

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


class FeedStream(Response):
    media_type = "text/event-stream"

    def __init__(
        self,
        feed: Feed,
        clock: Clock,
        *,
        keepalive_s: float,
        agent_id: str | None = None,
        types: Collection[ChangeType] | None = None,
    ) -> None:
        """`agent_id` and `types`: only changes of these."""
        self.status_code = 200
        self.background = None
        self.body = b""
        self._feed = feed
        self._clock = clock
        self._keepalive_s = keepalive_s
        self._agent_id = agent_id
        self._types = types

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feed.reading() as reader:
            await send({"type": "http.response.start", "status": self.status_code, "headers": EVENT_STREAM_HEADERS})
            children = [asyncio.create_task(self._write(reader, send)), asyncio.create_task(reader_left(receive))]
            try:
                done, _ = await asyncio.wait(children, return_when=asyncio.FIRST_COMPLETED)
                for child in done:
                    child.result()
            finally:
                for child in children:
                    child.cancel()
                await asyncio.wait(children)

    async def _write(self, reader: FeedReader, send: Send) -> None:
        """A client that does not read holds up `send`, and then what it has missed is one `resync`."""
        while (news := await reader.next(self._keepalive_s)) is not None:
            body = self._shown(news) if news else KEEP_ALIVE
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _shown(self, news: Sequence[News]) -> bytes:
        now_us = self._clock.now_us()
        return b"".join(self._event(each, now_us) for each in news)

    def _event(self, news: News, now_us: int) -> bytes:
        if isinstance(news, Hello):
            return feed_event("hello", now_us)
        if isinstance(news, Resync):
            return feed_event("resync", now_us)
        if self._types is not None and news.type not in self._types:
            return b""
        if self._agent_id is not None and news.agent_id != self._agent_id:
            return b""
        return feed_event(news, now_us)
