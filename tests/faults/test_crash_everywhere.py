"""Kill the server around every commit: another carries on, and the story is as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import update

from holdfast.core.frames import ErrorFrame, StopFrame
from holdfast.core.records import Run, Tool
from holdfast.store import blocks, journal, runs, tools
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.tables import runs as run_rows
from holdfast.store.transaction import Transaction
from tests.invariants import assert_invariants
from tests.scenario import World, eventually

from .crashing import CrashPoint, Story, outlive, tell
from .scenes import BY_NAME, MODES, Mode, Scene, check_counted, on_both_databases, played
from .templates import Template, world_from

CRASH_MODES = (MODES[0], MODES[2], MODES[3])
LEFT_S = 0.3
# Those that between them write to every table: returns one after another, a hold and its end, a place kept free, an
# edited block, a window that is cut. The order of commits is the driver's own, on both databases the same; with every
# scene in every mode the suite would take a minute longer.
ON_POSTGRES = [
    (name, MODES[2])
    for name in (
        "three parallel tools",
        "resume with an approval",
        "resume with a message",
        "memory tool",
        "compaction",
        "a turn that sets a sleeptime agent to work",
    )
]


async def story_of(world: World) -> Story:
    return tell(await assert_invariants(world.database, idle=True), world.agent_id)


async def check_tools(world: World, story: Story) -> None:
    """Never twice, unless the tool says that it may be repeated. Never claimed to have run when it has not."""
    attached = await world.database.read(lambda tx: tools.of_agent(tx, world.agent_id))
    by_name: dict[str, Tool] = {tool.name: tool for tool in attached}
    counts = world.tools
    by_tool = Counter(counts.names[call_id] for call_id in counts.begun.elements())
    for name, begun in by_tool.items():  # every scene calls a tool once; another call id makes it no other call
        assert begun <= (2 if by_name[name].retry_safe else 1), f"{name} was run {begun} times"
    for call_id in counts.begun:
        safe = by_name[counts.names[call_id]].retry_safe
        assert not (safe and call_id in story.unknown), "what may be repeated must not be left unknown"
        assert counts.finished[call_id] or call_id in story.unknown, "a call that never finished was said to have"


async def runs_of(world: World) -> list[Run]:
    every = Page(limit=None, order="asc")
    return await world.database.read(lambda tx: runs.list_runs(tx, RunFilter(agent_ids=(world.agent_id,)), every))


async def check_memory(world: World, scene: Scene) -> None:
    (notes,) = await world.database.read(lambda tx: blocks.of_agent(tx, world.agent_id))
    assert notes.value.count("tea") == (scene.name == "memory tool")


async def same_story_after(
    template: Template, directory: Path, scene: Scene, mode: Mode, crashes: Sequence[CrashPoint], expected: Story
) -> bool:
    """False when the scene ended before the first of the crashes."""
    async with world_from(template, directory) as world:
        died = await outlive(world, scene, mode, crashes)
        try:
            story = await story_of(world)
            assert story.messages == expected.messages
            assert story.runs == expected.runs
            assert story.steps == expected.steps
            await check_tools(world, story)
            await check_memory(world, scene)
            [*_, last] = await runs_of(world)
            await check_counted(world, scene, last)
        except AssertionError as error:
            error.add_note(f"crashed at {crashes} of {scene.name!r}, {mode}")
            raise
        return died > 0


async def undisturbed(template: Template, directory: Path, scene: Scene, mode: Mode) -> Story:
    async with world_from(template, directory) as world:
        assert await outlive(world, scene, mode, ()) == 0
        await check_memory(world, scene)
        story = await story_of(world)
        assert not story.unknown
        return story


@played(CRASH_MODES, ON_POSTGRES)
async def test_a_crash_around_any_commit_changes_nothing_but_what_nobody_can_know(
    template: Template, tmp_path: Path, scene: Scene, mode: Mode
) -> None:
    expected = await undisturbed(template, tmp_path, scene, mode)
    write = 1
    while await same_story_after(template, tmp_path, scene, mode, [(write, "before")], expected):
        assert await same_story_after(template, tmp_path, scene, mode, [(write, "after")], expected)
        if write == 1:  # the acceptance, which alone is acted upon before it is on the disk
            assert await same_story_after(template, tmp_path, scene, mode, [(write, "during")], expected)
        write += 1
    assert write > 2


@pytest.mark.parametrize("name", ["one tool", "resume with an approval"])
async def test_a_crash_during_recovery_is_recovered_from_as_well(template: Template, tmp_path: Path, name: str) -> None:
    scene, mode = BY_NAME[name], MODES[2]
    expected = await undisturbed(template, tmp_path, scene, mode)
    tried = 0
    for first, second in product(range(2, 5), range(1, 5)):
        crashes: list[CrashPoint] = [(first, "after"), (second, "after")]
        tried += await same_story_after(template, tmp_path, scene, mode, crashes, expected)
    assert tried


async def shorten_lease(world: World, run_id: str) -> None:
    """From now on it has only moments left to run."""
    expires_us = await world.database.now_us() + int(LEFT_S * 1_000_000)

    async def job(tx: Transaction) -> None:
        await tx.execute(update(run_rows).where(run_rows.c.id == run_id).values(lease_expires_us=expires_us))

    await world.database.write(job)


@on_both_databases
async def test_a_run_is_carried_on_by_another_server_once_its_lease_has_run_out_and_not_before(
    template: Template, tmp_path: Path
) -> None:
    async with world_from(template, tmp_path) as world:
        dead, alive = world.node(), world.node()
        run_id = (await dead.send("[[call:note {}]] [[stall@2]]", background=True)).run.id
        await eventually(lambda: dead.catalog.offline.model.open_streams == 1 and bool(world.tools.finished))
        await dead.die()
        assert await alive.worker.recover() == 0
        await shorten_lease(world, run_id)
        await asyncio.sleep(LEFT_S)  # only time lets a lease run out
        assert await alive.worker.recover() == 1
        await alive.cancel.one(run_id)
        assert (await world.run(run_id)).lease == 2
        assert max(world.tools.begun.values()) == 1
        await assert_invariants(world.database, idle=True)


@on_both_databases
async def test_a_run_that_cannot_be_carried_on_fails_with_its_reason_and_frees_its_thread(
    template: Template, tmp_path: Path
) -> None:
    async with world_from(template, tmp_path) as world:
        dead, alive = world.node(), world.node()
        run_id = (await dead.send("Hi [[stall]]", background=True)).run.id
        await eventually(lambda: dead.catalog.offline.model.open_streams == 1)
        await dead.die()
        await world.database.write(lambda tx: journal.append_next(tx, run_id, ['{"event": "from the future"}'], 0))
        await alive.take_over_all()
        run = await world.run(run_id)
        assert (run.status, run.stop_reason) == ("failed", "error")
        assert run.metadata["error"]["run_id"] == run_id
        frames = [frame for _, frame in await alive.replay(run_id)]
        assert [type(frame) for frame in frames[-2:]] == [StopFrame, ErrorFrame]
        assert (await alive.ask("Hello again")).status == "completed"
        await assert_invariants(world.database, idle=True, unreadable=[run_id])
