from __future__ import annotations

from typing import Any

from letta_client.types.agents.run import Run as SdkRun
from letta_client.types.runs.usage_retrieve_response import UsageRetrieveResponse
from pydantic import TypeAdapter

from holdfast.core.records import Run
from holdfast.core.usage import Usage
from holdfast.ids import DEFAULT_ORG
from holdfast.wire.runs import RunMetricsView, RunUsageView, RunView, run_metrics_view, run_usage_view, run_view

from .examples import AGENT, AT_US, CONVERSATION, RUN, through_sdk


def a_run(**fields: Any) -> Run:
    given: dict[str, Any] = {"thread_id": AGENT, "status": "created", "created_us": AT_US} | fields
    return Run(id=RUN, agent_id=AGENT, **given)


def test_a_new_run_shows_nulls_for_what_has_not_happened() -> None:
    shown = run_view(a_run(metadata={"run_type": "send_message"}))
    assert shown == {
        "id": RUN,
        "agent_id": AGENT,
        "conversation_id": None,
        "status": "created",
        "stop_reason": None,
        "background": False,
        "metadata": {"run_type": "send_message"},
        "request_config": {
            "use_assistant_message": True,
            "assistant_message_tool_name": "send_message",
            "assistant_message_tool_kwarg": "message",
            "include_return_message_types": None,
        },
        "created_at": "2026-03-01T09:30:00.250000Z",
        "completed_at": None,
        "callback_url": None,
        "callback_sent_at": None,
        "callback_status_code": None,
        "callback_error": None,
        "ttft_ns": None,
        "total_duration_ns": None,
        "base_template_id": None,
    }


def test_the_client_reads_a_finished_run() -> None:
    run = a_run(
        thread_id=CONVERSATION,
        status="completed",
        stop_reason="end_turn",
        background=True,
        request_config={"include_return_message_types": ["assistant_message"], "internal": 1},
        completed_us=AT_US + 1_000_000,
        callback_url="https://example.org",
        callback_sent_us=AT_US + 2_000_000,
        callback_status_code=503,
        ttft_ns=210_000_000,
        total_duration_ns=11_800_000_000,
    )
    shown = run_view(run)
    TypeAdapter(RunView).validate_python(shown, strict=True)
    assert "internal" not in shown["request_config"]
    read = through_sdk(SdkRun, shown)
    assert (read.conversation_id, read.stop_reason, read.background) == (CONVERSATION, "end_turn", True)
    assert read.request_config and read.request_config.include_return_message_types == ["assistant_message"]
    assert read.completed_at and read.created_at and (read.completed_at - read.created_at).total_seconds() == 1
    assert (read.callback_status_code, read.total_duration_ns) == (503, 11_800_000_000)


def test_usage_details_are_filled_and_tell_silence_from_zero() -> None:
    shown = run_usage_view(Usage(900, 41, 0, 12, None), 0.125)
    TypeAdapter(RunUsageView).validate_python(shown, strict=True)
    assert shown == {
        "completion_tokens": 41,
        "prompt_tokens": 900,
        "total_tokens": 941,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_read_tokens": 0, "cache_creation_tokens": 12},
        "completion_tokens_details": {"reasoning_tokens": None},
        "estimated": False,
        "cost_usd": 0.125,
    }
    read = through_sdk(UsageRetrieveResponse, shown)
    assert read.prompt_tokens_details and read.prompt_tokens_details.cache_creation_tokens == 12


def test_metrics_count_from_the_start_of_the_work() -> None:
    run = a_run(started_us=AT_US + 5, total_duration_ns=7)
    shown = run_metrics_view(run, num_steps=2, tools_used=["tool-1"])
    TypeAdapter(RunMetricsView).validate_python(shown, strict=True)
    assert shown == {
        "id": RUN,
        "organization_id": DEFAULT_ORG,
        "agent_id": AGENT,
        "project_id": None,
        "run_start_ns": (AT_US + 5) * 1000,
        "run_ns": 7,
        "num_steps": 2,
        "tools_used": ["tool-1"],
        "template_id": None,
        "base_template_id": None,
    }


def test_a_run_that_never_started_counts_from_its_creation_and_used_no_tools() -> None:
    shown = run_metrics_view(a_run(), num_steps=0, tools_used=())
    assert (shown["run_start_ns"], shown["tools_used"]) == (AT_US * 1000, None)
