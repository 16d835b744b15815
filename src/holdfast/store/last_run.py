"""What a run's end writes to its agent and its thread, in the same transaction as the end itself (I1)."""

from __future__ import annotations

from sqlalchemy import bindparam, update

from holdfast.core.records import Run, StopReason
from holdfast.store.tables import agents, threads
from holdfast.store.transaction import Transaction

_agent = (
    update(agents)
    .where(agents.c.id == bindparam("agent"))
    .values(
        last_stop_reason=bindparam("stop_reason"),
        last_run_completion_us=bindparam("now_us"),
        last_run_duration_ns=bindparam("duration_ns"),
    )
)
_thread = update(threads).where(threads.c.id == bindparam("thread")).values(last_run_completion_us=bindparam("now_us"))


async def record(tx: Transaction, run: Run, stop_reason: StopReason, now_us: int, duration_ns: int) -> None:
    ended = {"stop_reason": stop_reason, "now_us": now_us, "duration_ns": duration_ns}
    await tx.execute_many(_agent, [{"agent": run.agent_id, **ended}])
    await tx.execute_many(_thread, [{"thread": run.thread_id, "now_us": now_us}])
