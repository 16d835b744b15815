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


async def test_settings_of_every_type_are_accepted_and_shown_as_the_model_s_own(client: ServedClient) -> None:
    fresh = (await create(client))["model_settings"]
    for provider_type in set(get_args(ProviderType)) - {"letta"}:
        made = await create(client, model_settings={"provider_type": provider_type, "temperature": 0.25})
        assert made["model_settings"] == fresh | {"temperature": 0.25}


async def test_null_forgets_all_that_the_settings_said_and_the_rest_of_the_request_still_counts(
    client: ServedClient, vendor: FakeVendor
) -> None:
    said = {"provider_type": "openai", "temperature": 0.25, "max_output_tokens": 321, "response_format": SCHEMA}
    agent = await create(client, model_settings=said)
    bare = (await create(client))["model_settings"]
    path = f"/v1/agents/{agent['id']}"
    assert (await client.ask("PATCH", path, {"model_settings": None}))["model_settings"] == bare
    await client.say(agent["id"], "Hello")
    sent = last_sent(vendor)
    assert (sent["temperature"], sent["max_completion_tokens"]) == (bare["temperature"], bare["max_output_tokens"])
    assert "response_format" not in sent
    both = await client.ask("PATCH", path, {"model_settings": None, "max_tokens": 55})
    assert both["model_settings"] == bare | {"max_output_tokens": 55}


async def test_null_brings_one_setting_back_to_its_default(client: ServedClient) -> None:
    fresh = await create(client)
    path = f"/v1/agents/{fresh['id']}"
    said = {"temperature": 0.25, "max_output_tokens": 321, "strict": True, "verbosity": "low"}
    changed = await client.ask("PATCH", path, {"model_settings": said})
    assert said.items() <= changed["model_settings"].items()
    for name in said:
        changed = await client.ask("PATCH", path, {"model_settings": {name: None}})
    assert (changed["model_settings"], changed["llm_config"]) == (fresh["model_settings"], fresh["llm_config"])


async def test_a_type_that_nobody_knows_is_refused(client: ServedClient) -> None:
    body = {"model": "holdfast/offline", "model_settings": {"provider_type": "nobody"}}
    assert "provider_type" in await client.refusal(422, "POST", "/v1/agents/", body)


@pytest.mark.parametrize("schema", ["string", 5, [], ""])
async def test_a_schema_that_is_none_is_refused(client: ServedClient, schema: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = {"model": "holdfast/offline", "response_format": wanted}
    assert "must be an object" in await client.refusal(422, "POST", "/v1/agents/", body)
    agent = await client.agent()
    assert "must be an object" in await client.refusal(
        422, "PATCH", f"/v1/agents/{agent.id}", {"response_format": wanted}
    )
    assert "must be an object" in await client.refusal(
        422, "PATCH", f"/v1/agents/{agent.id}", {"model_settings": {"response_format": wanted}}
    )


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
