"""The change feed as server-sent events: small JSON objects that say what to read again."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from typing_extensions import TypedDict

from holdfast.core.changes import Change
from holdfast.wire.times import timestamp

KEEP_ALIVE: Final = b": nothing has changed\n\n"
_encode: Final = msgspec.json.Encoder().encode


class FeedEvent(TypedDict):
    """In `hello` and `resync`, everything but the type and the time is null."""

    type: Literal["hello", "run", "approval", "agent", "file", "resync"]
    id: str | None  # of an approval: that of the run which waits
    agent_id: str | None
    conversation_id: str | None  # null for an agent's default thread, too
    folder_id: str | None
    status: str | None
    stop_reason: str | None
    at: str  # when it was told, by the server's clock


def feed_event(news: Change | Literal["hello", "resync"], at_us: int) -> bytes:
    change = Change("run", "", "") if isinstance(news, str) else news
    shown: FeedEvent = {
        "type": news if isinstance(news, str) else news.type,
        "id": change.id or None,
        "agent_id": change.agent_id,
        "conversation_id": None if change.thread_id == change.agent_id else change.thread_id,
        "folder_id": change.folder_id,
        "status": change.status or None,
        "stop_reason": change.stop_reason,
        "at": timestamp(at_us),
    }
    return b"data: " + _encode(shown) + b"\n\n"
