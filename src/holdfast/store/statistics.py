"""Figures about all runs of a time, summed by the database. It may take long: use `read_long`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import BigInteger, Text, bindparam, case, cast, func, literal_column, select, text

from holdfast.core.statistics import (
    ErrorFigures,
    QueueFigures,
    SlowRun,
    Span,
    Statistics,
    StepSum,
    ToolSample,
    Used,
    WorkerFigures,
    by_provider,
    by_tool,
    used_by_bucket,
    used_by_day,
)
from holdfast.store.runs import IS_ACTIVE, read_queue
from holdfast.store.tables import runs, steps
from holdfast.store.transaction import Row, Transaction

SLOWEST: Final = 10
MOST_TOOLS: Final = 50
MOST_ERRORS: Final = 50
# Of the newest steps that ran tools. Their calls are read one by one, so there must be an end.
MOST_TOOL_STEPS: Final = 5_000
_DAY_US: Final = 86_400_000_000

_since = bindparam("since_us", type_=BigInteger())
_until = bindparam("until_us", type_=BigInteger())
_width = bindparam("width_us", type_=BigInteger())
_runs_then = (runs.c.created_us >= _since, runs.c.created_us < _until)
_steps_then = (steps.c.created_us >= _since, steps.c.created_us < _until)
_run_bucket = ((runs.c.created_us - _since) // _width).label("bucket")
_RUNS = (
    select(_run_bucket, runs.c.status, func.count().label("count"))
    .where(*_runs_then)
    .group_by(literal_column("1"), runs.c.status)
)
_step_bucket = ((steps.c.created_us - _since) // _width).label("bucket")
_STEPS = (
    select(
        _step_bucket,
        (steps.c.created_us // literal_column(str(_DAY_US), BigInteger())).label("day"),
        steps.c.provider_name,
        steps.c.error_type,
        func.count().label("steps"),
        cast(func.sum(steps.c.prompt_tokens), BigInteger).label("prompt_tokens"),
        cast(func.sum(steps.c.completion_tokens), BigInteger).label("completion_tokens"),
        cast(func.coalesce(func.sum(steps.c.cached_input_tokens), 0), BigInteger).label("cached_input_tokens"),
        func.sum(steps.c.cost_usd).label("cost_usd"),
        cast(func.sum(case((steps.c.cost_usd.is_(None), 1), else_=0)), BigInteger).label("unpriced_steps"),
        cast(func.coalesce(func.sum(steps.c.llm_request_ns), 0), BigInteger).label("model_ns"),
        func.count(steps.c.llm_request_ns).label("timed"),
        func.max(steps.c.created_us).label("last_us"),
    )
    .where(*_steps_then)
    .group_by(literal_column("1"), literal_column("2"), steps.c.provider_name, steps.c.error_type)
)
# A run may fail in no step of its own: then its stop reason has to do.
_step_error = (
    select(steps.c.error_type)
    .where(steps.c.run_id == runs.c.id, steps.c.error_type.is_not(None))
    .order_by(steps.c.number.desc())
    .limit(1)
    .scalar_subquery()
)
_failed = (
    select(func.coalesce(_step_error, runs.c.stop_reason, "error").label("error_type"), runs.c.created_us)
    .where(*_runs_then, runs.c.status == literal_column("'failed'", Text()))
    .subquery()
)
_ERRORS = (
    select(_failed.c.error_type, func.count().label("runs"), func.max(_failed.c.created_us).label("last_us"))
    .group_by(_failed.c.error_type)
    .order_by(literal_column("2", BigInteger()).desc(), _failed.c.error_type)
    .limit(MOST_ERRORS)
)
_SLOWEST = (
    select(
        runs.c.id,
        runs.c.agent_id,
        runs.c.status,
        runs.c.stop_reason,
        runs.c.created_us,
        runs.c.total_duration_ns,
    )
    .where(*_runs_then, runs.c.total_duration_ns.is_not(None))
    .order_by(runs.c.total_duration_ns.desc(), runs.c.id)
    .limit(SLOWEST)
)
_WORKERS = (
    select(runs.c.lease_owner, func.count().label("runs"))
    .where(
        IS_ACTIVE, runs.c.lease_expires_us > bindparam("now_us", type_=BigInteger()), runs.c.lease_owner.is_not(None)
    )
    .group_by(runs.c.lease_owner)
    .order_by(runs.c.lease_owner)
)
# The returns of a step are the parts of its tool message. What they return is left where it is: it may be long.
_TOOL_CALLS: Final = """
SELECT ran.id AS step_id, ran.tool_execution_ns, {name} AS name, {status} AS status
FROM (
  SELECT id, tool_execution_ns FROM steps
  WHERE created_us >= :since_us AND created_us < :until_us AND tool_execution_ns > 0
  ORDER BY created_us DESC, id DESC LIMIT {most}
) ran
JOIN messages ON messages.step_id = ran.id AND messages.role = 'tool'
CROSS JOIN {parts}
WHERE {is_return}
"""
# As it is stored. Inside a text every quotation mark is escaped, so that nothing else can look like this.
_RETURN: Final = r'\{"kind":"tool_return","call_id":"[^"]*","name":"([^"]*)","status":"([a-z]+)"'


def _tool_calls(**columns: str) -> Any:
    sql = text(_TOOL_CALLS.format(most=MOST_TOOL_STEPS, **columns))
    given = sql.bindparams(bindparam("since_us", type_=BigInteger()), bindparam("until_us", type_=BigInteger()))
    return given.columns(step_id=Text(), tool_execution_ns=BigInteger(), name=Text(), status=Text())


_TOOLS: Final[Mapping[str, Any]] = {
    "sqlite": _tool_calls(
        parts="json_each(messages.parts) part",
        name="json_extract(part.value, '$.name')",
        status="json_extract(part.value, '$.status')",
        is_return="json_extract(part.value, '$.kind') = 'tool_return'",
    ),
    # Its JSON functions refuse \u0000, which what a tool has returned may hold.
    "postgresql": _tool_calls(
        parts=f"regexp_matches(messages.parts, '{_RETURN}', 'g') AS part(found)",
        name="part.found[1]",
        status="part.found[2]",
        is_return="true",
    ),
}


async def read(tx: Transaction, span: Span, now_us: int) -> Statistics:
    given = {"since_us": span.since_us, "until_us": span.until_us}
    in_buckets = given | {"width_us": span.width_us}
    states: list[dict[str, int]] = [{} for _ in range(span.buckets)]
    for row in await tx.fetch_all(_RUNS, in_buckets):
        states[row["bucket"]][row["status"]] = row["count"]
    sums = [_sum(row) for row in await tx.fetch_all(_STEPS, in_buckets)]
    samples, tool_steps = await _tool_samples(tx, given)
    waiting = await read_queue(tx, now_us)
    return Statistics(
        span=span,
        runs=states,
        used=used_by_bucket(span, sums),
        days=used_by_day(sums),
        errors=[ErrorFigures(*row) for row in await tx.fetch_all(_ERRORS, given)],
        tools=by_tool(samples)[:MOST_TOOLS],
        tool_steps=tool_steps,
        slowest=[SlowRun(*row) for row in await tx.fetch_all(_SLOWEST, given)],
        providers=by_provider(sums),
        queue=QueueFigures(waiting.waiting, waiting.age_s(1.0), waiting.driven, waiting.held),
        workers=[WorkerFigures(*row) for row in await tx.fetch_all(_WORKERS, {"now_us": now_us})],
    )


def _sum(row: Row) -> StepSum:
    used = Used(
        steps=row["steps"],
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        cached_input_tokens=row["cached_input_tokens"],
        cost_usd=row["cost_usd"],
        unpriced_steps=row["unpriced_steps"],
    )
    return StepSum(
        bucket=row["bucket"],
        day=row["day"],
        provider=row["provider_name"],
        error_type=row["error_type"],
        used=used,
        model_ns=row["model_ns"],
        timed=row["timed"],
        last_us=row["last_us"],
    )


async def _tool_samples(tx: Transaction, given: Mapping[str, int]) -> tuple[list[ToolSample], int]:
    """And how many steps they are of."""
    rows = await tx.fetch_all(_TOOLS[tx.dialect], given)
    calls: dict[str, int] = {}
    for row in rows:
        calls[row["step_id"]] = calls.get(row["step_id"], 0) + 1
    samples = [
        ToolSample(
            row["name"],
            row["status"] == "error",
            row["tool_execution_ns"] if calls[row["step_id"]] == 1 else None,
        )
        for row in rows
    ]
    return samples, len(calls)
