"""Statistics as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from typing_extensions import TypedDict

from holdfast.core.statistics import ProviderFigures, Statistics, Used
from holdfast.wire.times import MICROSECONDS, optional_timestamp, timestamp

_STATES: Final = ("created", "running", "completed", "failed", "cancelled")
_DAY_US: Final = 86_400 * MICROSECONDS


class RunsByState(TypedDict):
    created: int
    running: int
    completed: int
    failed: int
    cancelled: int


class UsageFigures(TypedDict):
    steps: int
    prompt_tokens: int
    completion_tokens: int
    cached_input_tokens: int
    cost_usd: float | None  # null: no price is known
    unpriced_steps: int  # whose price is not known, and which the cost lacks


class Bucket(TypedDict):
    at: str  # its beginning
    runs: RunsByState  # accepted in it, by what they are now
    usage: UsageFigures


class Day(TypedDict):
    day: str  # of UTC
    usage: UsageFigures


class ErrorClass(TypedDict):
    error_type: str  # of the step that failed, else the run's stop reason
    runs: int
    last_at: str


class ToolDurations(TypedDict):
    name: str
    calls: int
    failures: int
    timed_calls: int  # the only call of their step, whose time is not divided among several
    p50_ns: int | None
    p95_ns: int | None
    max_ns: int | None


class SlowRunView(TypedDict):
    id: str
    agent_id: str
    status: str
    stop_reason: str | None
    created_at: str
    total_duration_ns: int


class ProviderHealth(TypedDict):
    name: str
    status: str  # `ok`, or `failing` if its last call failed
    calls: int
    failures: int
    mean_ns: int | None
    last_success_at: str | None
    last_failure_at: str | None
    last_error_type: str | None


class QueueView(TypedDict):
    waiting: int  # runs that no worker drives yet
    oldest_s: float  # how long the oldest of them has waited
    active: int  # runs that a worker drives
    held: int  # runs that wait for a decision


class WorkerView(TypedDict):
    id: str
    runs: int  # that it drives now


class StatisticsView(TypedDict):
    since: str
    until: str
    bucket_s: int
    totals: RunsByState
    usage: UsageFigures
    buckets: list[Bucket]
    days: list[Day]
    errors: list[ErrorClass]
    tools: list[ToolDurations]
    tool_steps: int  # how many steps the figures of tools are made from: the newest
    slowest_runs: list[SlowRunView]
    providers: list[ProviderHealth]
    queue: QueueView
    workers: list[WorkerView]


def statistics_view(found: Statistics) -> StatisticsView:
    span = found.span
    whole = Used()
    for used in found.used:
        whole.add(used)
    return {
        "since": timestamp(span.since_us),
        "until": timestamp(span.until_us),
        "bucket_s": span.width_us // MICROSECONDS,
        "totals": _states({state: sum(each.get(state, 0) for each in found.runs) for state in _STATES}),
        "usage": _usage(whole),
        "buckets": [
            {"at": timestamp(span.since_us + place * span.width_us), "runs": _states(states), "usage": _usage(used)}
            for place, (states, used) in enumerate(zip(found.runs, found.used, strict=True))
        ],
        "days": [{"day": timestamp(day * _DAY_US)[:10], "usage": _usage(used)} for day, used in found.days.items()],
        "errors": [
            {"error_type": error.error_type, "runs": error.runs, "last_at": timestamp(error.last_us)}
            for error in found.errors
        ],
        "tools": [
            {
                "name": tool.name,
                "calls": tool.calls,
                "failures": tool.failures,
                "timed_calls": tool.timed,
                "p50_ns": tool.p50_ns,
                "p95_ns": tool.p95_ns,
                "max_ns": tool.max_ns,
            }
            for tool in found.tools
        ],
        "tool_steps": found.tool_steps,
        "slowest_runs": [
            {
                "id": run.id,
                "agent_id": run.agent_id,
                "status": run.status,
                "stop_reason": run.stop_reason,
                "created_at": timestamp(run.created_us),
                "total_duration_ns": run.total_duration_ns,
            }
            for run in found.slowest
        ],
        "providers": [_provider(figures) for figures in found.providers],
        "queue": {
            "waiting": found.queue.waiting,
            "oldest_s": found.queue.oldest_s,
            "active": found.queue.active,
            "held": found.queue.held,
        },
        "workers": [{"id": worker.id, "runs": worker.runs} for worker in found.workers],
    }


def _states(states: Mapping[str, int]) -> RunsByState:
    return {
        "created": states.get("created", 0),
        "running": states.get("running", 0),
        "completed": states.get("completed", 0),
        "failed": states.get("failed", 0),
        "cancelled": states.get("cancelled", 0),
    }


def _usage(used: Used) -> UsageFigures:
    return {
        "steps": used.steps,
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "cached_input_tokens": used.cached_input_tokens,
        "cost_usd": used.cost_usd,
        "unpriced_steps": used.unpriced_steps,
    }


def _provider(figures: ProviderFigures) -> ProviderHealth:
    return {
        "name": figures.name,
        "status": "failing" if figures.is_failing else "ok",
        "calls": figures.calls,
        "failures": figures.failures,
        "mean_ns": figures.mean_ns,
        "last_success_at": optional_timestamp(figures.last_success_us),
        "last_failure_at": optional_timestamp(figures.last_failure_us),
        "last_error_type": figures.last_error_type,
    }
