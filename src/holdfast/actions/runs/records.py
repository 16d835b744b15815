"""The records of runs: list, read, explain and delete them; and what of them waits for a decision.

Runs of sleeptime agents that a turn has made due are not accepted yet. An answer names them, so they are shown as they
will be when they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from holdfast.actions.queries import Page, RunFilter
from holdfast.actions.threads.find import require_thread
from holdfast.core.events import AnyEvent
from holdfast.core.hold import changed_secrets
from holdfast.core.records import ProviderTrace, Run, Step
from holdfast.core.run import Phase, RunState, replay
from holdfast.core.sleeptime import RUN_TYPE
from holdfast.engine.checkpoint import cancel_parked
from holdfast.engine.clock import Clock
from holdfast.engine.run_loading import load_state
from holdfast.errors import Conflict, IllegalEvent, Invalid, NotFound
from holdfast.store import agents, groups, holds, journal, rate_limits, runs, steps, tools, traces
from holdfast.store.groups import DueRun
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.run_explanation import RunDetails
from holdfast.wire.runs import (
    RunMetricsView,
    RunUsageView,
    WaitingApproval,
    approval_view,
    run_metrics_view,
    run_usage_view,
)

# A client may ask for the stream of a message whose request is still on its way here.
_OTID_WAITS_S: Final = (0.25, 0.5, 1.0)
_NEWEST: Final = Page(limit=100)
_event = msgspec.json.Decoder(AnyEvent)
log = logging.getLogger(__name__)
_STATUS: Final = "created"


async def list_runs(
    database: Database,
    filters: RunFilter,
    tools_used: Sequence[str] | None,
    page: Page,
    order_by: Literal["created_at", "duration"],
) -> list[Run]:
    """`tools_used`: ids of tools; only runs that called any of them."""

    async def read(tx: Transaction) -> list[Run]:
        used = None if tools_used is None else await tools.find_many(tx, tools_used)
        names = None if used is None else tuple(tool.name for tool in used.values())
        chosen = msgspec.structs.replace(filters, tool_names=names)
        if order_by == "duration":
            return await runs.list_runs(tx, chosen, page, order_by)
        return await _begun_and_due(tx, chosen, page)

    # Long: counting steps, ranking and sorting by duration look at every run there is.
    return await database.read_long(read)


async def list_active_runs(database: Database, agent_id: str | None, background: bool | None) -> list[Run]:
    filters = RunFilter(agent_ids=(agent_id,) if agent_id else None, active=True, background=background)
    return await database.read(lambda tx: _begun_and_due(tx, filters, _NEWEST))


async def read_run(database: Database, run_id: str) -> Run:
    return await database.read(lambda tx: _begun_or_due(tx, run_id))


async def read_begun_run(database: Database, run_id: str) -> Run:
    return await database.read(lambda tx: runs.get(tx, run_id))


async def read_usage(database: Database, run_id: str) -> RunUsageView:
    async def read(tx: Transaction) -> RunUsageView:
        await runs.get(tx, run_id)
        spent = await runs.totals(tx, run_id)
        return run_usage_view(spent.usage, spent.cost_usd)

    return await database.read(read)


async def read_metrics(database: Database, run_id: str) -> RunMetricsView:
    """Tools by the ids they had when the run began: one that was deleted since was used all the same."""

    async def read(tx: Transaction) -> RunMetricsView:
        run = await runs.get(tx, run_id)
        num_steps, names = await runs.metrics(tx, run_id)
        state, _ = await load_state(tx, run_id)
        called = [state.spec.tool(name) for name in names] if state.spec else []
        used = [tool.tool_id for tool in called if tool is not None and tool.tool_id is not None]
        return run_metrics_view(run, num_steps=num_steps, tools_used=used)

    return await database.read(read)


async def list_steps_of_run(database: Database, run_id: str, page: Page) -> list[Step]:
    async def read(tx: Transaction) -> list[Step]:
        await runs.get(tx, run_id)
        return await steps.list_of_run(tx, run_id, page)

    return await database.read(read)


async def list_traces_of_run(database: Database, run_id: str, limit: int) -> list[ProviderTrace]:
    """What was kept of its model calls, in their order; nothing unless tracing is on."""

    async def read(tx: Transaction) -> list[ProviderTrace]:
        await runs.get(tx, run_id)
        return await traces.list_of_run(tx, run_id, limit)

    return await database.read(read)


async def list_approvals(database: Database, agent_id: str | None, page: Page) -> list[WaitingApproval]:
    """The calls that wait for a decision; cursors are run ids."""

    async def read(tx: Transaction) -> list[WaitingApproval]:
        found = await holds.list_open(tx, agent_id, page)
        secrets = await agents.secret_ids_of_many(tx, {row.agent_id for row in found})
        return [
            approval_view(
                row.run_id, row.agent_id, row.thread_id, row.hold, row.asked_us, secrets.get(row.agent_id, {})
            )
            for row in found
        ]

    return await database.read(read)


async def delete_run(database: Database, run_id: str, clock: Clock) -> Run:
    """As it was. Its journal, frames and steps go; its messages are history and stay.

    With a pending approval goes its question: the calls are denied first, or they would stay open for good.
    """

    async def write(tx: Transaction) -> Run:
        run = await runs.get(tx, run_id)
        if run.is_active:
            raise Conflict(f"CONFLICT: Run {run_id} is active and cannot be deleted. Wait for it to end, or cancel it.")
        hold = await holds.get(tx, run_id)
        if hold is not None and hold.decided_us is None:
            await cancel_parked(tx, clock, run_id)
        await runs.delete(tx, run_id)
        return run

    return await database.write(write)


async def find_streamed_run(database: Database, thread_id: str, run_id: str | None, otid: str | None) -> Run:
    """The run whose stream a client means: by the run's id, else by the client's own key of one of its messages, else
    the thread's active run."""

    async def named(tx: Transaction) -> Run | None:
        await require_thread(tx, thread_id)
        return await runs.get(tx, run_id) if run_id else None

    found = await database.read(named)
    if found is not None:
        return found
    if otid:
        return await _of_otid(database, thread_id, otid)
    active = await database.read(lambda tx: runs.active_of_thread(tx, thread_id))
    if active is None:
        raise Invalid("No active runs found for this conversation.")
    return active


