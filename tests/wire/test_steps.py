from __future__ import annotations

from typing import Any

import pytest
from letta_client.types.step import Step as SdkStep
from letta_client.types.steps.metric_retrieve_response import MetricRetrieveResponse
from pydantic import TypeAdapter

from holdfast.core.messages import Text
from holdfast.core.records import Step
from holdfast.core.usage import Usage
from holdfast.wire.steps import StepMetricsView, StepView, step_metrics_view, step_view

from .examples import AGENT, CONVERSATION, MESSAGE, RUN, STEP, row, through_sdk


def a_step(**fields: Any) -> Step:
    given: dict[str, Any] = {"status": "success", "model_handle": "openai/gpt-x", "context_window_limit": 32_000}
    return Step(id=STEP, run_id=RUN, agent_id=AGENT, number=1, **(given | fields))


def test_the_client_reads_a_step_and_its_messages() -> None:
    step = a_step(
        usage=Usage(900, 41, 0, None, 3, estimated=True),
        cost_usd=0.5,
        provider_name="openai",
        tags=("a",),
        feedback="positive",
        stop_reason="end_turn",
        error_data={"message": "x"},
    )
    shown = step_view(step, [row("assistant", Text("hi"))], CONVERSATION)
    TypeAdapter(StepView).validate_python(shown, strict=True)
    assert shown["prompt_tokens_details"] == {
        "cached_tokens": 0,
        "cache_read_tokens": 0,
        "cache_creation_tokens": None,
    }
    assert (shown["cached_input_tokens"], shown["cache_write_tokens"], shown["reasoning_tokens"]) == (0, None, 3)
    assert (shown["usage_estimated"], shown["cost_usd"]) == (True, 0.5)
    read = through_sdk(SdkStep, shown)
    assert (read.model, read.api_model_handle) == ("gpt-x", "openai/gpt-x")
    assert (read.total_tokens, read.feedback, read.tags, read.provider_name) == (941, "positive", ["a"], "openai")
    assert read.messages and read.messages[0].id == MESSAGE
    assert read.messages[0].conversation_id == CONVERSATION


@pytest.mark.parametrize(("handle", "model"), [("openai/gpt-x", "gpt-x"), ("a/b/c", "b/c"), ("local", "local")])
def test_the_model_of_a_step_is_its_handle_without_the_provider(handle: str, model: str) -> None:
    assert step_view(a_step(model_handle=handle))["model"] == model


def test_a_step_in_progress_shows_nulls_and_no_messages() -> None:
    shown = step_view(a_step(status="pending"))
    assert (shown["status"], shown["stop_reason"], shown["feedback"], shown["messages"]) == ("pending", None, None, [])
    assert shown["provider_name"] is None


def test_the_client_reads_the_metrics_of_a_step() -> None:
    step = a_step(step_start_ns=1, llm_request_start_ns=2, llm_request_ns=3, tool_execution_ns=4, step_ns=5, ttft_ns=6)
    shown = step_metrics_view(step)
    TypeAdapter(StepMetricsView).validate_python(shown, strict=True)
    read = through_sdk(MetricRetrieveResponse, shown)
    times = (read.step_start_ns, read.llm_request_start_ns, read.llm_request_ns, read.tool_execution_ns, read.step_ns)
    assert times == (1, 2, 3, 4, 5)
    assert shown["ttft_ns"] == 6
    assert (read.id, read.run_id, read.agent_id) == (STEP, RUN, AGENT)
