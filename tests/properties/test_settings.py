"""One truth about how a model is called: both ways of showing it agree, writing back what was shown changes nothing,
and the vendor is sent what is shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.actions.agents.model_choice import revised_choice
from holdfast.core.messages import Text, Turn
from holdfast.core.records import ModelChoice
from holdfast.llm.anthropic.payload import messages_payload
from holdfast.llm.base import ModelInfo, ModelRequest, ToolSchema
from holdfast.llm.catalog.presets import completed, fitted, preset
from holdfast.llm.chat.dialects import dialect_of, reasons, refuses_parallel_flag, thinks_only_without_tools
from holdfast.llm.chat.payload import chat_payload
from holdfast.wire.agents import CreateAgentRequest, UpdateAgent
from holdfast.wire.model_settings import LLMConfig, ModelSettings, llm_config_view, settings_view

from ..effort import examples
from .settings_cases import MODELS, addressed, changes

WINDOW = 128_000
TOOL = ToolSchema("roll", "Rolls a die.", {"type": "object", "properties": {}, "required": []})
BRIDGED = ("google_ai", "google_vertex", "bedrock", "cohere", "holdfast")


def updated(choice: ModelChoice, info: ModelInfo, agent_type: str, **fields: Any) -> ModelChoice:
    return revised_choice(choice, UpdateAgent.model_validate(fields), info, WINDOW, agent_type)


def created(info: ModelInfo, agent_type: str, **fields: Any) -> ModelChoice:
    request = CreateAgentRequest.model_validate({"agent_type": agent_type, **fields})
    in_words = agent_type != "letta_v1_agent"
    return revised_choice(preset(info, WINDOW, in_words=in_words), request, info, WINDOW, agent_type)


@st.composite
def histories(draw: st.DrawFn) -> tuple[ModelChoice, ModelInfo, str]:
    """An agent's choice after it was made and changed a few times, perhaps to other models."""
    agent_type = draw(st.sampled_from(["letta_v1_agent", "letta_v1_agent", "memgpt_agent"]))
    info = draw(st.sampled_from(MODELS))
    choice = created(info, agent_type, **addressed(draw(changes()), info.handle))
    for said in draw(st.lists(changes(), max_size=3)):
        info = draw(st.just(info) | st.sampled_from(MODELS))
        choice = updated(choice, info, agent_type, **addressed(said, info.handle))
    return choice, info, agent_type


def null_filled(view: dict[str, Any], shape: type[ModelSettings] | type[LLMConfig]) -> dict[str, Any]:
    """As typed clients dump an object: what they know and did not get is null."""
    return dict.fromkeys(shape.model_fields) | view


@pytest.mark.slow
@examples(130)
@given(history=histories(), data=st.data())
def test_writing_back_what_was_shown_changes_nothing(
    history: tuple[ModelChoice, ModelInfo, str], data: st.DataObject
) -> None:
    choice, info, agent_type = history
    settings, config = settings_view(choice), llm_config_view(choice)
    some = data.draw(st.sets(st.sampled_from(sorted(settings))), label="fields written back")
    written: dict[str, dict[str, Any]] = {
        "settings": {"model_settings": settings},
        "config": {"llm_config": config},
        "both": {"model_settings": settings, "llm_config": config, "model": choice.handle},
        "some": {"model_settings": {name: settings[name] for name in some}},
        "none": {"model_settings": {}},
        "dumped settings": {"model_settings": null_filled(settings, ModelSettings)},
        "dumped config": {"llm_config": null_filled(config, LLMConfig)},
        "fields": {
            "model": choice.handle,
            "max_tokens": choice.max_output_tokens,
            "parallel_tool_calls": choice.parallel_tool_calls,
            "response_format": choice.response_format,
            "context_window_limit": choice.context_window,
        },
    }
    for way, fields in written.items():
        assert updated(choice, info, agent_type, **fields) == choice, way


@pytest.mark.slow
@examples(70)
@given(history=histories())
def test_another_agent_made_of_what_was_shown_is_called_the_same(
    history: tuple[ModelChoice, ModelInfo, str],
) -> None:
    choice, info, agent_type = history
    settings, config = settings_view(choice), llm_config_view(choice)
    for fields in (
        {"model": choice.handle, "model_settings": settings, "context_window_limit": choice.context_window},
        {"llm_config": config},
        {"llm_config": config, "model_settings": settings, "model": choice.handle},
    ):
        made = created(info, agent_type, **fields)
        # An llm_config cannot tell the switch that is set as the vendor has it from the one that is not set.
        if "model_settings" in fields or "thinking" not in settings or "thinking" in preset(info, WINDOW).settings:
            assert settings_view(made) == settings
        if "llm_config" in fields:
            assert llm_config_view(made) == config


