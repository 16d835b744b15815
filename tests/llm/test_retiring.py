"""A provider that was changed or removed: replies that are on their way still come, then its connections are closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from holdfast.core.deltas import TextDelta
from holdfast.llm.catalog.adapters import Vendors
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.endpoint import Endpoint
from tests.scenario import eventually

from .conversations import request
from .fakes.responses import ResponsesProtocol
from .fakes.script import Script
from .fakes.server import FakeVendor
from .test_adapters import reply_of

HANDLE = "mine/offline"
LISTING = 1  # connection of the pool that lists models, which stays
LONG = Script(deltas=(TextDelta("Well, "), TextDelta("well")))


class Brought:
    def __init__(self, *endpoints: Endpoint) -> None:
        self.endpoints = list(endpoints)

    async def __call__(self) -> list[Endpoint]:
        return list(self.endpoints)


@asynccontextmanager
async def brought() -> AsyncGenerator[tuple[FakeVendor, ModelCatalog, Brought]]:
    vendor = FakeVendor(ResponsesProtocol())
    async with vendor.serving():
        endpoint = Endpoint(
            provider_name="mine",
            provider_type="openai",
            base_url=f"{vendor.url}/v1",
            api_key="sk-offline-1",
            category="byok",
        )
        known = Brought(endpoint)
        catalog = ModelCatalog(brought=known, vendors=Vendors(first_byte_s=10, total_s=30, openai_responses="always"))
        try:
            yield vendor, catalog, known
        finally:
            await catalog.aclose()


@pytest.mark.parametrize("change", ["another key", "removed"])
async def test_a_reply_that_is_on_its_way_is_read_to_its_end_and_then_the_connections_are_closed(change: str) -> None:
    async with brought() as (vendor, catalog, known):
        model = catalog.open(await catalog.find(HANDLE))
        vendor.will(LONG)
        deltas = model.stream(request("Hello"))
        said = [await anext(deltas)]
        (endpoint,) = known.endpoints
        known.endpoints = [msgspec.structs.replace(endpoint, api_key="sk-2")] if change == "another key" else []

        await catalog.reload()
        await catalog.reload()
        said += [delta async for delta in deltas]

        assert "".join(delta.text for delta in said if isinstance(delta, TextDelta)) == "Well, well"
        await eventually(lambda: vendor.open_connections <= LISTING)


async def test_an_unused_model_is_closed_at_once_when_its_provider_is_removed() -> None:
    async with brought() as (vendor, catalog, known):
        await reply_of(catalog.open(await catalog.find(HANDLE)), request("Hello"))
        assert vendor.open_connections > LISTING
        known.endpoints = []
        await catalog.reload()
        await eventually(lambda: vendor.open_connections <= LISTING)


async def test_whoever_had_found_a_model_before_its_provider_was_changed_can_still_ask_it() -> None:
    async with brought() as (vendor, catalog, known):
        model = catalog.open(await catalog.find(HANDLE))
        known.endpoints = []
        await catalog.reload()
        await reply_of(model, request("Hello"))
        await eventually(lambda: vendor.open_connections <= LISTING)


async def test_models_of_a_provider_that_changes_often_do_not_pile_up() -> None:
    async with brought() as (vendor, catalog, known):
        for number in range(5):
            (endpoint,) = known.endpoints
            known.endpoints = [msgspec.structs.replace(endpoint, api_key=f"sk-{number}")]
            await catalog.reload()
            await reply_of(catalog.open(await catalog.find(HANDLE)), request("Hello"))
            await eventually(lambda: vendor.open_connections <= LISTING + 1)
