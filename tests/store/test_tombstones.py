"""A list can be walked while its items are deleted, on both databases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec
import pytest
from sqlalchemy import select, update

from holdfast import ids
from holdfast.core.records import Archive, Block, Passage, Provider, Tool
from holdfast.errors import NotFound
from holdfast.store import agents, archives, blocks, holds, passages, providers, runs, threads, tombstones, tools
from holdfast.store.agents import AgentFilter
from holdfast.store.blocks import BlockFilter
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.tables import tombstones as table
from holdfast.store.threads import ThreadFilter
from holdfast.store.tools import ToolFilter
from holdfast.store.transaction import Database, Transaction

from .test_agents import an_agent
from .world import NOW, a_run, add_agent, add_conversation, call, look

Order = Literal["asc", "desc"]
AGES = (1, 2, 2, 2, 3, 4, 4)  # seven items, some of the same age


class Listed(msgspec.Struct, frozen=True):
    """A list with seven items, and how one of them is deleted."""

    made: Sequence[str]
    show: Callable[[Page], Awaitable[list[Any]]]
    delete: Callable[[str], Awaitable[Any]]


def _times(age: int) -> dict[str, Any]:
    return {"created_us": NOW + age, "updated_us": NOW + age}


async def agents_by(database: Database, order_by: agents.OrderBy) -> Listed:
    made = [
        an_agent(created_us=NOW + age, updated_us=NOW - age, last_run_completion_us=NOW + age if age % 2 else None)
        for age in AGES
    ]
    for agent in made:
        await call(database, agents.insert, agent)
    return Listed(
        [agent.id for agent in made],
        lambda page: look(database, agents.list_agents, AgentFilter(), page, order_by),
        lambda agent_id: call(database, agents.delete_agent, agent_id, NOW),
    )


async def some_agents(database: Database) -> Listed:
    return await agents_by(database, "created_at")


async def agents_by_change(database: Database) -> Listed:
    return await agents_by(database, "updated_at")


async def agents_by_last_run(database: Database) -> Listed:
    return await agents_by(database, "last_run_completion")


async def some_tools(database: Database) -> Listed:
    made = [
        Tool(id=ids.new("tool"), name=f"t{n}", tool_type="custom", description="", json_schema={}, **_times(age))
        for n, age in enumerate(AGES)
    ]
    for tool in made:
        await call(database, tools.insert, tool)
    return Listed(
        [tool.id for tool in made],
        lambda page: look(database, tools.list_tools, ToolFilter(), page),
        lambda tool_id: call(database, tools.delete_tool, tool_id),
    )


async def blocks_of(database: Database, agent_id: str | None) -> Listed:
    made = [Block(id=ids.new("block"), label=f"b{n}", **_times(age)) for n, age in enumerate(AGES)]
    await call(database, blocks.insert_many, made)
    if agent_id is not None:
        await call(database, blocks.attach_many, agent_id, made)
    return Listed(
        [block.id for block in made],
        lambda page: look(database, blocks.list_blocks, BlockFilter(agent_id=agent_id), page),
        lambda block_id: call(database, blocks.delete_block, block_id),
    )


async def some_blocks(database: Database) -> Listed:
    return await blocks_of(database, None)


async def blocks_of_an_agent(database: Database) -> Listed:
    return await blocks_of(database, await add_agent(database))


async def conversations_by(database: Database, order_by: threads.OrderBy) -> Listed:
    agent_id = await add_agent(database)
    made = [
        await add_conversation(database, agent_id, created_us=NOW + age, last_message_us=NOW + age if age % 2 else None)
        for age in AGES
    ]
    return Listed(
        made,
        lambda page: look(database, threads.list_threads, ThreadFilter(), page, order_by),
        lambda thread_id: call(database, threads.soft_delete, thread_id, NOW),
    )


async def some_conversations(database: Database) -> Listed:
    return await conversations_by(database, "created_at")


async def conversations_by_last_message(database: Database) -> Listed:
    return await conversations_by(database, "last_message_at")


async def some_archives(database: Database) -> Listed:
    made = [Archive(id=ids.new("archive"), name="notes", **_times(age)) for age in AGES]
    for archive in made:
        await call(database, archives.insert, archive)

    async def delete(archive_id: str) -> None:
        await call(database, archives.mark_deleted, archive_id, NOW)
        assert await call(database, archives.clear, archive_id)

    return Listed(
        [archive.id for archive in made],
        lambda page: look(database, archives.list_archives, page, None, None),
        delete,
    )


async def some_passages(database: Database) -> Listed:
    archive = Archive(id=ids.new("archive"), name="notes", **_times(0))
    await call(database, archives.insert, archive)
    made = [Passage(id=ids.new("passage"), archive_id=archive.id, text="tea", **_times(age)) for age in AGES]
    await call(database, passages.insert_many, passages.rows_of(made, {}))
    return Listed(
        [passage.id for passage in made],
        lambda page: look(database, passages.list_of_archive, archive.id, page, None),
        lambda passage_id: call(database, passages.delete_passage, passage_id),
    )


async def runs_by(database: Database, order_by: Literal["created_at", "duration"]) -> Listed:
    agent_id = await add_agent(database)
    made = [a_run(agent_id, status="completed", created_us=NOW + age, total_duration_ns=9 - age) for age in AGES]
    for run in made:
        await call(database, runs.insert, run)
    return Listed(
        [run.id for run in made],
        lambda page: look(database, runs.list_runs, RunFilter(), page, order_by),
        lambda run_id: call(database, runs.delete, run_id),
    )


async def some_runs(database: Database) -> Listed:
    return await runs_by(database, "created_at")


async def runs_by_duration(database: Database) -> Listed:
    return await runs_by(database, "duration")


async def some_providers(database: Database) -> Listed:
    made = {
        provider.id: provider
        for provider in (
            Provider(id=ids.new("provider"), name=ids.new("provider"), provider_type="openai", **_times(age))
            for age in AGES
        )
    }
    for provider in made.values():
        assert await call(database, providers.insert, provider)

    async def delete(provider_id: str) -> None:
        gone = msgspec.structs.replace(made[provider_id], deleted_us=NOW)
        await call(database, providers.update_provider, gone)

    return Listed(list(made), lambda page: look(database, providers.list_providers, page), delete)


every_list = pytest.mark.parametrize(
    "fill",
    [
        some_agents,
        agents_by_change,
        agents_by_last_run,
        some_tools,
        some_blocks,
        blocks_of_an_agent,
        some_conversations,
        conversations_by_last_message,
        some_archives,
        some_passages,
        some_runs,
        runs_by_duration,
        some_providers,
    ],
)


@every_list
async def test_deleting_on_the_way_meets_every_item_once_in_order(
    database: Database, fill: Callable[[Database], Awaitable[Listed]]
) -> None:
    orders: tuple[Order, ...] = ("asc", "desc")
    for order in orders:
        listed = await fill(database)
        shown = [item.id for item in await listed.show(Page(order=order))]
        assert sorted(shown) == sorted(listed.made)
        met = list[str]()
        while page := await listed.show(Page(limit=2, order=order, after=met[-1] if met else None)):
            met += [item.id for item in page]
            for item in page:
                await listed.delete(item.id)
        assert met == shown


@every_list
async def test_what_stays_is_met_from_a_deleted_item_in_both_directions(
    database: Database, fill: Callable[[Database], Awaitable[Listed]]
) -> None:
    listed = await fill(database)
    shown = [item.id for item in await listed.show(Page())]
    await listed.delete(shown[3])
    assert [item.id for item in await listed.show(Page(after=shown[3]))] == shown[4:]
    assert [item.id for item in await listed.show(Page(before=shown[3]))] == shown[:3]


@every_list
async def test_an_id_that_never_was_in_the_list_is_not_found(
    database: Database, fill: Callable[[Database], Awaitable[Listed]]
) -> None:
    listed = await fill(database)
    kind = listed.made[0].partition("-")[0]
    deleted = await (some_tools if fill is not some_tools else some_blocks)(database)
    await deleted.delete(deleted.made[0])
    for stranger in (f"{kind}-00000000-0000-4000-8000-000000000000", deleted.made[0]):
        with pytest.raises(NotFound, match=stranger):
            await listed.show(Page(after=stranger))
        with pytest.raises(NotFound, match=stranger):
            await listed.show(Page(before=stranger))


async def test_a_passage_deleted_in_one_archive_is_no_cursor_of_another(database: Database) -> None:
    one, other = await some_passages(database), await some_passages(database)
    await one.delete(one.made[0])
    with pytest.raises(NotFound, match=one.made[0]):
        await other.show(Page(after=one.made[0]))


async def test_an_agents_own_history_is_no_cursor_of_conversations(database: Database) -> None:
    agent_id = await add_agent(database)
    with pytest.raises(NotFound, match=agent_id):
        await look(database, threads.list_threads, ThreadFilter(), Page(after=agent_id))


async def test_a_deleted_run_is_no_cursor_of_approvals(database: Database) -> None:
    listed = await some_runs(database)
    await listed.delete(listed.made[0])
    with pytest.raises(NotFound, match=listed.made[0]):
        await look(database, holds.list_open, page=Page(after=listed.made[0]))


async def test_an_id_that_was_taken_again_has_its_last_place(database: Database) -> None:
    listed = await some_blocks(database)
    first = [block.id for block in await listed.show(Page(order="asc"))]
    again = Block(id=first[0], label="again", **_times(9))
    await listed.delete(again.id)
    await call(database, blocks.insert, again)
    assert await listed.show(Page(order="asc", after=again.id)) == []
    await listed.delete(again.id)
    assert await listed.show(Page(order="asc", after=again.id)) == []


async def test_places_are_forgotten_after_a_day_in_steps_of_bounded_size(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "ROWS_AT_ONCE", 3)
    listed = await some_tools(database)
    for tool_id in listed.made[:5]:
        await listed.delete(tool_id)
    assert await call(database, tombstones.delete_old) == 0

    await database.write(_a_day_passes(listed.made[:4]))
    assert await call(database, tombstones.delete_old) == 3
    assert await call(database, tombstones.delete_old) == 1

    assert await look(database, _remembered) == [listed.made[4]]
    with pytest.raises(NotFound):
        await listed.show(Page(after=listed.made[0]))
    assert len(await listed.show(Page(order="asc", after=listed.made[4]))) == 2


async def _remembered(tx: Transaction) -> list[str]:
    return [row["id"] for row in await tx.fetch_all(select(table.c.id))]


def _a_day_passes(item_ids: Sequence[str]) -> Callable[[Transaction], Any]:
    earlier = (
        update(table).where(table.c.id.in_(item_ids)).values(deleted_us=table.c.deleted_us - tombstones.KEPT_US - 1)
    )
    return lambda tx: tx.execute(earlier)
