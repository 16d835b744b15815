"""A server that performs tasks, and may die over them."""

from __future__ import annotations

import asyncio

from holdfast.actions.groups.discuss import Discuss
from holdfast.actions.messages.sleeptime import ShowTurns
from holdfast.core import discussions, sleeptime
from holdfast.core.records import Run
from holdfast.engine.bus import Bus
from holdfast.engine.tasks import TaskSettings, TaskWorker
from holdfast.store import messages, runs
from holdfast.store.paging import Page
from holdfast.store.postgres import PostgresDatabase
from holdfast.store.runs import RunFilter
from tests.scenario import Crash, Moment, Node, World

_EVERY = Page(limit=None, order="asc")


def discuss_of(node: Node, tasks: TaskWorker) -> Discuss:
    return Discuss(node.database, node._send, node.worker, tasks, node.reader, node.world.clock)


def tasks_of(node: Node) -> TaskWorker:
    tasks = TaskWorker(node.database, Bus(), TaskSettings(lease_ttl_s=600))
    tasks.kinds[sleeptime.TASK] = ShowTurns(node.database, node._send)
    tasks.kinds[discussions.TASK] = discuss_of(node, tasks)
    return tasks


async def perform(node: Node) -> bool:
    """All tasks, and those that their runs make due. False when the server died over it."""
    tasks = tasks_of(node)
    try:
        await tasks.expire_other_leases()
        while await tasks.sweep():
            for _, running in list(tasks._held.values()):
                await running
            await node.settled()
    except Crash:
        pass
    if node.database.dead:
        await node.die()
        return False
    return True


async def perform_and_die(world: World, write: int, moment: Moment) -> bool:
    """A server dies at one of its writes, and another goes on. False when there was no such write."""
    dying = world.node()
    dying.database.crash_at(write, moment)
    if await perform(dying):
        return False
    alive = world.node()
    await _carry_on(alive)
    await _until_stored(world)
    await _carry_on(alive)
    return True


async def _carry_on(node: Node) -> None:
    """As a server does that looks once: at runs, then at tasks that are due."""
    await node.take_over_all()
    await node.settled()
    assert await perform(node)


async def _until_stored(world: World) -> None:
    """What the dead one had sent to PostgreSQL may be stored after the other has looked; a real one looks again."""
    if isinstance(world.database, PostgresDatabase) and world.database._unfinished:
        await asyncio.wait(set(world.database._unfinished))


async def runs_of(world: World, agent_id: str) -> list[Run]:
    return await world.database.read(lambda tx: runs.list_runs(tx, RunFilter(agent_ids=(agent_id,)), _EVERY))


async def told(world: World, run: Run) -> int:
    """How many messages the run was sent."""
    rows = await world.database.read(lambda tx: messages.list_of_run(tx, run.id, _EVERY))
    return sum(row.role == "user" for row in rows)
