"""How a model is to be called: what is accepted, what is shown, and that the vendor is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast.wire.models import ProviderType
from tests.llm.fakes.chat import ChatProtocol
from tests.llm.fakes.server import FakeVendor
from tests.served import ServedClient, served

# Extra fields with their defaults, as clients of the old server know them.
PLAIN: dict[str, Any] = {"temperature": 0.7, "response_format": None}
HIGH = {"reasoning_effort": "high"}
SHOWN: dict[str, dict[str, Any]] = {
    "openai": PLAIN | {"reasoning": HIGH, "strict": True},
    "sglang": PLAIN | {"reasoning": HIGH, "strict": True, "tool_call_parser": None},
    "anthropic": {
        "temperature": 1.0,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "effort": None,
        "verbosity": None,
        "response_format": None,
        "strict": False,
    },
    "google_ai": {
        "temperature": 0.7,
        "thinking_config": {"include_thoughts": True, "thinking_budget": 1024},
        "response_schema": None,
        "max_output_tokens": 65_536,
    },
    "zai": PLAIN | {"thinking": {"type": "enabled", "clear_thinking": False}},
    "baseten": {"temperature": 0.7},
    "chatgpt_oauth": {"temperature": 0.7, "reasoning": {"reasoning_effort": "medium"}},
    **dict.fromkeys(
        (
            "azure",
            "xai",
            "groq",
            "deepseek",
            "together",
            "bedrock",
            "openrouter",
            "ollama",
            "vllm",
            "lmstudio",
            "cohere",
        ),
        PLAIN,
    ),
}
SHOWN["google_vertex"] = SHOWN["google_ai"]
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "object", "properties": {}}},
}


@pytest.fixture
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor(ChatProtocol()).serving() as opened:
        yield opened


@pytest.fixture
async def client(tmp_path: Path, vendor: FakeVendor) -> AsyncIterator[ServedClient]:
    providers = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": vendor.url, "VLLM_API_BASE": vendor.url}
    async with served(tmp_path, providers=providers) as opened:
        yield opened


async def create(client: ServedClient, **fields: Any) -> dict[str, Any]:
    body = {"model": "openai-proxy/offline", "include_base_tools": False, **fields}
    return await client.ask("POST", "/v1/agents/", body)


def last_sent(vendor: FakeVendor) -> dict[str, Any]:
    return next(one.body for one in reversed(vendor.exchanges) if one.path.endswith("/chat/completions"))


@pytest.mark.parametrize("provider_type", sorted(SHOWN))
async def test_each_provider_s_settings_are_shown_with_its_own_defaults(
    client: ServedClient, provider_type: str
) -> None:
    agent = await create(client, model_settings={"provider_type": provider_type})
    common = {"provider_type": provider_type, "max_output_tokens": 4096, "parallel_tool_calls": True}
    assert agent["model_settings"] == common | SHOWN[provider_type]


async def test_every_type_of_provider_may_have_settings(client: ServedClient) -> None:
    for provider_type in set(get_args(ProviderType)) - {"letta"}:
        made = await create(client, model_settings={"provider_type": provider_type})
        assert made["model_settings"]["provider_type"] == provider_type


async def test_null_forgets_all_that_the_settings_said_and_the_rest_of_the_request_still_counts(
    client: ServedClient, vendor: FakeVendor
) -> None:
    said = {"provider_type": "openai", "temperature": 0.25, "max_output_tokens": 321, "response_format": SCHEMA}
    agent = await create(client, model_settings=said)
    bare = (await create(client))["model_settings"]
    path = f"/v1/agents/{agent['id']}"
    assert (await client.ask("PATCH", path, {"model_settings": None}))["model_settings"] == bare
    await client.say(agent["id"], "Hello")
    assert not {"temperature", "max_completion_tokens", "response_format"} & last_sent(vendor).keys()
    both = await client.ask("PATCH", path, {"model_settings": None, "max_tokens": 55})
    assert both["model_settings"] == bare | {"max_output_tokens": 55}


async def test_a_type_that_nobody_knows_is_refused(client: ServedClient) -> None:
    body = {"model": "holdfast/offline", "model_settings": {"provider_type": "nobody"}}
    assert "provider_type" in await client.refusal(422, "POST", "/v1/agents/", body)


@pytest.mark.parametrize("kept", [{"type": "text"}, {"type": "json_object"}, SCHEMA])
async def test_a_response_format_is_kept_and_told(
    client: ServedClient, vendor: FakeVendor, kept: dict[str, Any]
) -> None:
    agent = await create(client, model_settings={"provider_type": "openai", "response_format": kept})
    assert agent["model_settings"]["response_format"] == kept
    await client.say(agent["id"], "Hello")
    assert last_sent(vendor).get("response_format", {"type": "text"})["type"] == kept["type"]


async def test_an_agent_s_settings_reach_the_vendor(client: ServedClient, vendor: FakeVendor) -> None:
    settings = {
        "provider_type": "openai",
        "temperature": 0.25,
        "max_output_tokens": 321,
        "reasoning": {"reasoning_effort": "low"},
        "verbosity": "low",
        "response_format": SCHEMA,
    }
    agent = await create(client, model_settings=settings)
    await client.say(agent["id"], "Hello")
    sent = last_sent(vendor)
    assert (sent["model"], sent["temperature"], sent["max_completion_tokens"]) == ("offline", 0.25, 321)
    assert sent["response_format"]["type"] == "json_schema"


async def test_a_conversation_s_model_and_settings_beat_the_agent_s(client: ServedClient, vendor: FakeVendor) -> None:
    agent = await create(client, model_settings={"provider_type": "openai", "temperature": 0.25})
    body = {
        "model": "vllm/offline",
        "model_settings": {
            "provider_type": "vllm",
            "temperature": 0.75,
            "max_output_tokens": 77,
            "response_format": {"type": "json_object"},
        },
    }
    conversation = await client.ask("POST", "/v1/conversations/", body, agent_id=agent["id"])
    path = f"/v1/conversations/{conversation['id']}/messages"
    await client.ask("POST", path, {"input": "Hello", "streaming": False})
    sent = last_sent(vendor)
    assert (sent["temperature"], sent["max_tokens"], sent["response_format"]) == (0.75, 77, {"type": "json_object"})
    (step,) = await client.ask("GET", "/v1/steps/", agent_id=agent["id"])
    assert (step["model_handle"], step["provider_name"]) == ("vllm/offline", "vllm")


async def test_a_request_may_name_another_model_for_itself(client: ServedClient, vendor: FakeVendor) -> None:
    agent = await create(client, model="holdfast/offline")
    await client.say(agent["id"], "Hello", extra_body={"override_model": "vllm/offline"})
    assert last_sent(vendor)["model"] == "offline"
    await client.say(agent["id"], "Hello again")
    steps = await client.ask("GET", "/v1/steps/", agent_id=agent["id"], order="asc")
    assert [step["model_handle"] for step in steps] == ["vllm/offline", "holdfast/offline"]
    refused = await client.refusal(
        404, "POST", f"/v1/agents/{agent['id']}/messages", {"input": "Hi", "override_model": "vllm/nobody"}
    )
    assert "vllm/offline" in refused


async def test_both_names_of_a_proxy_work_and_stay_as_they_were_given(client: ServedClient, vendor: FakeVendor) -> None:
    for model in ("openai/offline", "openai-proxy/offline"):
        agent = await create(client, model=model)
        assert agent["model"] == model
        await client.say(agent["id"], "Hello")
        assert last_sent(vendor)["model"] == "offline"
        patched = await client.ask("PATCH", f"/v1/agents/{agent['id']}", {"max_tokens": 99})
        assert (patched["model"], patched["llm_config"]["max_tokens"]) == (model, 99)


async def test_the_largest_window_that_agents_get_unasked_is_a_setting(tmp_path: Path) -> None:
    async with served(tmp_path, max_context_window=20_000) as client:
        body = {"model": "holdfast/offline"}
        agent = await client.ask("POST", "/v1/agents/", body)
        assert agent["llm_config"]["context_window"] == 20_000
        asked = await client.ask("POST", "/v1/agents/", body | {"context_window_limit": 60_000})
        assert asked["llm_config"]["context_window"] == 60_000
        path = f"/v1/agents/{asked['id']}"
        reset = await client.ask("PATCH", path, {"context_window_limit": None})
        assert reset["llm_config"]["context_window"] == 20_000
