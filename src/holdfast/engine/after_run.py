"""What the end of a run makes due: the work of sleeptime agents that look after its agent, the next speech of a
discussion that it was part of.

In the transaction that ends the run, and there only: a turn is counted once, and what it makes due is not lost. Other
runs do not come here: what is looked at is part of the run, and of the agent that it was accepted with. A turn that was
captured is counted in the transaction that stores it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import ids
from holdfast.core import discussions, sleeptime
from holdfast.core.records import STATUS_OF_STOP, Agent, Run, StopReason
from holdfast.store import groups, tasks
from holdfast.store.transaction import Transaction


class Due(msgspec.Struct, frozen=True):
    has_tasks: bool = False
    run_ids: tuple[str, ...] = ()  # of sleeptime agents; these runs do not exist yet


NOTHING = Due()


def leads_on(agent: Agent, run: Run) -> bool:
    """Whether its end may make something due. One that waited for a decision was looked at when it was parked."""
    return run.stop_reason is None and (_is_counted(agent, run) or discussions.ID in run.metadata)


async def run_ended(tx: Transaction, agent: Agent, run: Run, stop_reason: StopReason) -> Due:
    in_discussion = await continue_discussion(tx, run)
    run_ids: tuple[str, ...] = ()
    if _is_counted(agent, run):
        # A turn that failed, was cancelled or waits for a decision is not counted, but is shown with the next one.
        finished = STATUS_OF_STOP.get(stop_reason) == "completed" and stop_reason != "requires_approval"
        run_ids = await _count_turn(tx, run.agent_id, (run.id,), finished=finished)
    return Due(in_discussion or bool(run_ids), run_ids)


async def turn_captured(tx: Transaction, agent_id: str, message_ids: Sequence[str]) -> tuple[str, ...]:
    """A turn that no run of ours has made, in the transaction that stores it. The ids of the runs that will be shown
    it, if it makes any due."""
    return await _count_turn(tx, agent_id, message_ids, finished=True)


async def continue_discussion(tx: Transaction, run: Run) -> bool:
    """Whether the run was part of one."""
    discussion = run.metadata.get(discussions.ID)
    if discussion is not None:
        await tasks.add(tx, discussions.TASK, discussion)
    return discussion is not None


def _is_counted(agent: Agent, run: Run) -> bool:
    """What a sleeptime agent is set to do sets nobody to work, whoever looks after it."""
    return bool(agent.enable_sleeptime) and run.metadata.get("run_type") != sleeptime.RUN_TYPE


async def _count_turn(tx: Transaction, agent_id: str, said_ids: Sequence[str], *, finished: bool) -> tuple[str, ...]:
    """The ids of the runs that will be shown this turn, if it makes any due. `said_ids`: of its run, or of the messages
    that belong to none."""
    counted = await groups.count_turn(tx, agent_id, finished=finished)
    if counted is None:
        return ()
    due: list[str] = []
    for helper_id in counted.agent_ids:
        shown_by = ids.derive("run", sleeptime.TASK, helper_id, said_ids[-1]) if counted.is_due else None
        await groups.keep_turn(tx, counted.group_id, helper_id, said_ids, shown_by)
        if shown_by is not None:
            await tasks.add(tx, sleeptime.TASK, helper_id)
            due.append(shown_by)
    return tuple(due)
