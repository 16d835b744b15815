"""Whatever dies in the middle of a discussion: every member speaks once, and hears those before it once."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import ids
from holdfast.core.records import Group
from holdfast.store import agents, discussions, groups, journal
from holdfast.store.transaction import Transaction
from holdfast.wire.requests import LettaRequest
from tests.invariants import assert_invariants
from tests.scenario import Moment, World

from .performing import discuss_of, perform, perform_and_die, runs_of, tasks_of, told
from .scenes import on_both_databases
from .templates import Template, world_from


async def begun(world: World, text: str = "Go. [[say:Yes.]] [[no_reasoning]]") -> tuple[str, str]:
    """The second member, and a discussion that nobody has taken up."""
    second = await world.be_looked_after()
    group = Group(id=ids.new("group"), manager_type="round_robin", agent_ids=(world.agent_id, second))

    async def change(tx: Transaction) -> None:
        await agents.set_sleeptime(tx, world.agent_id, None)
        await groups.insert(tx, group)

    await world.database.write(change)
    node = world.node()
    return second, (await discuss_of(node, tasks_of(node)).begin(group.id, LettaRequest(input=text))).id


@on_both_databases
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_server_that_dies_at_any_write_of_a_discussion_changes_nothing(
    template: Template, tmp_path: Path, moment: Moment
) -> None:
    write, died = 1, True
    while died:
        async with world_from(template, tmp_path) as world:
            second, discussion_id = await begun(world)
            died = await perform_and_die(world, write, moment)
            for agent_id, heard in ((world.agent_id, 1), (second, 2)):
                [run] = await runs_of(world, agent_id)
                assert run.status == "completed", f"crashed {moment} write {write}"
                assert await told(world, run) == heard
            ended = await world.database.read(lambda tx: discussions.find(tx, discussion_id))  # noqa: B023
            assert ended is not None and (ended.stop_reason, ended.error) == ("end_turn", None)
            await assert_invariants(world.database, idle=True)
            assert await perform(world.node())
            assert len(await runs_of(world, second)) == 1
        write += 1
    assert write > 8


async def test_a_speech_whose_journal_cannot_be_read_ends_the_discussion(template: Template, tmp_path: Path) -> None:
    async with world_from(template, tmp_path) as world:
        second, discussion_id = await begun(world, "Go. [[stall]]")
        dead, alive = world.node(), world.node()
        tasks = tasks_of(dead)
        await tasks.sweep()
        await tasks.settled()
        [run] = await runs_of(world, world.agent_id)
        await dead.die()
        await world.database.write(lambda tx: journal.append_next(tx, run.id, ['{"event": "from the future"}'], 0))
        await alive.take_over_all()
        assert await perform(alive)
        ended = await world.database.read(lambda tx: discussions.find(tx, discussion_id))
        assert ended is not None and ended.ended_us is not None and ended.error is not None
        assert await runs_of(world, second) == []
