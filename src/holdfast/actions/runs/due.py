"""Runs of sleeptime agents that a turn has made due, and that are not accepted yet: an answer names them, so they are
shown as they will be when they are."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.actions.queries import Page, RunFilter
from holdfast.core.records import Run
from holdfast.core.sleeptime import RUN_TYPE
from holdfast.errors import NotFound
from holdfast.store import groups, runs
from holdfast.store.groups import DueRun
from holdfast.store.transaction import Transaction

_STATUS: Final = "created"


async def find_run(tx: Transaction, run_id: str) -> Run:
    try:
        return await runs.get(tx, run_id)
    except NotFound:
        due = await groups.find_due_run(tx, run_id)
        if due is None:
            raise
        return _as_run(due)


async def list_runs(tx: Transaction, filters: RunFilter, page: Page) -> list[Run]:
    """By age, with those that are due as the newest of their agents."""
    if not _may_show_due(filters):
        return await runs.list_runs(tx, filters, page)
    due = [_as_run(found) for found in await groups.due_runs(tx, filters.agent_ids or ())]
    if not due:
        return await runs.list_runs(tx, filters, page)
    listed = await (_newest_first if page.order == "desc" else _oldest_first)(tx, filters, page, due)
    if page.limit is None:
        return listed
    return listed[-page.limit :] if page.before is not None else listed[: page.limit]


async def _newest_first(tx: Transaction, filters: RunFilter, page: Page, due: list[Run]) -> list[Run]:
    at = {run.id: position for position, run in enumerate(due)}
    if page.before in at:
        return due[: at[page.before]]
    if page.after in at:
        begun = await runs.list_runs(tx, filters, msgspec.structs.replace(page, after=None))
        return [*due[at[page.after] + 1 :], *begun]
    begun = await runs.list_runs(tx, filters, page)
    return begun if page.after is not None else [*due, *begun]


async def _oldest_first(tx: Transaction, filters: RunFilter, page: Page, due: list[Run]) -> list[Run]:
    due = due[::-1]
    at = {run.id: position for position, run in enumerate(due)}
    if page.after in at:
        return due[at[page.after] + 1 :]
    if page.before in at:
        newest = msgspec.structs.replace(page, before=None, order="desc")
        return [*(await runs.list_runs(tx, filters, newest))[::-1], *due[: at[page.before]]]
    begun = await runs.list_runs(tx, filters, page)
    return begun if page.before is not None else [*begun, *due]


def _may_show_due(filters: RunFilter) -> bool:
    """Whether it is a list of some agents' runs, and not one by something that these do not have yet."""
    if filters.agent_ids is None or (filters.statuses is not None and _STATUS not in filters.statuses):
        return False
    plain = RunFilter(agent_ids=filters.agent_ids, statuses=filters.statuses, active=filters.active)
    return filters in (plain, msgspec.structs.replace(plain, background=True))


def _as_run(due: DueRun) -> Run:
    return Run(
        id=due.id,
        agent_id=due.agent_id,
        thread_id=due.agent_id,
        status=_STATUS,
        background=True,
        metadata={"run_type": RUN_TYPE},
        created_us=due.due_us,
    )
