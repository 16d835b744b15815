"""Traces: what a vendor was sent for a step, and what it said."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.records import ProviderTrace
from holdfast.wire.times import timestamp


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
