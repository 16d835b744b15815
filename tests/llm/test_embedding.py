"""Embeddings over real sockets: what is asked, what is made of the answer, and what is tried again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.core.failures import RetryPolicy
from holdfast.errors import AddressRefused, BadReply, NotFound, Rejected, Unsupported
from holdfast.llm.catalog.adapters import Vendors
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.offline import vectors
from holdfast.ssrf_guard import Guard

from .listing import ListingServer, endpoint_at, listing

PATH = "/v1/embeddings"


def answered(body: dict[str, Any]) -> dict[str, Any]:
    """Out of order, as a server may."""
    items = [
        {"object": "embedding", "index": at, "embedding": [len(text), 1.0]} for at, text in enumerate(body["input"])
    ]
    return {"object": "list", "data": items[::-1], "model": body["model"], "usage": {"prompt_tokens": 1}}


@asynccontextmanager
async def serving(**options: Any) -> AsyncGenerator[tuple[ListingServer, ModelCatalog]]:
    async with listing({PATH: answered}) as server:
        catalog = ModelCatalog([endpoint_at(server)], retry_policy=RetryPolicy(2, 0.001), **options)
        try:
            yield server, catalog
        finally:
            await catalog.aclose()


async def test_texts_become_vectors_in_their_order() -> None:
    async with serving() as (server, catalog):
        assert await catalog.embed("openai/small", ["a", "bcd"]) == [[1.0, 1.0], [3.0, 1.0]]
        [asked] = server.asked
        assert asked.body == {"model": "small", "input": ["a", "bcd"]}
        assert asked.headers["Authorization"] == "Bearer a-secret-key"
        assert await catalog.embed("openai-proxy/small", ["a"]) == [[1.0, 1.0]]


async def test_azure_has_the_model_in_the_path() -> None:
    path = "/openai/deployments/mine/embeddings?api-version=1"
    async with listing({path: answered}) as server:
        catalog = ModelCatalog([endpoint_at(server, "azure", options={"api_version": "1"})])
        assert await catalog.embed("azure/mine", ["a"]) == [[1.0, 1.0]]
        await catalog.aclose()


async def test_what_fails_in_passing_is_tried_again() -> None:
    async with serving() as (server, catalog):
        left = [1]

        def once(body: dict[str, Any]) -> dict[str, Any]:
            if left.pop():
                left.append(0)
                server.statuses[PATH] = 503
                return {"error": {"message": "busy"}}
            server.statuses.pop(PATH)
            return answered(body)

        server.answers[PATH] = once
        assert await catalog.embed("openai/small", ["a"]) == [[1.0, 1.0]]
        assert len(server.asked) == 2


async def test_what_cannot_be_mended_is_told_at_once() -> None:
    async with serving() as (server, catalog):
        server.breaks(PATH, 404, "no such model")
        with pytest.raises(Rejected, match="no such model"):
            await catalog.embed("openai/small", ["a"])
        assert len(server.asked) == 1
        odd: list[Any] = [{"data": []}, {"data": "x"}, {"data": [{"embedding": ["x"]}]}, []]
        for wrong in odd:
            server.heals(PATH, wrong)
            with pytest.raises(BadReply):
                await catalog.embed("openai/small", ["a"])
        with pytest.raises(NotFound):
            await catalog.embed("nobody/small", ["a"])


async def test_a_vendor_with_a_protocol_of_its_own_is_not_asked() -> None:
    async with listing({}) as server:
        catalog = ModelCatalog([endpoint_at(server, "google_ai")])
        with pytest.raises(Unsupported):
            await catalog.embed("google_ai/gemini-embedding-001", ["a"])
        assert server.asked == []


async def test_an_address_that_a_user_wrote_is_guarded() -> None:
    async with listing({PATH: answered}) as server:
        endpoint = endpoint_at(server, provider_name="mine", category="byok")

        async def brought() -> list[Any]:
            return [endpoint]

        catalog = ModelCatalog(brought=brought, vendors=Vendors(guard=Guard(())))
        with pytest.raises(AddressRefused):
            await catalog.embed("mine/small", ["a"])
        assert server.asked == []
        await catalog.aclose()


async def test_offline_embeddings_tell_what_is_alike() -> None:
    catalog = ModelCatalog(offline_embeddings=True)
    assert vectors.HANDLE in [one["handle"] for one in await catalog.embedding_models()]
    texts = ["my dog is a beagle", "the puppy needs a walk", "interest rates rose again"]
    pet, puppy, money = await catalog.embed(vectors.HANDLE, texts)
    assert len(pet) == vectors.DIMENSION
    near = [sum(a * b for a, b in zip(pet, other, strict=True)) for other in (puppy, money)]
    assert near[0] > near[1]
    with pytest.raises(NotFound):
        await ModelCatalog().embed(vectors.HANDLE, texts)


@pytest.mark.slow
def test_a_server_that_embeds_nothing_loads_no_library_for_it() -> None:
    program = "import sys, holdfast.wiring; print({'numpy', 'wordllama', 'tokenizers'} & sys.modules.keys())"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
