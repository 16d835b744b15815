"""Listing models."""

from __future__ import annotations

from pathlib import Path

from tests.llm.listing import ListingServer, listing, openai_list
from tests.served import served as serving

from .resources import Served


async def test_the_client_lists_models(served: Served) -> None:
    found = {model.handle: model for model in await served.client.models.list()}
    assert set(found) == {"holdfast/offline", "acme/large"}
    large = found["acme/large"]
    assert (large.name, large.provider_name, large.provider_type) == ("large", "acme", "anthropic")
    assert (large.max_context_window, large.context_window, large.api_model_type) == (200_000, 200_000, "llm")


async def test_a_listed_model_shows_how_a_new_agent_calls_it(served: Served) -> None:
    for listed in await served.ok("GET", "/v1/models/"):
        described = await served.create(llm_config=listed)
        named = await served.create(model=listed["handle"], context_window_limit=listed["context_window"])
        for agent in (described, named):
            config = agent["llm_config"]
            kept = {name: listed[name] for name in config if name not in ("model_endpoint", "display_name", "model")}
            assert kept == {name: config[name] for name in kept}
        assert described["model_settings"] == named["model_settings"]


async def test_models_are_filtered_by_provider(served: Served) -> None:
    async def handles(**query: str) -> list[str]:
        return [model["handle"] for model in await served.ok("GET", "/v1/models/", **query)]

    assert await handles(provider_name="acme") == ["acme/large"]
    assert await handles(provider_type="anthropic") == ["acme/large"]
    assert await handles(provider_category="byok") == []
    assert len(await handles(provider_category="base")) == 2
    assert "provider_type" in await served.refused(422, "GET", "/v1/models/", provider_type="nobody")


async def test_the_client_lists_embedding_models(served: Served) -> None:
    (found,) = await served.client.models.embeddings.list()
    assert (found.handle, found.embedding_dim, found.name) == ("acme/vectors", 8, "vectors")


def environment_of(good: ListingServer, bad: ListingServer) -> dict[str, str]:
    return {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": good.url, "VLLM_API_BASE": bad.url, "AWS_ACCESS_KEY_ID": "i"} | {
        "AWS_SECRET_ACCESS_KEY": "s"
    }


async def test_models_come_from_the_providers_in_a_fixed_order_and_one_failure_hides_no_others(tmp_path: Path) -> None:
    async with listing({"/v1/models": openai_list("b", "a", "text-embedding-3-small")}) as good, listing({}) as bad:
        bad.breaks("/v1/models", 500, "out of memory")
        async with serving(tmp_path, providers=environment_of(good, bad)) as client:
            models = await client.ask("GET", "/v1/models/")
            assert [model["handle"] for model in models] == ["openai-proxy/a", "openai-proxy/b", "holdfast/offline"]
            vectors, offline = await client.ask("GET", "/v1/models/embedding")
            assert offline["handle"] == "holdfast/wordllama"  # which the extra `embeddings` brings
            assert (vectors["handle"], vectors["embedding_dim"]) == ("openai/text-embedding-3-small", 1536)
            openai, bedrock, vllm = await client.ask("GET", "/v1/models/providers")
            assert (openai["status"], openai["models"], openai["problem"]) == ("ok", 2, None)
            assert (bedrock["name"], bedrock["status"]) == ("bedrock", "unlistable")
            assert (vllm["name"], vllm["status"], vllm["models"]) == ("vllm", "failed", 0)
            assert "out of memory" in vllm["problem"]
            assert vllm["since"].endswith("Z")
            assert (len(good.asked), len(bad.asked)) == (1, 1)


async def test_a_model_tells_what_it_can_and_what_it_costs(tmp_path: Path) -> None:
    entry = {
        "id": "m",
        "pricing": {"prompt": "0.000001", "completion": "0.000002"},
        "supported_parameters": ["tools"],
        "context_length": 9_000,
    }
    async with listing({"/v1/models": {"data": [entry]}}) as server:
        providers = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.url}
        async with serving(tmp_path, providers=providers) as client:
            model, _ = await client.ask("GET", "/v1/models/")
    assert (model["max_context_window"], model["model_endpoint"]) == (9_000, f"{server.url}/v1")
    assert model["abilities"] == {"tools": True, "images": True, "reasoning": False, "strict_tools": False}
    assert model["price"] == {
        "input": 1.0,
        "output": 2.0,
        "cached_input": None,
        "cache_write": None,
        "longest_prompt": None,
    }


async def test_without_a_default_model_an_agent_must_name_one_and_is_told_which_exist(tmp_path: Path) -> None:
    async with listing({"/v1/models": openai_list(*(f"m{number:02}" for number in range(30)))}) as server:
        providers = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.url}
        async with serving(tmp_path, providers=providers, default_model=None) as client:
            told = await client.refusal(400, "POST", "/v1/agents/", {})
    assert "no default model" in told
    assert "openai-proxy/m00" in told
    assert "openai-proxy/m29" not in told


async def test_an_agent_is_embedded_by_a_model_that_its_provider_lists(tmp_path: Path) -> None:
    async with listing({"/v1/models": openai_list("m", "nomic-embed-text")}) as server:
        providers = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.url}
        async with serving(tmp_path, providers=providers) as client:
            for handle in ("openai/nomic-embed-text", "openai-proxy/nomic-embed-text"):
                agent = await client.ask("POST", "/v1/agents/", {"model": "openai-proxy/m", "embedding": handle})
                assert agent["embedding"] == handle
                assert agent["embedding_config"]["embedding_dim"] == 768
            plain = await client.ask("POST", "/v1/agents/", {"model": "openai-proxy/m"})
            assert plain["embedding_config"] is None