@pytest.mark.slow
@examples(70)
@given(history=histories())
def test_both_ways_of_showing_it_agree_and_have_numbers(history: tuple[ModelChoice, ModelInfo, str]) -> None:
    choice, info, _ = history
    settings, config = settings_view(choice), llm_config_view(choice)
    assert settings["max_output_tokens"] == config["max_tokens"] >= 1
    assert settings["temperature"] == config["temperature"] is not None
    shown_format = settings.get("response_schema", settings.get("response_format"))
    assert shown_format == config["response_format"] == choice.response_format
    for name in ("parallel_tool_calls", "strict", "verbosity", "effort", "tool_call_parser"):
        assert settings.get(name, config[name]) == config[name]
        assert not config[name] or name in settings
    assert settings.get("reasoning", {}).get("reasoning_effort") == config["reasoning_effort"]
    thinking: dict[str, Any] = settings.get("thinking", {})
    if thinking.get("type"):
        assert (thinking["type"] == "enabled") == config["enable_reasoner"]
        assert (thinking.get("budget_tokens") or 0) == config["max_reasoning_tokens"]
    if told := settings.get("thinking_config"):
        expected = (told["include_thoughts"], told["thinking_budget"])
        assert expected == (config["enable_reasoner"], config["max_reasoning_tokens"])
    assert fitted(choice, info) == choice == completed(choice)


@pytest.mark.slow
@examples(400)
@given(history=histories().filter(lambda history: history[1].provider_type not in BRIDGED))
def test_what_is_sent_is_what_is_shown(history: tuple[ModelChoice, ModelInfo, str]) -> None:
    choice, info, _ = history
    request = ModelRequest(
        handle=choice.handle,
        system="Be kind.",
        turns=(Turn("user", (Text("Hello"),)),),
        tools=(TOOL,),
        parallel_tool_calls=choice.parallel_tool_calls,
        max_output_tokens=choice.max_output_tokens,
        temperature=choice.temperature,
        response_format=choice.response_format,
        settings=choice.settings,
    )
    if info.provider_type == "anthropic":
        _check_claude(messages_payload(request, info), choice, info)
    else:
        _check_chat(chat_payload(request, dialect_of(info.provider_type), info), choice, info)


def _check_claude(sent: dict[str, Any], choice: ModelChoice, info: ModelInfo) -> None:
    config = llm_config_view(choice)
    assert sent["max_tokens"] == config["max_tokens"]
    assert sent.get("output_config", {}).get("effort") == config["effort"]
    assert sent["tool_choice"].get("disable_parallel_tool_use", False) is not config["parallel_tool_calls"]
    thinking = sent.get("thinking", {})
    thinks = thinking.get("type") in ("enabled", "adaptive")
    if config["max_tokens"] > 1024:
        assert thinks == config["enable_reasoner"]
    if thinks:
        assert thinking.get("budget_tokens", 0) == config["max_reasoning_tokens"]
        assert "temperature" not in sent
    elif "temperature" in sent:
        assert sent["temperature"] == config["temperature"]


def _check_chat(sent: dict[str, Any], choice: ModelChoice, info: ModelInfo) -> None:
    config, dialect = llm_config_view(choice), dialect_of(info.provider_type)
    assert sent[dialect.max_tokens] == config["max_tokens"]
    if not reasons(info) or dialect.temperature_for_reasoners:
        assert sent["temperature"] == config["temperature"]
    if dialect.parallel_tool_calls and not refuses_parallel_flag(info):
        assert sent["parallel_tool_calls"] == config["parallel_tool_calls"]
    assert sent["tools"][0]["function"].get("strict", False) == (config["strict"] and dialect.strict)
    if dialect.verbosity:
        assert sent.get("verbosity") == config["verbosity"]
    if dialect.effort is not None and not thinks_only_without_tools(info):
        told = sent.get(dialect.effort)
        assert (told["effort"] if isinstance(told, dict) else told) == config["reasoning_effort"]
    if dialect.thinking and "thinking" in sent and "type" in sent["thinking"]:
        assert (sent["thinking"]["type"] == "enabled") == config["enable_reasoner"]


@pytest.mark.parametrize("info", MODELS, ids=lambda info: info.handle)
def test_a_model_s_defaults_are_settings_that_it_takes(info: ModelInfo) -> None:
    usual = preset(info, WINDOW)
    assert created(info, "letta_v1_agent", model=info.handle) == fitted(usual, info) == usual


@pytest.mark.parametrize("info", MODELS, ids=lambda info: info.handle)
def test_a_choice_from_before_choices_were_complete_is_shown_and_sent_the_same(info: ModelInfo) -> None:
    before = ModelChoice(
        handle=info.handle, context_window=min(30_000, info.context_window), settings={"enable_reasoner": False}
    )
    whole = completed(before)
    assert whole == completed(whole)
    assert settings_view(whole)["max_output_tokens"] == llm_config_view(whole)["max_tokens"] >= 1
    assert updated(whole, info, "letta_v1_agent", llm_config=llm_config_view(whole)) == whole
    assert llm_config_view(whole)["enable_reasoner"] in (False, reasons(info))
    kept = msgspec.structs.replace(before, temperature=0.2, max_output_tokens=77)
    assert (completed(kept).temperature, completed(kept).max_output_tokens) == (0.2, 77)
