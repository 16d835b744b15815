"""The vendor is sent what the agent shows, with every adapter and before and after a round trip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.settings import DeclaredModel
from tests.llm.fakes.anthropic import AnthropicProtocol
from tests.llm.fakes.bedrock import BedrockProtocol
from tests.llm.fakes.chat import ChatProtocol
from tests.llm.fakes.gemini import GeminiProtocol
from tests.llm.fakes.responses import ResponsesProtocol
from tests.llm.fakes.script import VendorProtocol
from tests.llm.fakes.server import FakeVendor
from tests.served import ServedClient, served


class Case(msgspec.Struct, frozen=True):
    """A model of one vendor. `tells` takes from a request what llm_config calls by these names."""

    handle: str
    protocol: Callable[[], VendorProtocol]
    environment: Callable[[str], dict[str, str]]
    tells: Callable[[dict[str, Any]], dict[str, Any]]
    settings: dict[str, Any] = {}
    server: dict[str, Any] = {}


def _openai(url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "k"}


def _anthropic(url: str) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "k"}


def _gemini(url: str) -> dict[str, str]:
    return {"GEMINI_BASE_URL": url, "GEMINI_API_KEY": "k"}


def _bedrock(url: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "AKIAOFFLINE", "AWS_SECRET_ACCESS_KEY": "k"}
    return keys | {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": url}


def _chat_tells(sent: dict[str, Any]) -> dict[str, Any]:
    return {
        "max_tokens": sent["max_completion_tokens"],
        "temperature": sent["temperature"],
        "parallel_tool_calls": sent["parallel_tool_calls"],
        "strict": any(tool["function"].get("strict") for tool in sent["tools"]),
        "reasoning_effort": sent.get("reasoning_effort"),
        "response_format": sent.get("response_format"),
    }


def _claude_tells(sent: dict[str, Any]) -> dict[str, Any]:
    thinking = sent.get("thinking", {"type": "disabled"})
    return {
        "max_tokens": sent["max_tokens"],
        "parallel_tool_calls": not sent["tool_choice"].get("disable_parallel_tool_use", False),
        "enable_reasoner": thinking["type"] != "disabled",
        "effort": sent.get("output_config", {}).get("effort"),
    } | ({"max_reasoning_tokens": thinking["budget_tokens"]} if "budget_tokens" in thinking else {})


def _responses_tells(sent: dict[str, Any]) -> dict[str, Any]:
    return {
        "max_tokens": sent["max_output_tokens"],
        "parallel_tool_calls": sent["parallel_tool_calls"],
        "reasoning_effort": sent["reasoning"]["effort"],
        "verbosity": sent["text"]["verbosity"],
    }


def _gemini_tells(sent: dict[str, Any]) -> dict[str, Any]:
    told = sent["generationConfig"]
    return {
        "max_tokens": told["maxOutputTokens"],
        "temperature": told["temperature"],
        "enable_reasoner": told["thinkingConfig"]["include_thoughts"],
        "max_reasoning_tokens": told["thinkingConfig"]["thinking_budget"],
    }


def _bedrock_tells(sent: dict[str, Any]) -> dict[str, Any]:
    thinking = sent.get("additionalModelRequestFields", {}).get("thinking", {})
    return {
        "max_tokens": sent["inferenceConfig"]["maxTokens"],
        "enable_reasoner": bool(thinking),
        "max_reasoning_tokens": thinking.get("budget_tokens", 0),
    }


_SONNET, _GEMINI = "anthropic/claude-sonnet-4-5-20250929", "google_ai/gemini-2.5-flash"
_AT_BEDROCK = "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0"
_RESPONSES: dict[str, Any] = {"openai_responses": "always"}
CASES = {
    "gpt-4o-mini": Case("openai-proxy/gpt-4o-mini", ChatProtocol, _openai, _chat_tells),
    "gpt-4o-mini told": Case(
        "openai-proxy/gpt-4o-mini",
        ChatProtocol,
        _openai,
        _chat_tells,
        {
            "temperature": 0.2,
            "max_output_tokens": 500,
            "parallel_tool_calls": True,
            "strict": True,
            "reasoning": {"reasoning_effort": "high"},
            "response_format": {"type": "json_object"},
        },
    ),
    "sonnet": Case(_SONNET, AnthropicProtocol, _anthropic, _claude_tells),
    "sonnet told": Case(
        _SONNET,
        AnthropicProtocol,
        _anthropic,
        _claude_tells,
        {
            "thinking": {"type": "enabled", "budget_tokens": 3000},
            "max_output_tokens": 6000,
            "parallel_tool_calls": True,
        },
    ),
    "sonnet with little room": Case(
        _SONNET,
        AnthropicProtocol,
        _anthropic,
        _claude_tells,
        {"thinking": {"type": "enabled", "budget_tokens": 9000}, "max_output_tokens": 4000},
    ),
    "sonnet not thinking": Case(
        _SONNET,
        AnthropicProtocol,
        _anthropic,
        lambda sent: _claude_tells(sent) | {"temperature": sent["temperature"]},
        {"thinking": {"type": "disabled"}, "temperature": 0.3},
    ),
    "opus-4-6": Case("anthropic/claude-opus-4-6", AnthropicProtocol, _anthropic, _claude_tells),
    "gpt-5": Case("openai-proxy/gpt-5", ResponsesProtocol, _openai, _responses_tells, server=_RESPONSES),
    "gpt-5 told": Case(
        "openai-proxy/gpt-5",
        ResponsesProtocol,
        _openai,
        _responses_tells,
        {"reasoning": {"reasoning_effort": "high"}, "max_output_tokens": 2000, "verbosity": "low"},
        _RESPONSES,
    ),
    "gemini": Case(_GEMINI, GeminiProtocol, _gemini, _gemini_tells),
    "gemini told": Case(
        _GEMINI,
        GeminiProtocol,
        _gemini,
        _gemini_tells,
        {"thinking_config": {"include_thoughts": False, "thinking_budget": 2000}, "temperature": 0.4},
    ),
    "bedrock": Case(_AT_BEDROCK, BedrockProtocol, _bedrock, _bedrock_tells),
    "bedrock told": Case(
        _AT_BEDROCK, BedrockProtocol, _bedrock, _bedrock_tells, {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    ),
}


async def told(client: ServedClient, vendor: FakeVendor, agent_id: str, case: Case) -> dict[str, Any]:
    """What the vendor was told, after checking that it is what the agent shows."""
    await client.say(agent_id, "Hello")
    asked = next(one for one in reversed(vendor.exchanges) if one.method == "POST")
    said = case.tells(asked.body)
    config = (await client.ask("GET", f"/v1/agents/{agent_id}"))["llm_config"]
    assert said == {name: config[name] for name in said}
    return said


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_vendor_is_sent_what_the_agent_shows(case: Case, tmp_path: Path) -> None:
    async with FakeVendor(case.protocol()).serving() as vendor:
        declared = (DeclaredModel(case.handle, None, None),)
        options = {"providers": case.environment(vendor.url), "models": declared, **case.server}
        async with served(tmp_path, **options) as client:
            made = await client.agents.create(model=case.handle)
            if case.settings:
                settings: Any = case.settings
                made = await client.agents.update(made.id, model_settings=settings)
            before = await told(client, vendor, made.id, case)
            back: Any = {"model_settings": made.api_model_settings, "llm_config": made.llm_config}
            await client.agents.update(made.id, **back)
            assert await told(client, vendor, made.id, case) == before
