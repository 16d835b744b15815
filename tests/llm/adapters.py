"""Every adapter beside the fake of its vendor. Tests that are about all of them are parametrised with `ADAPTERS`."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from holdfast.llm.anthropic.adapter import AnthropicModel
from holdfast.llm.base import Abilities, Model, ModelInfo
from holdfast.llm.bridge.adapter import BridgedModel
from holdfast.llm.chat.adapter import ChatModel
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import Http
from tests.llm.fakes.anthropic import AnthropicProtocol
from tests.llm.fakes.bedrock import MODEL, BedrockProtocol
from tests.llm.fakes.chat import ChatProtocol
from tests.llm.fakes.cohere import CohereProtocol
from tests.llm.fakes.gemini import GeminiProtocol
from tests.llm.fakes.mistral import MistralProtocol
from tests.llm.fakes.responses import ResponsesProtocol
from tests.llm.fakes.script import VendorProtocol
from tests.llm.fakes.server import FakeVendor

Opener = Callable[[str, ModelInfo, Http], Model]  # the fake's url, the model, the pool


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter, the protocol it speaks, and what that protocol has words for."""

    name: str
    protocol: Callable[[], VendorProtocol]
    open: Opener
    reasoning: bool = True
    signatures: bool = False  # reasoning comes back signed, and is sent again with its signature
    redaction: bool = False
    images_in_returns: bool = False
    cache_writes: bool = False  # usage tells them
    reasoning_usage: bool = True  # usage tells how many tokens were thought
    in_stream_errors: bool = True
    images: bool = True
    cached_usage: bool = True  # usage tells what came from a cache
    omits_usage: bool = True  # a reply may end without a word about it
    raw_arguments: bool = True  # arguments travel as text, so that they can be malformed
    shows_payload: bool = True  # False for pydantic-ai, which makes a request only while it sends it
    path: str = ""  # where requests go, for the rules that look at it


def _anthropic(url: str, model: ModelInfo, http: Http) -> Model:
    endpoint = Endpoint(provider_name="anthropic", provider_type="anthropic", base_url=url, api_key="sk-ant-offline")
    return AnthropicModel(endpoint, http, msgspec.structs.replace(model, abilities=Abilities(reasoning=True)))


def _chat(url: str, model: ModelInfo, http: Http) -> Model:
    endpoint = Endpoint(provider_name="openai", provider_type="openai", base_url=f"{url}/v1", api_key="sk-offline-1")
    return ChatModel(endpoint, http, model)


def _mistral(url: str, model: ModelInfo, http: Http) -> Model:
    endpoint = Endpoint(provider_name="mistral", provider_type="mistral", base_url=f"{url}/v1", api_key="sk-offline-1")
    return ChatModel(endpoint, http, model)


def bridge_to(provider_type: str, path: str = "", *, name: str = "offline", reasoning: bool = False) -> Opener:
    def open_model(url: str, model: ModelInfo, http: Http) -> Model:
        endpoint = Endpoint(
            provider_name=provider_type,
            provider_type=provider_type,
            base_url=url + path,
            api_key="sk-offline-1",
            options={"region": "us-east-1", "access_key": "AKIAOFFLINE"} if provider_type == "bedrock" else {},
        )
        known = msgspec.structs.replace(model, name=name, abilities=Abilities(reasoning=reasoning))
        return BridgedModel(endpoint, known, first_byte_s=http._first_byte_s, total_s=http._total_s)

    return open_model


ADAPTERS: list[Adapter] = [
    Adapter(name="openai", protocol=ChatProtocol, open=_chat, path="/v1/chat/completions"),
    Adapter(
        name="anthropic",
        protocol=AnthropicProtocol,
        open=_anthropic,
        signatures=True,
        redaction=True,
        images_in_returns=True,
        cache_writes=True,
        omits_usage=False,
        path="/v1/messages",
    ),
    Adapter(
        name="responses",
        shows_payload=False,
        protocol=ResponsesProtocol,
        open=bridge_to("openai", "/v1", reasoning=True),
        images_in_returns=True,
        path="/v1/responses",
    ),
    Adapter(
        name="gemini",
        shows_payload=False,
        protocol=GeminiProtocol,
        open=bridge_to("google_ai", name="gemini-3-offline", reasoning=True),
        signatures=True,
        images_in_returns=True,
        raw_arguments=False,
        path="/v1beta/models/gemini-3-offline:streamGenerateContent",
    ),
    Adapter(
        name="mistral",
        protocol=MistralProtocol,
        open=_mistral,
        reasoning_usage=False,
        path="/v1/chat/completions",
    ),
    Adapter(
        name="cohere",
        protocol=CohereProtocol,
        open=bridge_to("cohere", "/v1"),
        in_stream_errors=False,
        images=False,
        reasoning_usage=False,
        shows_payload=False,
        path="/v2/chat",
    ),
    Adapter(
        name="bedrock",
        protocol=BedrockProtocol,
        open=bridge_to("bedrock", name=MODEL),
        signatures=True,
        redaction=True,
        images_in_returns=True,
        cache_writes=True,
        reasoning_usage=False,
        shows_payload=False,
        path=f"/model/{MODEL}/converse-stream",
    ),
]


def info(provider_type: str, name: str = "offline") -> ModelInfo:
    return ModelInfo(
        handle=f"{provider_type}/{name}",
        name=name,
        provider_name=provider_type,
        provider_type=provider_type,
        context_window=128_000,
    )


def as_if_not_installed(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither found nor imported, until the test is over."""
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)


@asynccontextmanager
async def opened(
    adapter: Adapter, *, first_byte_s: float = 10, total_s: float = 30
) -> AsyncGenerator[tuple[FakeVendor, Model]]:
    vendor, http = FakeVendor(adapter.protocol()), Http(first_byte_s=first_byte_s, total_s=total_s)
    async with vendor.serving():
        model = adapter.open(vendor.url, info(adapter.name), http)
        try:
            yield vendor, model
        finally:
            if isinstance(model, BridgedModel):
                await model.aclose()
            await http.aclose()
