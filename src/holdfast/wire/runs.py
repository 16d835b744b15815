"""Runs, what they used and how long they took; as jobs, their old name; and their calls that wait for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.hold import HeldCall, Hold, changed_secrets
from holdfast.core.records import Run, RunStatus, StopReason
from holdfast.core.usage import Usage
from holdfast.wire.message_shapes import MessageType
from holdfast.wire.requests import REQUEST_CONFIG_DEFAULTS
from holdfast.wire.times import optional_timestamp, timestamp


class RequestConfig(TypedDict):
    use_assistant_message: bool
    assistant_message_tool_name: str
    assistant_message_tool_kwarg: str
    include_return_message_types: list[MessageType] | None


class RunView(TypedDict):
    id: str
    agent_id: str
    conversation_id: str | None
    status: RunStatus
    stop_reason: StopReason | None
    background: bool
    metadata: dict[str, Any]
    request_config: RequestConfig
    created_at: str
    completed_at: str | None
    callback_url: str | None
    callback_sent_at: str | None
    callback_status_code: int | None
    callback_error: str | None
    ttft_ns: int | None
    total_duration_ns: int | None
    base_template_id: str | None


class PromptTokensDetails(TypedDict):
    cached_tokens: int | None
    cache_read_tokens: int | None
    cache_creation_tokens: int | None


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int | None


class RunUsageView(TypedDict):
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    estimated: bool
    cost_usd: float | None


class RunMetricsView(TypedDict):
    id: str
    organization_id: str
    agent_id: str
    project_id: str | None
    run_start_ns: int
    run_ns: int | None
    num_steps: int
    tools_used: list[str] | None
    template_id: str | None
    base_template_id: str | None


def run_view(run: Run) -> RunView:
    return {
        "id": run.id,
        "agent_id": run.agent_id,
        "conversation_id": run.conversation_id,
        "status": run.status,
        "stop_reason": run.stop_reason,
        "background": run.background,
        "metadata": run.metadata,
        "request_config": _request_config(run.request_config),
        "created_at": timestamp(run.created_us),
        "completed_at": optional_timestamp(run.completed_us),
        "callback_url": run.callback_url,
        "callback_sent_at": optional_timestamp(run.callback_sent_us),
        "callback_status_code": run.callback_status_code,
        "callback_error": run.callback_error,
        "ttft_ns": run.ttft_ns,
        "total_duration_ns": run.total_duration_ns,
        "base_template_id": None,
    }


def run_usage_view(usage: Usage, cost_usd: float | None = None) -> RunUsageView:
    """`estimated`: a vendor did not say what one of the calls used, or was cut off before it could."""
    return {
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": prompt_details(usage),
        "completion_tokens_details": completion_details(usage),
        "estimated": usage.estimated,
        "cost_usd": cost_usd,
    }


def run_metrics_view(run: Run, *, num_steps: int, tools_used: Sequence[str]) -> RunMetricsView:
    """`tools_used`: ids of the tools that the run's calls named."""
    return {
        "id": run.id,
        "organization_id": ids.DEFAULT_ORG,
        "agent_id": run.agent_id,
        "project_id": None,
        "run_start_ns": (run.created_us if run.started_us is None else run.started_us) * 1000,
        "run_ns": run.total_duration_ns,
        "num_steps": num_steps,
        "tools_used": list(tools_used) or None,
        "template_id": None,
        "base_template_id": None,
    }


def prompt_details(usage: Usage) -> PromptTokensDetails:
    """Vendors call what came from the cache by one of two names; clients look under either."""
    return {
        "cached_tokens": usage.cached_input_tokens,
        "cache_read_tokens": usage.cached_input_tokens,
        "cache_creation_tokens": usage.cache_write_tokens,
    }


def completion_details(usage: Usage) -> CompletionTokensDetails:
    return {"reasoning_tokens": usage.reasoning_tokens}


def _request_config(kept: dict[str, Any]) -> RequestConfig:
    """Only the fields that clients know: a run may keep more."""
    known = {name: kept.get(name, default) for name, default in REQUEST_CONFIG_DEFAULTS.items()}
    return RequestConfig(**known)


class JobView(TypedDict):
    id: str
    job_type: str
    status: str
    stop_reason: str | None
    metadata: dict[str, Any]
    background: bool
    agent_id: str
    user_id: str
    created_by_id: str
    last_updated_by_id: str
    created_at: str
    updated_at: str
    completed_at: str | None
    callback_url: str | None
    callback_sent_at: str | None
    callback_status_code: int | None
    callback_error: str | None
    ttft_ns: int | None
    total_duration_ns: int | None


def job_view(run: Run) -> JobView:
    return {
        "id": run.id,
        "job_type": "run",
        "status": run.status,
        "stop_reason": run.stop_reason,
        "metadata": run.metadata,
        "background": run.background,
        "agent_id": run.agent_id,
        "user_id": ids.DEFAULT_USER,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
        "created_at": timestamp(run.created_us),
        "updated_at": timestamp(run.completed_us or run.started_us or run.created_us),
        "completed_at": optional_timestamp(run.completed_us),
        "callback_url": run.callback_url,
        "callback_sent_at": optional_timestamp(run.callback_sent_us),
        "callback_status_code": run.callback_status_code,
        "callback_error": run.callback_error,
        "ttft_ns": run.ttft_ns,
        "total_duration_ns": run.total_duration_ns,
    }


class WaitingCall(TypedDict):
    tool_call_id: str
    name: str
    arguments: str
    client: bool  # only the client can run it: it wants a tool return, not an approval


class WaitingApproval(TypedDict):
    id: str  # the run's, which is also the cursor of the list
    run_id: str
    agent_id: str
    conversation_id: str | None
    request_id: str
    asked_at: str
    tool_calls: list[WaitingCall]
    changed_secrets: list[str]  # whose value, or presence, is another than when it was asked


def approval_view(
    run_id: str, agent_id: str, thread_id: str, hold: Hold, asked_us: int, secret_ids: Mapping[str, str]
) -> WaitingApproval:
    """`secret_ids`: of the agent's secrets as they are now, by name."""
    return {
        "id": run_id,
        "run_id": run_id,
        "agent_id": agent_id,
        "conversation_id": None if thread_id == agent_id else thread_id,
        "request_id": hold.request_id,
        "asked_at": timestamp(asked_us),
        "tool_calls": [waiting_call(held) for held in hold.calls if held.asks],
        "changed_secrets": changed_secrets(hold, secret_ids),
    }


def waiting_call(held: HeldCall) -> WaitingCall:
    call = held.call
    return {"tool_call_id": call.id, "name": call.name, "arguments": call.arguments, "client": held.client}