async def _of_otid(database: Database, thread_id: str, otid: str) -> Run:
    for wait_s in (*_OTID_WAITS_S, None):
        found = await database.read(lambda tx: runs.by_otid(tx, thread_id, otid))
        if found is not None:
            return found
        if wait_s is not None:
            await asyncio.sleep(wait_s)
    raise NotFound(f"No run found for otid={otid}")


async def explain_run(database: Database, run_id: str, now_us: int) -> RunDetails:
    """What is known of a run, so that what it does or waits for can be put into words."""
    return await database.read(lambda tx: _run_details(tx, run_id, now_us))


async def _run_details(tx: Transaction, run_id: str, now_us: int) -> RunDetails:
    run = await runs.get(tx, run_id)
    texts = await journal.load_timed(tx, run_id)
    state: RunState | None = None
    try:
        events = [(at_us, _event.decode(text)) for at_us, text in texts]
        state = replay(event for _, event in events) if events else None
    except (msgspec.MsgspecError, IllegalEvent) as error:
        # The one run most in need of an explanation must not be the one that cannot be asked about.
        log.warning("the journal of run %s cannot be replayed: %s", run_id, error)
        events = []
    return RunDetails(
        run=run,
        state=state,
        events=events,
        now_us=now_us,
        changed_secrets=await _changed(tx, run, state),
        journal_removed=not texts,
        rate_wait=await rate_limits.wait_of(tx, run_id) if run.is_active else None,
    )


async def _changed(tx: Transaction, run: Run, state: RunState | None) -> list[str]:
    """Only while the run waits for a decision, because only then does anybody need to know."""
    if state is None or state.phase is not Phase.PARKED or state.hold is None:
        return []
    return changed_secrets(state.hold, await agents.secret_ids_of(tx, run.agent_id))


async def _begun_or_due(tx: Transaction, run_id: str) -> Run:
    try:
        return await runs.get(tx, run_id)
    except NotFound:
        due = await groups.find_due_run(tx, run_id)
        if due is None:
            raise
        return _as_run(due)


async def _begun_and_due(tx: Transaction, filters: RunFilter, page: Page) -> list[Run]:
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
