"""Every adapter beside the fake of its vendor. Tests that are about all of them are parametrised with `ADAPTERS`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from holdfast.llm.anthropic import AnthropicModel
from holdfast.llm.base import Abilities, Model, ModelInfo
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import Http
from tests.llm.fakes.anthropic import AnthropicProtocol
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
    in_stream_errors: bool = True


def _anthropic(url: str, model: ModelInfo, http: Http) -> Model:
    endpoint = Endpoint(provider_name="anthropic", provider_type="anthropic", base_url=url, api_key="sk-ant-offline")
    return AnthropicModel(endpoint, http, msgspec.structs.replace(model, abilities=Abilities(reasoning=True)))


ADAPTERS: list[Adapter] = [
    Adapter(
        name="anthropic",
        protocol=AnthropicProtocol,
        open=_anthropic,
        signatures=True,
        redaction=True,
        images_in_returns=True,
        cache_writes=True,
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


@asynccontextmanager
async def opened(
    adapter: Adapter, *, first_byte_s: float = 10, total_s: float = 30
) -> AsyncGenerator[tuple[FakeVendor, Model]]:
    vendor, http = FakeVendor(adapter.protocol()), Http(first_byte_s=first_byte_s, total_s=total_s)
    async with vendor.serving():
        try:
            yield vendor, adapter.open(vendor.url, info(adapter.name), http)
        finally:
            await http.aclose()
