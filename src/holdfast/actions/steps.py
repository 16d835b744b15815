"""Steps: list and read them, what vendors were sent for them, and what people thought of them."""

from __future__ import annotations

from typing import Literal

from holdfast.actions.queries import Page, StepFilter
from holdfast.core.records import ProviderTrace, Step
from holdfast.store import steps, traces
from holdfast.store.transaction import Database


async def list_steps(database: Database, filters: StepFilter, page: Page) -> list[Step]:
    return await database.read(lambda tx: steps.list_steps(tx, filters, page))


async def read_step(database: Database, step_id: str) -> Step:
    return await database.read(lambda tx: steps.get(tx, step_id))


async def find_trace(database: Database, step_id: str) -> ProviderTrace | None:
    """None when nothing was kept: tracing is off by default, and a trace is kept for a while only."""
    return await database.read(lambda tx: traces.find(tx, step_id))


async def give_feedback(
    database: Database, step_id: str, verdict: Literal["positive", "negative"] | None, tags: tuple[str, ...] | None
) -> Step:
    return await database.write(lambda tx: steps.feedback(tx, step_id, verdict, tags))
