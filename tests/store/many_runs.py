"""Many runs at once, written straight into their tables."""

from __future__ import annotations

import random
from typing import Any, Final

from holdfast import ids
from holdfast.core.records import Run
from holdfast.store.statements import insert_into
from holdfast.store.tables import runs as run_rows
from holdfast.store.tables import steps as step_rows
from holdfast.store.transaction import Database, Transaction

from .world import a_run, call

DAY: Final = 86_400_000_000


async def fill(database: Database, agent: str, count: int, chance: random.Random, until_us: int) -> None:
    """So many runs of the month before, with a step each."""
    made = [
        a_run(
            agent,
            status=chance.choice(["completed"] * 8 + ["failed", "cancelled"]),
            stop_reason="end_turn",
            created_us=until_us - chance.randrange(30 * DAY),
            total_duration_ns=chance.randrange(10**11),
        )
        for _ in range(count)
    ]
    made.sort(key=lambda run: run.created_us)

    async def write(tx: Transaction, some: list[Run]) -> None:
        await tx.execute_many(insert_into(run_rows), [_run_row(run) for run in some])
        await tx.execute_many(insert_into(step_rows), [_step_row(run, chance) for run in some])

    for first in range(0, count, 2_000):
        await call(database, write, made[first : first + 2_000])


def _run_row(run: Run) -> dict[str, Any]:
    named = ("id", "agent_id", "thread_id", "status", "stop_reason", "created_us", "total_duration_ns")
    rest = {"background": False, "metadata": "{}", "request_config": "{}", "lease": 1}
    return {name: getattr(run, name) for name in named} | rest


def _step_row(run: Run, chance: random.Random) -> dict[str, Any]:
    return {
        "id": ids.derive("step", run.id, 1),
        "run_id": run.id,
        "agent_id": run.agent_id,
        "number": 1,
        "status": "failed" if run.status == "failed" else "success",
        "error_type": "Overloaded" if run.status == "failed" else None,
        "model_handle": "acme/large",
        "provider_name": "acme",
        "provider_category": "base",
        "context_window_limit": 8_000,
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "usage_estimated": False,
        "tags": "[]",
        "created_us": run.created_us,
        "llm_request_ns": 10**9,
        "tool_execution_ns": 10**6 if chance.random() < 0.3 else None,
    }
