"""What a vendor was sent for a step and what it said. One row per step; a later try replaces an earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import bindparam, delete, select

from holdfast.core.records import ProviderTrace
from holdfast.store import agents
from holdfast.store.statements import insert_or_update
from holdfast.store.tables import provider_traces, steps
from holdfast.store.transaction import Row, Transaction

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

ROWS_AT_ONCE: Final = 100  # a trace can be as long as a request to a model

_SAVE = insert_or_update(provider_traces, ["step_id"], ["request", "response", "created_us"])
_COLUMNS = (*provider_traces.columns, steps.c.agent_id)
_of_step = steps.c.id == provider_traces.c.step_id
_ONE = select(*_COLUMNS).join(steps, _of_step).where(provider_traces.c.step_id == bindparam("step"))
_OF_RUN = (
    select(*_COLUMNS)
    .join(steps, _of_step)
    .where(steps.c.run_id == bindparam("run"))
    .order_by(steps.c.number)
    .limit(bindparam("at_most"))
)
_some = provider_traces.alias("some")
_DELETE_OLDER = delete(provider_traces).where(
    provider_traces.c.step_id.in_(
        select(_some.c.step_id)
        .where(_some.c.created_us < bindparam("before_us"))
        .order_by(_some.c.created_us)
        .limit(bindparam("at_most"))
    )
)


async def save(tx: Transaction, trace: ProviderTrace) -> None:
    """The step must be stored already, or be stored in this transaction before it."""
    await tx.execute(
        _SAVE,
        {
            "step_id": trace.step_id,
            "run_id": trace.run_id,
            "request": _encode(trace.request).decode(),
            "response": _encode(trace.response).decode(),
            "created_us": trace.created_us,
        },
    )


async def find(tx: Transaction, step_id: str) -> ProviderTrace | None:
    row = await tx.fetch_one(_ONE, {"step": step_id})
    return None if row is None else (await _traces(tx, [row]))[0]


async def list_of_run(tx: Transaction, run_id: str, limit: int = 1_000) -> list[ProviderTrace]:
    """In the order of the run's steps."""
    return await _traces(tx, await tx.fetch_all(_OF_RUN, {"run": run_id, "at_most": limit}))


async def delete_older(tx: Transaction, before_us: int, limit: int = ROWS_AT_ONCE) -> int:
    """At most `limit` of them, so that other writes are not delayed: repeat it until it deletes fewer."""
    return await tx.execute(_DELETE_OLDER, {"before_us": before_us, "at_most": limit})


async def _traces(tx: Transaction, rows: Sequence[Row]) -> list[ProviderTrace]:
    tags = await agents.tags_of(tx, {row["agent_id"] for row in rows}) if rows else {}
    return [_trace(row, tags.get(row["agent_id"], ())) for row in rows]


def _trace(row: Row, agent_tags: Iterable[str]) -> ProviderTrace:
    return ProviderTrace(
        step_id=row["step_id"],
        run_id=row["run_id"],
        agent_id=row["agent_id"],
        request=_decode(row["request"]),
        response=_decode(row["response"]),
        created_us=row["created_us"],
        agent_tags=tuple(agent_tags),
    )
