"""Steps, one model call and the tools it caused, and their traces: what a vendor was sent for one, and what it said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.messages import Message
from holdfast.core.records import ProviderTrace, Step, StepStatus, StopReason
from holdfast.wire.bounds import Many
from holdfast.wire.messages import stored_view
from holdfast.wire.requests import Key
from holdfast.wire.runs import CompletionTokensDetails, PromptTokensDetails, completion_details, prompt_details
from holdfast.wire.times import timestamp


class StepFeedback(BaseModel):
    """`tags` that were not sent stay."""

    feedback: Literal["positive", "negative"] | None = None
    tags: Many[Key] | None = None


class StepView(TypedDict):
    id: str
    origin: str | None
    organization_id: str
    provider_id: str | None
    run_id: str
    agent_id: str
    status: StepStatus
    stop_reason: StopReason | None
    model: str
    model_handle: str
    model_endpoint: str | None
    provider_name: str | None
    provider_category: str
    context_window_limit: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    usage_estimated: bool
    cost_usd: float | None
    messages: list[dict[str, Any]]
    feedback: Literal["positive", "negative"] | None
    tags: list[str]
    error_type: str | None
    error_data: dict[str, Any] | None
    trace_id: str | None
    request_id: str | None
    tid: str | None
    project_id: str | None


class StepMetricsView(TypedDict):
    id: str
    organization_id: str
    provider_id: str | None
    run_id: str
    agent_id: str
    step_start_ns: int | None
    llm_request_start_ns: int | None
    llm_request_ns: int | None
    tool_execution_ns: int | None
    step_ns: int | None
    ttft_ns: int | None
    base_template_id: str | None
    template_id: str | None
    project_id: str | None


def step_view(step: Step, messages: Iterable[Message] = (), conversation_id: str | None = None) -> StepView:
    """`messages` of the step are deprecated on the wire; they are shown when they were loaded."""
    return {
        "id": step.id,
        "origin": None,
        "organization_id": ids.DEFAULT_ORG,
        "provider_id": step.provider_id,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "status": step.status,
        "stop_reason": step.stop_reason,
        "model": step.model_handle.partition("/")[2] or step.model_handle,
        "model_handle": step.model_handle,
        "model_endpoint": step.model_endpoint,
        "provider_name": step.provider_name or None,
        "provider_category": step.provider_category,
        "context_window_limit": step.context_window_limit,
        "prompt_tokens": step.usage.prompt_tokens,
        "completion_tokens": step.usage.completion_tokens,
        "total_tokens": step.usage.total_tokens,
        "cached_input_tokens": step.usage.cached_input_tokens,
        "cache_write_tokens": step.usage.cache_write_tokens,
        "reasoning_tokens": step.usage.reasoning_tokens,
        "prompt_tokens_details": prompt_details(step.usage),
        "completion_tokens_details": completion_details(step.usage),
        "usage_estimated": step.usage.estimated,
        "cost_usd": step.cost_usd,
        "messages": [
            stored_view(message, agent_id=step.agent_id, conversation_id=conversation_id) for message in messages
        ],
        "feedback": _feedback(step.feedback),
        "tags": list(step.tags),
        "error_type": step.error_type,
        "error_data": step.error_data,
        "trace_id": step.trace_id,
        "request_id": None,
        "tid": None,
        "project_id": None,
    }


def step_metrics_view(step: Step) -> StepMetricsView:
    return {
        "id": step.id,
        "organization_id": ids.DEFAULT_ORG,
        "provider_id": step.provider_id,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "step_start_ns": step.step_start_ns,
        "llm_request_start_ns": step.llm_request_start_ns,
        "llm_request_ns": step.llm_request_ns,
        "tool_execution_ns": step.tool_execution_ns,
        "step_ns": step.step_ns,
        "ttft_ns": step.ttft_ns,
        "base_template_id": None,
        "template_id": None,
        "project_id": None,
    }


def _feedback(kept: str | None) -> Literal["positive", "negative"] | None:
    return kept if kept in ("positive", "negative") else None


class ProviderTraceView(TypedDict):
    id: str
    request_json: dict[str, Any]
    response_json: dict[str, Any]
    step_id: str
    agent_id: str
    agent_tags: list[str]
    call_type: str
    run_id: str
    source: str
    org_id: str
    user_id: str | None
    compaction_settings: dict[str, Any] | None
    llm_config: dict[str, Any] | None
    billing_context: dict[str, Any] | None
    created_at: str
    updated_at: str | None
    created_by_id: str | None
    last_updated_by_id: str | None


def provider_trace_view(trace: ProviderTrace) -> ProviderTraceView:
    return {
        "id": ids.derive("provider_trace", trace.step_id),
        "request_json": trace.request,
        "response_json": trace.response,
        "step_id": trace.step_id,
        "agent_id": trace.agent_id,
        "agent_tags": list(trace.agent_tags),
        "call_type": "agent_step",
        "run_id": trace.run_id,
        "source": "holdfast",
        "org_id": ids.DEFAULT_ORG,
        "user_id": None,
        "compaction_settings": None,
        "llm_config": None,
        "billing_context": None,
        "created_at": timestamp(trace.created_us),
        "updated_at": None,
        "created_by_id": None,
        "last_updated_by_id": None,
    }
