"""Before an agent is deleted, every run of it stops: in whichever thread, however many there are."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.store import holds
from holdfast.store.paging import Page

from ..scenario import Node, World

MANY = 110  # more than the runs of one page


@pytest.mark.slow
async def test_deleting_an_agent_stops_all_its_runs_when_there_are_more_than_a_page_of_them(
    world: World, node: Node
) -> None:
    threads = [await world.add_thread() for _ in range(MANY)]
    begun = [(await node.send("[[stall]] hello", thread=thread)).run.id for thread in threads]

    await asyncio.wait_for(node.cancel.before_deleting_agent(world.agent_id), 60)

    assert [(await world.run(run_id)).status for run_id in begun] == ["cancelled"] * MANY
    assert not any(node.worker.owns(run_id) for run_id in begun)


@pytest.mark.slow
async def test_deleting_an_agent_withdraws_the_holds_of_its_conversations(world: World, node: Node) -> None:
    threads = [world.agent_id, *[await world.add_thread() for _ in range(MANY)]]
    parked = [(await node.ask("call the guarded tool", thread=thread)).id for thread in threads]
    assert len(await open_holds(world)) == len(parked)

    await asyncio.wait_for(node.cancel.before_deleting_agent(world.agent_id), 60)

    assert await open_holds(world) == []
    assert {(await world.run(run_id)).status for run_id in parked} == {"cancelled"}


@pytest.mark.slow
async def test_cancelling_the_runs_of_an_agent_stops_those_beyond_a_page_too(world: World, node: Node) -> None:
    threads = [await world.add_thread() for _ in range(MANY)]
    begun = [(await node.send("[[stall]] hello", thread=thread)).run.id for thread in threads]

    results = await asyncio.wait_for(node.cancel.of_agent(world.agent_id, None), 60)

    assert results == dict.fromkeys(begun, "cancelled")


async def open_holds(world: World) -> list[str]:
    found = await world.database.read(lambda tx: holds.list_open(tx, world.agent_id, Page(limit=None)))
    return [hold.run_id for hold in found]
