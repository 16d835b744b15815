"""The address of a provider that a user brought, judged at every connection, whichever adapter makes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from holdfast.errors import AddressRefused, ModelError
from holdfast.llm.base import Abilities, Model
from holdfast.llm.catalog.adapters import Vendors
from holdfast.llm.catalog.catalog import Closable
from holdfast.llm.endpoint import Endpoint, is_written_by_user
from holdfast.netguard import Guard
from tests.names import PRIVATE, PUBLIC, Names, one_port_on

from .adapters import ADAPTERS, Adapter, info
from .conversations import request
from .fakes.bedrock import MODEL
from .fakes.server import FakeVendor
from .test_adapters import reply_of

NAME = "vendor.example"
# By the adapter's name: the type of its provider, and what comes after the host.
KINDS = {
    "openai": ("openai", "/v1"),
    "anthropic": ("anthropic", ""),
    "responses": ("openai", "/v1"),
    "gemini": ("google_ai", ""),
    "mistral": ("mistral", "/v1"),
    "cohere": ("cohere", "/v1"),
    "bedrock": ("bedrock", ""),
}
MODELS = {"gemini": "gemini-3-offline", "bedrock": MODEL}
adapters = pytest.mark.parametrize("adapter", [pytest.param(one, id=one.name) for one in ADAPTERS if one.name in KINDS])


def endpoint_of(adapter: Adapter, port: int, host: str = NAME) -> Endpoint:
    provider_type, path = KINDS[adapter.name]
    return Endpoint(
        provider_name="mine",
        provider_type=provider_type,
        base_url=f"http://{host}:{port}{path}",
        api_key="sk-offline-1",
        options={"region": "us-east-1", "access_key": "AKIAOFFLINE"} if provider_type == "bedrock" else {},
        category="byok",
    )


@asynccontextmanager
async def two_servers(adapter: Adapter) -> AsyncGenerator[tuple[FakeVendor, FakeVendor, int]]:
    outside, inside = FakeVendor(adapter.protocol()), FakeVendor(adapter.protocol())
    outside.keeps_connections = False  # so that every request looks the name up
    with one_port_on(PUBLIC, PRIVATE) as (first, second):
        port = first.getsockname()[1]
        async with outside.serving(bound=first), inside.serving(bound=second):
            yield outside, inside, port


@asynccontextmanager
async def opened(adapter: Adapter, endpoint: Endpoint) -> AsyncGenerator[Model]:
    vendors = Vendors(
        first_byte_s=10,
        total_s=30,
        openai_responses="always" if adapter.name == "responses" else "never",
        guard=Guard((PUBLIC,)),
    )
    known = msgspec.structs.replace(
        info(endpoint.provider_type, MODELS.get(adapter.name, "offline")), abilities=Abilities(reasoning=True)
    )
    model = vendors.open(endpoint, known)
    try:
        yield model
    finally:
        if isinstance(model, Closable):
            await model.aclose()
        await vendors.aclose()


@adapters
async def test_a_name_that_came_to_lead_inside_is_not_followed(adapter: Adapter, names: Names) -> None:
    names.point(NAME, [PUBLIC], [PRIVATE])
    async with two_servers(adapter) as (outside, inside, port), opened(adapter, endpoint_of(adapter, port)) as model:
        await reply_of(model, request("Hello"))
        assert outside.last.headers["host"] == f"{NAME}:{port}"
        with pytest.raises(AddressRefused, match="not a public address"):
            await reply_of(model, request("Hello"))
        assert (outside.connections_made, inside.connections_made) == (1, 0)
        assert names.lookups == [NAME, NAME], "what was looked up is what was connected to"


@adapters
@pytest.mark.parametrize("addresses", [[PUBLIC, PRIVATE], [PRIVATE, PUBLIC], [PUBLIC, "::1"]])
async def test_a_name_with_an_address_inside_is_refused_as_a_whole(
    adapter: Adapter, names: Names, addresses: list[str]
) -> None:
    names.point(NAME, addresses)
    async with two_servers(adapter) as (outside, inside, port), opened(adapter, endpoint_of(adapter, port)) as model:
        with pytest.raises(AddressRefused):
            await reply_of(model, request("Hello"))
        assert outside.connections_made == inside.connections_made == 0


@adapters
@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "0.0.0.0", "127.1", "0x7f.1"])
async def test_an_address_inside_is_refused_however_it_is_written(adapter: Adapter, host: str) -> None:
    async with two_servers(adapter) as (_, inside, port), opened(adapter, endpoint_of(adapter, port, host)) as model:
        with pytest.raises(ModelError):
            await reply_of(model, request("Hello"))
        assert inside.connections_made == 0


@adapters
async def test_the_next_address_of_a_name_is_tried_when_nobody_listens_at_the_first(
    adapter: Adapter, names: Names
) -> None:
    async with two_servers(adapter) as (outside, _, port):
        endpoint = endpoint_of(adapter, port)
        names.point(NAME, ["127.0.0.3", PUBLIC])
        vendors = Vendors(
            first_byte_s=10,
            total_s=30,
            openai_responses="always" if adapter.name == "responses" else "never",
            guard=Guard((PUBLIC, "127.0.0.3")),
        )
        model = vendors.open(endpoint, info(endpoint.provider_type, MODELS.get(adapter.name, "offline")))
        await reply_of(model, request("Hello"))
        assert outside.connections_made == 1
        if isinstance(model, Closable):
            await model.aclose()
        await vendors.aclose()


def test_only_addresses_that_a_user_had_a_say_in_are_guarded() -> None:
    official = Endpoint(provider_name="x", provider_type="openai", base_url="https://api.openai.com/v1")
    assert not is_written_by_user(official)
    assert not is_written_by_user(msgspec.structs.replace(official, category="byok"))
    other = msgspec.structs.replace(official, base_url="https://api.openai.com:8443/v1", category="byok")
    assert is_written_by_user(other)
    assert not is_written_by_user(msgspec.structs.replace(other, category="base"))
