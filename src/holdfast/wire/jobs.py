"""Runs under their old name: a job is a run, with a few fields more."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.records import Run
from holdfast.wire.times import optional_timestamp, timestamp


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
