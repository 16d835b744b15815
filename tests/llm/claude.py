"""Builders for tests of the Anthropic adapter: a model by name, its payload, a conversation with the fake."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.core.deltas import Delta, Reply, ReplyFolder
from holdfast.core.messages import AnyPart, Text, ToolReturn, Turn
from holdfast.llm.anthropic.adapter import AnthropicModel
from holdfast.llm.anthropic.payload import betas, messages_payload
from holdfast.llm.base import Abilities, Model, ModelInfo, ModelRequest
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import Http
from tests.llm.adapters import info
from tests.llm.conversations import request
from tests.llm.fakes.anthropic import AnthropicProtocol
from tests.llm.fakes.server import FakeVendor

BUDGETED = "claude-sonnet-4-5"
ADAPTIVE = "claude-opus-4-8"
BOUND = "claude-opus-5-5"
OLD = "claude-3-5-haiku-latest"


def claude(name: str = BUDGETED, **more: Any) -> ModelInfo:
    return msgspec.structs.replace(info("anthropic", name), **more)


def endpoint(url: str = "http://127.0.0.1", **options: str) -> Endpoint:
    return Endpoint(
        provider_name="anthropic", provider_type="anthropic", base_url=url, api_key="sk-ant-x", options=options
    )


def payload(*turns: Turn | str, model: str | ModelInfo = BUDGETED, **more: Any) -> dict[str, Any]:
    """What would be sent. The fake looks it over: it stands in for the vendor's own judgement."""
    chosen = claude(model) if isinstance(model, str) else model
    made = messages_payload(request(*turns, **more), chosen)
    assert AnthropicProtocol().complaint("/v1/messages", msgspec.json.decode(msgspec.json.encode(made))) is None
    return made


def betas_for(
    *turns: Turn | str, model: str = BUDGETED, options: dict[str, str] | None = None, **more: Any
) -> list[str]:
    return betas(endpoint(**(options or {})), claude(model), payload(*turns, model=model, **more))


def said(*parts: AnyPart | str) -> Turn:
    return Turn("assistant", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def returned(*ids: str, content: Any = "done", status: Any = "success") -> Turn:
    return Turn("tool", tuple(ToolReturn(call_id, "print_tool", status, content) for call_id in ids))


@asynccontextmanager
async def conversing(
    model: str = BUDGETED, protocol: AnthropicProtocol | None = None
) -> AsyncGenerator[tuple[FakeVendor, Model]]:
    vendor, http = FakeVendor(protocol or AnthropicProtocol()), Http(first_byte_s=60, total_s=90)
    async with vendor.serving():
        try:
            yield vendor, AnthropicModel(endpoint(vendor.url), http, claude(model, abilities=Abilities(reasoning=True)))
        finally:
            await http.aclose()


async def deltas_from(model: Model, asked: ModelRequest) -> list[Delta]:
    return [delta async for delta in model.stream(asked)]


async def reply_from(model: Model, asked: ModelRequest) -> Reply:
    return folded(await deltas_from(model, asked))


def folded(deltas: Sequence[Delta]) -> Reply:
    folder = ReplyFolder()
    for delta in deltas:
        folder.add(delta)
    return folder.reply()


def events(*said: dict[str, Any]) -> bytes:
    """A stream as the vendor sends it, each event named by its type."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (str(one["type"]).encode(), msgspec.json.encode(one)) for one in said)
