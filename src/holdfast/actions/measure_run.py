"""What a run did, counted: its steps and the tools it called."""

from __future__ import annotations

from holdfast.engine.loading import load_state
from holdfast.store import runs
from holdfast.store.transaction import Transaction
from holdfast.wire.runs import RunMetricsView, run_metrics_view


async def measure_run(tx: Transaction, run_id: str) -> RunMetricsView:
    """Tools by the ids they had when the run began: one that was deleted since was used all the same."""
    run = await runs.get(tx, run_id)
    num_steps, names = await runs.metrics(tx, run_id)
    state, _ = await load_state(tx, run_id)
    called = [state.spec.tool(name) for name in names] if state.spec else []
    used = [tool.tool_id for tool in called if tool is not None and tool.tool_id is not None]
    return run_metrics_view(run, num_steps=num_steps, tools_used=used)
