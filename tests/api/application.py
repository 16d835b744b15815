"""The HTTP application alone: real layers and translations around a few routes made for the tests."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
from fastapi import APIRouter, Body
from pydantic import BaseModel
from starlette.responses import Response

from holdfast.actions.dependencies import Holdfast
from holdfast.api.answers import json_response
from holdfast.api.params import After, AgentId, ConversationId, Deps, Int64, Limit, Order
from holdfast.api.server import ROUTERS, create_app
from holdfast.engine.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.settings import Settings

AGENT = "agent-123e4567-e89b-42d3-8456-426614174000"


class Note(BaseModel):
    text: str
    extra: dict[str, Any] = {}


class Worker:
    leaving = False


def router_for_tests(failure: HoldfastError | Exception | None = None) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/notes/")
    async def list_notes(limit: Limit = 50, after: After = None, order: Order = "desc", since: Int64 = 0) -> Response:
        return json_response({"limit": limit, "after": after, "order": order, "since": since})

    @router.post("/v1/notes/")
    async def write_note(note: Note) -> Response:
        return json_response(note)

    @router.get("/v1/notes/count")
    async def count_notes() -> Response:
        return json_response(7)

    @router.get("/v1/notes/{agent_id}")
    async def read_note(agent_id: AgentId, deps: Deps) -> Response:
        return json_response({"agent": agent_id, "port": deps.settings.port})

    @router.get("/v1/talks/{conversation_id}")
    async def read_talk(conversation_id: ConversationId) -> Response:
        return json_response(conversation_id)

    @router.get("/v1/labels/{label}")
    async def read_label(label: str) -> Response:
        return json_response(label)

    @router.post("/v1/uploads")
    async def upload(content: Annotated[bytes, Body(media_type="application/octet-stream")]) -> Response:
        return json_response(len(content))

    @router.get("/v1/failure")
    async def fail() -> Response:
        assert failure is not None
        raise failure

    return router


@asynccontextmanager
async def client_of(
    *, failure: Exception | None = None, headers: dict[str, str] | None = None, **settings: Any
) -> AsyncGenerator[httpx.AsyncClient]:
    app = create_app(_deps(Settings(data_dir=Path("unused"), **settings)), (*ROUTERS, router_for_tests(failure)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://holdfast", headers=headers) as client:
        yield client


def _deps(settings: Settings) -> Holdfast:
    """Only what the skeleton itself touches; a route that reaches for more fails loudly."""
    parts: dict[str, Any] = dict.fromkeys(Holdfast.__struct_fields__)
    parts.update(settings=settings, database=_Answering(), worker=Worker(), clock=SystemClock())
    return Holdfast(**parts)


class _Answering(msgspec.Struct):
    async def check(self) -> int:
        return time.time_ns() // 1_000
