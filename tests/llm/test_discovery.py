"""How each kind of provider lists its models, over a real socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.errors import AuthRejected, BadReply, ModelError, ModelTimedOut, ModelUnavailable, Rejected
from holdfast.llm.base import Abilities, ModelInfo, Price
from holdfast.llm.catalog import discovery
from holdfast.llm.catalog.discovery import EmbeddingInfo, Listing
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import Http

from .listing import endpoint_at, listing, openai_list


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    opened = Http(first_byte_s=60, total_s=60)
    yield opened
    await opened.aclose()


async def listed(http: Http, answers: dict[str, Any], provider_type: str, **fields: Any) -> Listing:
    async with listing(answers) as server:
        return await discovery.list_models(http, endpoint_at(server, provider_type, **fields))


def named(found: Listing, name: str) -> ModelInfo:
    return next(model for model in found.models if model.name == name)


async def test_a_plain_openai_list_is_completed_from_the_table(http: Http) -> None:
    found = await listed(http, {"/v1/models": openai_list("gpt-4o", "mystery")}, "openai", provider_name="openai-proxy")
    known, mystery = named(found, "gpt-4o"), named(found, "mystery")
    assert (known.handle, known.context_window, known.max_output_tokens) == ("openai-proxy/gpt-4o", 128_000, 16_384)
    assert (mystery.context_window, mystery.max_output_tokens) == (30_000, None)
    assert known.provider_type == "openai"
    assert known.price is None  # whoever runs this server may ask anything
    assert not known.abilities.strict_tools


async def test_the_key_is_shown_as_the_dialect_wants_it(http: Http) -> None:
    shown = {
        "openai": ("/v1/models", "Authorization", "Bearer a-secret-key"),
        "anthropic": ("/v1/models?limit=1000", "x-api-key", "a-secret-key"),
        "google_ai": ("/v1beta/models?pageSize=1000", "x-goog-api-key", "a-secret-key"),
        "azure": ("/openai/deployments?api-version=2023-03-15-preview", "api-key", "a-secret-key"),
    }
    for provider_type, (path, header, value) in shown.items():
        async with listing({path: {"data": [], "models": []}}) as server:
            await discovery.list_models(http, endpoint_at(server, provider_type))
            (asked,) = server.asked
            assert (asked.path, asked.headers[header]) == (path, value)


async def test_a_server_without_a_key_is_shown_none(http: Http) -> None:
    async with listing({"/v1/models": openai_list("m")}) as server:
        await discovery.list_models(http, endpoint_at(server, "vllm", api_key=None))
        assert "Authorization" not in server.asked[0].headers


@pytest.mark.parametrize(
    ("provider_type", "fields", "window"),
    [
        ("vllm", {"max_model_len": 32_768}, 32_768),
        ("openrouter", {"context_length": 64_000}, 64_000),
        ("groq", {"context_window": 131_072}, 131_072),
        ("mistral", {"max_context_length": 40_000}, 40_000),
        ("openai", {"meta": {"n_ctx_train": 8_192}}, 8_192),
        ("openai", {"meta": {"n_ctx_train": 131_072, "n_ctx": 4_096}}, 4_096),
        ("vllm", {"max_model_len": "many"}, 128_000),
        ("vllm", {"max_model_len": None, "meta": None}, 128_000),
        ("vllm", {"max_model_len": True}, 128_000),
    ],
)
async def test_a_window_that_the_server_states_is_believed(
    http: Http, provider_type: str, fields: dict[str, Any], window: int
) -> None:
    found = await listed(http, {"/v1/models": {"data": [{"id": "mine", **fields}]}}, provider_type)
    assert named(found, "mine").context_window == window


async def test_openrouter_tells_windows_prices_and_abilities(http: Http) -> None:
    rich = {
        "id": "maker/rich",
        "context_length": 200_000,
        "top_provider": {"max_completion_tokens": 8_000},
        "pricing": {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003"},
        "supported_parameters": ["tools", "reasoning", "temperature"],
        "architecture": {"input_modalities": ["text", "image"]},
    }
    poor = {
        "id": "maker/poor",
        "context_length": 4_000,
        "pricing": {"prompt": "-1", "completion": "-1"},
        "supported_parameters": ["temperature"],
        "architecture": {"input_modalities": ["text"]},
    }
    found = await listed(http, {"/v1/models": {"data": [rich, poor]}}, "openrouter")
    first, second = named(found, "maker/rich"), named(found, "maker/poor")
    assert (first.handle, first.max_output_tokens) == ("openrouter/maker/rich", 8_000)
    assert first.price == Price(3.0, 15.0, 0.3)
    assert first.abilities == Abilities(tools=True, images=True, reasoning=True)
    assert second.price is None
    assert second.abilities == Abilities(tools=False, images=False)


async def test_a_bare_list_with_kinds_and_prices_per_million_is_read(http: Http) -> None:
    entries = [
        {"id": "a/chat", "type": "chat", "context_length": 8_000, "pricing": {"input": 0.2, "output": 0.6}},
        {"id": "a/unsold", "type": "chat", "pricing": {"input": 0, "output": 0}},
        {"id": "a/picture", "type": "image"},
        {"id": "BAAI/bge-large-en-v1.5", "type": "embedding"},
        {"id": "a/secret-vectors", "type": "embedding"},
    ]
    found = await listed(http, {"/v1/models": entries}, "together")
    assert [model.name for model in found.models] == ["a/chat", "a/unsold"]
    assert named(found, "a/chat").price == Price(0.2, 0.6)
    assert named(found, "a/unsold").price is None
    assert found.embeddings == (EmbeddingInfo("BAAI/bge-large-en-v1.5", 1024),)


async def test_capabilities_decide_what_is_offered(http: Http) -> None:
    entries = [
        {"id": "able", "capabilities": {"completion_chat": True, "function_calling": True, "vision": False}},
        {"id": "no-tools", "capabilities": {"completion_chat": True, "function_calling": False}},
        {"id": "no-chat", "capabilities": {"completion_chat": False}},
        {"id": "mistral-embed", "capabilities": {"completion_chat": False}},
        {"id": "resting", "active": False},
    ]
    found = await listed(http, {"/v1/models": {"data": entries}}, "mistral")
    assert [model.name for model in found.models] == ["able", "no-tools"]
    assert not named(found, "able").abilities.images
    assert not named(found, "no-tools").abilities.tools
    assert found.embeddings == (EmbeddingInfo("mistral-embed", 1024),)


async def test_a_proxy_s_own_embedding_models_are_listed(http: Http) -> None:
    entries = [
        {"id": "chat"},
        {"id": "my-embedder", "embedding_dimension": 77},
        {"id": "llama-embed", "meta": {"n_embd": 4096}},
        {"id": "text-embedding-of-unknown-size"},
        {"id": "text-embedding-3-large"},
    ]
    found = await listed(http, {"/v1/models": {"data": entries}}, "openai")
    assert [model.name for model in found.models] == ["chat"]
    assert found.embeddings == (
        EmbeddingInfo("my-embedder", 77),
        EmbeddingInfo("llama-embed", 4096),
        EmbeddingInfo("text-embedding-3-large", 3072),
    )


class OfficialOpenAI:
    """Answers as the official address does, which no test may call."""

    def __init__(self, *names: str) -> None:
        self._answer = openai_list(*names)

    async def json(self, endpoint: Endpoint, path: str, **_: Any) -> Any:
        assert (endpoint.base_url, path) == ("https://api.openai.com/v1", "/models")
        return self._answer


async def test_what_openai_lists_beside_chat_models_is_left_out() -> None:
    source = OfficialOpenAI(
        "gpt-4o",
        "gpt-4.1-nano-2025-04-14",
        "gpt-3.5-turbo-instruct",
        "gpt-4o-realtime-preview",
        "gpt-4o-audio-preview",
        "gpt-image-1",
        "whisper-1",
        "tts-1",
        "dall-e-3",
        "omni-moderation-latest",
        "sora-2",
        "text-embedding-3-small",
        "babbage-002",
        "o3-deep-research",
    )
    endpoint = Endpoint(provider_name="openai", provider_type="openai", base_url="https://api.openai.com/v1")
    found = await discovery.list_models(source, endpoint)
    assert [model.name for model in found.models] == ["gpt-4o", "gpt-4.1-nano-2025-04-14"]
    assert named(found, "gpt-4o").price == Price(2.5, 10, 1.25)
    assert named(found, "gpt-4o").abilities.strict_tools
    assert found.embeddings == (EmbeddingInfo("text-embedding-3-small", 1536),)


async def test_anthropic_is_read_page_by_page(http: Http) -> None:
    first = {
        "id": "claude-opus-9",
        "max_input_tokens": 500_000,
        "max_tokens": 99_000,
        "capabilities": {"image_input": {"supported": False}, "thinking": {"supported": True}},
    }
    answers = {
        "/v1/models?limit=1000": {"data": [first], "has_more": True, "last_id": "claude-opus-9"},
        "/v1/models?limit=1000&after_id=claude-opus-9": {
            "data": [{"id": "claude-3-haiku-20240307"}],
            "has_more": False,
        },
    }
    async with listing(answers) as server:
        found = await discovery.list_models(http, endpoint_at(server, "anthropic"))
        assert server.asked[0].headers["anthropic-version"] == "2023-06-01"
    newest, oldest = found.models
    assert (newest.context_window, newest.max_output_tokens) == (500_000, 99_000)
    assert newest.abilities == Abilities(images=False, reasoning=True)
    assert (oldest.handle, oldest.context_window) == ("anthropic/claude-3-haiku-20240307", 200_000)


async def test_a_wide_window_is_used_when_the_operator_says_so(http: Http) -> None:
    answers = {"/v1/models?limit=1000": {"data": [{"id": "claude-sonnet-4-5", "max_input_tokens": 200_000}]}}
    found = await listed(http, answers, "anthropic", options={"context_1m": "sonnet"})
    assert named(found, "claude-sonnet-4-5").context_window == 1_000_000


async def test_gemini_models_are_told_apart_by_what_they_do(http: Http) -> None:
    chat = {
        "name": "models/gemini-9-pro",
        "inputTokenLimit": 2_000_000,
        "outputTokenLimit": 65_000,
        "thinking": True,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    vectors = {"name": "models/gemini-embedding-001", "supportedGenerationMethods": ["embedContent"]}
    answers = {
        "/v1beta/models?pageSize=1000": {"models": [chat], "nextPageToken": "two"},
        "/v1beta/models?pageSize=1000&pageToken=two": {"models": [vectors, {"name": "models/aqa"}]},
    }
    found = await listed(http, answers, "google_ai")
    (model,) = found.models
    assert (model.handle, model.context_window, model.max_output_tokens) == (
        "google_ai/gemini-9-pro",
        2_000_000,
        65_000,
    )
    assert model.abilities.reasoning
    assert found.embeddings == (EmbeddingInfo("gemini-embedding-001", 3072),)


async def test_cohere_tells_models_apart_by_their_endpoints(http: Http) -> None:
    chat = {"name": "command-z", "endpoints": ["chat", "generate"], "context_length": 99_000, "features": ["tools"]}
    old = {"name": "command-old", "endpoints": ["chat"], "context_length": 4_096}
    entries = [
        chat,
        old,
        {"name": "embed-v4.0", "endpoints": ["embed"]},
        {"name": "rerank-v4", "endpoints": ["rerank"]},
    ]
    found = await listed(http, {"/v1/models?page_size=1000": {"models": entries}}, "cohere")
    assert [(model.handle, model.context_window) for model in found.models] == [
        ("cohere/command-z", 99_000),
        ("cohere/command-old", 4_096),
    ]
    assert not named(found, "command-z").abilities.images
    assert found.embeddings == (EmbeddingInfo("embed-v4.0", 1536),)


def shown_by_ollama(body: Any) -> Any:
    shown: dict[str, Any] = {
        "llama3.1:8b": {
            "capabilities": ["completion", "tools"],
            "model_info": {"general.architecture": "llama", "llama.context_length": 131_072},
        },
        "llava:7b": {"capabilities": ["completion", "vision"], "model_info": {"llama.context_length": 4_096}},
        "nomic-embed-text:latest": {
            "capabilities": ["embedding"],
            "model_info": {"nomic-bert.context_length": 2_048, "nomic-bert.embedding_length": 768},
        },
        "old:1b": {"model_info": {}},
    }
    return shown.get(body["model"])


async def test_ollama_is_asked_about_each_of_its_models(http: Http) -> None:
    names = ["llama3.1:8b", "llava:7b", "nomic-embed-text:latest", "old:1b", "broken:1b"]
    answers = {"/api/tags": {"models": [{"name": name} for name in names]}, "/api/show": shown_by_ollama}
    found = await listed(http, answers, "ollama", api_key=None)
    assert named(found, "llama3.1:8b").context_window == 131_072
    assert named(found, "llama3.1:8b").abilities == Abilities(tools=True, images=False)
    assert named(found, "llava:7b").abilities == Abilities(tools=False, images=True)
    assert named(found, "old:1b").context_window == named(found, "broken:1b").context_window == 128_000
    assert found.embeddings == (EmbeddingInfo("nomic-embed-text:latest", 768),)
    assert {model.endpoint for model in found.models} == {named(found, "old:1b").endpoint}
    assert str(named(found, "old:1b").endpoint).endswith("/v1")


async def test_what_a_modelfile_sets_is_the_window_whatever_the_model_was_made_for(http: Http) -> None:
    """Ollama runs a model with `num_ctx`, and silently drops the beginning of a longer prompt."""
    made_for = {"model_info": {"llama.context_length": 131_072}}
    shown = {
        "set": made_for
        | {"parameters": 'num_ctx                        8192\nstop                           "<|eot|>"'},
        "other": made_for | {"parameters": "num_ctx_max 4\ntemperature 0.7"},
    }

    def show(body: Any) -> Any:
        return shown[body["model"]]

    answers = {"/api/tags": {"models": [{"name": name} for name in shown]}, "/api/show": show}
    found = await listed(http, answers, "ollama", api_key=None)
    assert [(model.name, model.context_window) for model in found.models] == [("set", 8_192), ("other", 131_072)]


async def test_lm_studio_s_own_list_is_preferred_and_not_required(http: Http) -> None:
    own = [
        {"id": "qwen", "type": "llm", "max_context_length": 40_000, "loaded_context_length": 8_000},
        {"id": "eyes", "type": "vlm", "max_context_length": 16_000},
        {"id": "text-embedding-nomic-embed-text-v1.5", "type": "embeddings"},
    ]
    found = await listed(http, {"/api/v0/models": {"data": own}}, "lmstudio_openai")
    assert [(model.name, model.context_window) for model in found.models] == [("qwen", 8_000), ("eyes", 16_000)]
    assert found.embeddings == (EmbeddingInfo("text-embedding-nomic-embed-text-v1.5", 768),)
    assert named(found, "eyes").abilities.images
    plain = await listed(http, {"/v1/models": openai_list("qwen")}, "lmstudio_openai")
    assert [model.handle for model in plain.models] == ["lmstudio_openai/qwen"]


async def test_a_deployment_of_azure_is_known_by_its_model(http: Http) -> None:
    path = "/openai/deployments?api-version=2023-03-15-preview"
    answers = {path: {"data": [{"id": "my-deployment", "model": "gpt-4o"}, {"id": "vectors-embedding"}]}}
    found = await listed(http, answers, "azure")
    (model,) = found.models
    assert (model.handle, model.context_window) == ("azure/my-deployment", 128_000)
    assert model.abilities.strict_tools


async def test_deployments_are_listed_at_the_newer_address_of_azure_too(http: Http) -> None:
    answers = {"/openai/deployments?api-version=2023-03-15-preview": {"data": [{"id": "mine", "model": "gpt-4o"}]}}
    async with listing(answers) as server:
        endpoint = endpoint_at(server, "azure", base_url=f"{server.url}/openai/v1")
        assert [model.name for model in (await discovery.list_models(http, endpoint)).models] == ["mine"]


@pytest.mark.parametrize("answer", [{"data": 3}, "models", {"data": ["name"]}, 7])
async def test_an_answer_that_is_no_list_is_a_bad_reply(http: Http, answer: Any) -> None:
    with pytest.raises(BadReply, match="vllm"):
        await listed(http, {"/v1/models": answer}, "vllm")


async def test_entries_without_a_name_are_left_out(http: Http) -> None:
    entries = [{"id": 3}, {}, {"id": ""}, {"id": "good"}]
    found = await listed(http, {"/v1/models": {"data": entries}}, "vllm")
    assert [model.name for model in found.models] == ["good"]


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthRejected), (404, Rejected), (500, ModelUnavailable), (403, Rejected)]
)
async def test_a_refusal_is_the_vendor_s_error(http: Http, status: int, kind: type[ModelError]) -> None:
    async with listing({}) as server:
        server.breaks("/v1/models", status, "no such luck")
        with pytest.raises(kind, match="no such luck"):
            await discovery.list_models(http, endpoint_at(server))


async def test_a_server_that_is_not_there_is_unavailable(http: Http) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # taken, so that nobody else listens there either
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        with pytest.raises(ModelUnavailable, match="cannot be reached"):
            await discovery.list_models(http, Endpoint(provider_name="x", provider_type="openai", base_url=url))


async def test_a_silent_server_is_not_waited_for_long(http: Http) -> None:
    async with listing({"/v1/models": openai_list("m")}) as server:
        server.open.clear()
        with pytest.raises(ModelTimedOut, match=r"0\.05 seconds"):
            await discovery.list_models(http, endpoint_at(server), within_s=0.05)


async def test_checking_a_key_asks_for_the_list_except_where_that_is_open_to_all(http: Http) -> None:
    async with listing({"/v1/models": openai_list("m"), "/v1/key": {"data": {}}}) as server:
        await discovery.check(http, endpoint_at(server))
        await discovery.check(http, endpoint_at(server, "openrouter"))
        assert server.paths == ["/v1/models", "/v1/key"]


async def test_a_wrong_key_does_not_pass_the_check_of_openrouter(http: Http) -> None:
    async with listing({"/v1/models": openai_list("m")}) as server:
        server.breaks("/v1/key", 401)
        with pytest.raises(AuthRejected):
            await discovery.check(http, endpoint_at(server, "openrouter"))


def test_some_providers_cannot_list() -> None:
    assert not discovery.can_list("bedrock")
    assert not discovery.can_list("google_vertex")
    assert discovery.can_list("openai")
