"""What an agent's model and its embedding are, from the many ways to ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .resources import Served, serving

FREE: dict[str, Any] = {
    "embedding_endpoint_type": "hugging-face",
    "embedding_model": "letta-free",
    "embedding_dim": 1536,
    "handle": "letta/letta-free",
}


@pytest.mark.parametrize("named", [{"embedding": "letta/letta-free"}, {"embedding_config": FREE}])
async def test_the_embedding_that_is_gone_stands_for_the_one_that_is_configured_or_for_none(
    database_url: str, tmp_path: Path, named: dict[str, Any]
) -> None:
    async with serving(database_url, tmp_path) as bare:
        agent = await bare.create(**named)
        assert (agent["embedding"], agent["embedding_config"]) == (None, None)
        (listed,) = await bare.ok("GET", "/v1/models/embedding")
        assert listed["handle"] == "acme/vectors"
    async with serving(database_url, tmp_path, default_embedding="acme/vectors") as configured:
        agent = await configured.create(**named)
        assert (agent["embedding"], agent["embedding_config"]["embedding_dim"]) == ("acme/vectors", 8)
        path = f"/v1/agents/{agent['id']}"
        cleared = await configured.ok("PATCH", path, {"embedding": None})
        assert (cleared["embedding"], cleared["embedding_config"]) == (None, None)
        assert (await configured.ok("PATCH", path, named))["embedding"] == "acme/vectors"


@pytest.mark.parametrize("handle", ["letta/auto", "letta/auto-fast"])
async def test_the_handle_that_leaves_the_choice_to_the_server_gets_its_default_and_keeps_what_an_agent_has(
    served: Served, handle: str
) -> None:
    made = await served.create(model=handle, compaction_settings={"model": handle})
    assert made["model"] == made["llm_config"]["handle"] == "holdfast/offline"
    assert made["compaction_settings"]["model"] == "holdfast/offline"
    other = await served.create(model="acme/thinker")
    kept = await served.ok("PATCH", f"/v1/agents/{other['id']}", {"model": handle})
    assert kept["model"] == "acme/thinker"


async def test_reasoning_tokens_need_no_limit_for_the_reply(served: Served) -> None:
    thinker = await served.create(model="acme/thinker", max_reasoning_tokens=4_000)
    assert thinker["llm_config"]["max_reasoning_tokens"] == 4_000
    assert thinker["model_settings"]["thinking"] == {"type": "enabled", "budget_tokens": 4_000}
    assert thinker["llm_config"]["max_tokens"] == thinker["model_settings"]["max_output_tokens"] == 8_000
    plain = await served.create(max_reasoning_tokens=4_000)
    assert (plain["llm_config"]["max_reasoning_tokens"], plain["llm_config"]["enable_reasoner"]) == (0, False)


async def test_thinking_is_disabled_and_enabled_in_every_way(served: Served) -> None:
    made = await served.create(model="acme/thinker")
    path = f"/v1/agents/{made['id']}"
    for change, enabled in (
        ({"model_settings": {"provider_type": "anthropic", "thinking": {"type": "disabled"}}}, False),
        ({"reasoning": True}, True),
        ({"llm_config": {"model": "thinker", "handle": "acme/thinker", "enable_reasoner": False}}, False),
        ({"model_settings": {"thinking": {"type": "enabled"}}}, True),
        ({"reasoning": False}, False),
    ):
        changed = await served.ok("PATCH", path, change)
        assert changed["llm_config"]["enable_reasoner"] is enabled
        assert (changed["model_settings"]["thinking"]["type"] == "enabled") is enabled
        assert changed["llm_config"]["max_reasoning_tokens"] == 1024


async def test_agents_that_think_in_words_can_be_told_not_to(served: Served) -> None:
    for agent_type, said, enabled in (
        ("memgpt_agent", {}, True),
        ("memgpt_agent", {"reasoning": False}, False),
        ("letta_v1_agent", {"reasoning": True}, False),
    ):
        agent = await served.create(agent_type=agent_type, **said)
        assert agent["llm_config"]["enable_reasoner"] is enabled
        path = f"/v1/agents/{agent['id']}"
        back = {"llm_config": agent["llm_config"], "model_settings": agent["model_settings"]}
        assert (await served.ok("PATCH", path, back))["llm_config"] == agent["llm_config"]


async def test_another_model_does_not_write_thoughts_down_unless_it_is_asked_to(served: Served) -> None:
    """A change of the model is called as the model is by default, as before; writing back what was read is none."""
    made = await served.create(agent_type="memgpt_v2_agent")
    path = f"/v1/agents/{made['id']}"

    async def thoughts(**fields: Any) -> bool:
        changed = await served.ok("PATCH", path, fields)
        config, settings = changed["llm_config"], changed["model_settings"]
        for back in ({"llm_config": config}, {"model": changed["model"], "model_settings": settings}):
            assert (await served.ok("PATCH", path, back))["llm_config"] == config
        if changed["model"] == "holdfast/offline":
            payload = await served.ok("POST", f"{path}/messages/preview-raw-payload", {"input": "hi"})
            assert config["put_inner_thoughts_in_kwargs"] is config["enable_reasoner"]
            assert config["enable_reasoner"] is ("thinking" in str(payload["tools"]))
        return config["put_inner_thoughts_in_kwargs"]

    assert await thoughts(model="holdfast/offline", model_settings={"temperature": 0.5})  # the model that it has
    assert not await thoughts(model="acme/large", model_settings={"temperature": 0.5})
    assert await thoughts(reasoning=True)
    assert not await thoughts(model="holdfast/offline")
    assert await thoughts(reasoning=True)
    asked = {"model": "large", "handle": "acme/large", "put_inner_thoughts_in_kwargs": True}
    assert await thoughts(llm_config=asked)
    assert not await thoughts(llm_config=asked | {"put_inner_thoughts_in_kwargs": False})
    assert await thoughts(model="holdfast/offline", reasoning=True)
