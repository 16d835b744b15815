"""Memory blocks and their attachments, on both databases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import ids
from holdfast.core.records import Block, Tool
from holdfast.errors import Conflict, NotFound
from holdfast.store import blocks, threads
from holdfast.store.blocks import BlockFilter
from holdfast.store.paging import Page
from holdfast.store.threads import ThreadHead
from holdfast.store.transaction import Database, IntegrityError

from .world import NOW, add_agent, call, look, walk


def a_block(**fields: Any) -> Block:
    known: dict[str, Any] = {"id": ids.new("block"), "label": "human", "created_us": NOW, "updated_us": NOW}
    return Block(**known | fields)


async def add(database: Database, **fields: Any) -> Block:
    block = a_block(**fields)
    await call(database, blocks.insert, block)
    return block


async def listed(database: Database, **filters: Any) -> set[str]:
    found = await look(database, blocks.list_blocks, BlockFilter(**filters), Page())
    assert await look(database, blocks.count_blocks, BlockFilter(**filters)) == len(found)
    return {block.id for block in found}


async def test_a_block_comes_back_as_it_went_in(database: Database) -> None:
    block = await add(
        database,
        value="é\n</value>",
        limit=2**31 - 1,
        description="d",
        read_only=True,
        metadata={"k": {"n": None}},
        tags=("a", "b"),
        hidden=False,
        is_template=True,
        template_name="t",
        project_id="p",
        version=4,
    )
    assert await look(database, blocks.get, block.id) == block


async def test_an_unknown_block_is_not_found(database: Database) -> None:
    agent_id, stranger = await add_agent(database), ids.new("block")
    for function, given in (
        (blocks.get, (stranger,)),
        (blocks.delete_block, (stranger,)),
        (blocks.of_label, (agent_id, "human")),
        (blocks.detach, (agent_id, stranger)),
    ):
        with pytest.raises(NotFound):
            await call(database, function, *given)
    assert await look(database, blocks.find_many, [stranger]) == {}


async def test_attaching_twice_is_attaching_once_and_a_label_is_taken_once(database: Database) -> None:
    agent_id = await add_agent(database)
    first, second = await add(database), await add(database)
    await call(database, blocks.attach, agent_id, first)
    await call(database, blocks.attach, agent_id, first)
    with pytest.raises(Conflict, match="'human'"):
        await call(database, blocks.attach, agent_id, second)
    assert await look(database, blocks.of_agent, agent_id) == [first]
    assert await look(database, blocks.of_label, agent_id, "human") == first


async def test_the_blocks_of_an_agent_come_oldest_first_each_with_all_its_tags(database: Database) -> None:
    agent_id = await add_agent(database)
    attached = [
        await add(database, label="plain", created_us=NOW + 1),
        await add(database, label="tagged", created_us=NOW + 2, tags=("a", "b", "c")),
        await add(database, label="newest", created_us=NOW + 3, tags=("b",)),
    ]
    await add(database, label="of nobody", tags=("a",))
    for block in reversed(attached):
        await call(database, blocks.attach, agent_id, block)
    assert await look(database, blocks.of_agent, agent_id) == attached


async def test_the_blocks_of_an_agent_are_read_with_the_head_of_its_thread(database: Database) -> None:
    agent_id = await add_agent(database)

    async def read() -> tuple[ThreadHead, list[Tool], list[Block]]:
        return await database.read_one(lambda tx: threads.head_with_tools_and_blocks(tx, agent_id))

    assert await read() == (await look(database, threads.head, agent_id), [], [])
    odd = '\t\'\\ " \u2028 é 😀 {"a": null}'
    attached = [
        await add(database, label="tagged", tags=("a", "B", "ä", odd), value=odd, description=odd, limit=2**40),
        await add(database, label="plain", created_us=NOW + 1, metadata={"k": [odd, 1.5]}, hidden=True, read_only=True),
        await add(database, label="newest", created_us=NOW + 2, is_template=True, template_name="sam", project_id="p"),
    ]
    await add(database, label="of nobody", tags=("a",))
    for block in reversed(attached):
        await call(database, blocks.attach, agent_id, block)
    assert (await read())[2] == await look(database, blocks.of_agent, agent_id)
    assert [(block.label, set(block.tags)) for block in (await read())[2]] == [
        (block.label, set(block.tags)) for block in attached
    ]


async def test_blocks_of_many_agents_come_oldest_first(database: Database) -> None:
    one, two = await add_agent(database), await add_agent(database)
    late = await add(database, label="late", created_us=NOW + 2, tags=("x",))
    early = await add(database, label="early", created_us=NOW + 1)
    for agent_id, block in ((one, late), (one, early), (two, late)):
        await call(database, blocks.attach, agent_id, block)
    assert await look(database, blocks.of_agents, [one, two]) == {one: [early, late], two: [late]}
    await call(database, blocks.detach_all, one)
    assert await look(database, blocks.of_agents, [one, two]) == {two: [late]}


async def test_a_new_label_reaches_the_attachments_unless_it_is_taken(database: Database) -> None:
    agent_id = await add_agent(database)
    block, other = await add(database), await add(database, label="persona")
    for each in (block, other):
        await call(database, blocks.attach, agent_id, each)
    renamed = msgspec.structs.replace(block, label="user", value="v", tags=("t",), version=2, updated_us=NOW + 1)
    await call(database, blocks.update_block, renamed, label_before="human")
    assert await look(database, blocks.of_label, agent_id, "user") == renamed
    clash = msgspec.structs.replace(renamed, label="persona", value="lost")
    with pytest.raises(IntegrityError):
        await call(database, blocks.update_block, clash, label_before="user")
    assert await look(database, blocks.get, block.id) == renamed


async def test_a_deleted_block_is_gone_from_its_agents(database: Database) -> None:
    agent_id = await add_agent(database)
    block = await add(database, tags=("x",))
    await call(database, blocks.attach, agent_id, block)
    await call(database, blocks.delete_block, block.id)
    assert await look(database, blocks.of_agent, agent_id) == []


async def test_every_filter_narrows_the_list(database: Database) -> None:
    agent_id, other_id = await add_agent(database), await add_agent(database)
    plain = await add(database, label="human", value="Likes tea_100%", description="About")
    shared = await add(
        database, label="persona", is_template=True, template_name="sam", project_id="p", tags=("x", "y")
    )
    hidden = await add(database, label="secret", hidden=True, tags=("x",))
    await call(database, blocks.attach, agent_id, plain)
    for each in (agent_id, other_id):
        await call(database, blocks.attach, each, shared)
    assert await listed(database) == {plain.id, shared.id}
    assert await listed(database, show_hidden=True) == {plain.id, shared.id, hidden.id}
    assert await listed(database, label="human") == {plain.id}
    assert await listed(database, label_search="ERS") == {shared.id}
    assert await listed(database, description_search="abou") == {plain.id}
    assert await listed(database, value_search="_100%") == {plain.id}
    assert await listed(database, value_search="xx100") == set()
    assert await listed(database, template_name="sam", templates_only=True, project_id="p") == {shared.id}
    assert await listed(database, tags=("x",), show_hidden=True) == {shared.id, hidden.id}
    assert await listed(database, tags=("x", "y"), match_all_tags=True, show_hidden=True) == {shared.id}
    assert await listed(database, agents_more_than=1) == {shared.id}
    assert await listed(database, agents_less_than=2) == {plain.id}
    assert await listed(database, agents_exactly=(0, 2)) == {shared.id}
    assert await listed(database, agent_id=other_id) == {shared.id}


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_walking_the_list_meets_every_block_once(database: Database, order: Any) -> None:
    added = [await add(database, created_us=NOW + index // 3) for index in range(7)]

    async def page(**cursor: str) -> list[Block]:
        asked = Page(limit=3, order=order, **cursor)  # type: ignore[arg-type]
        return await look(database, blocks.list_blocks, BlockFilter(), asked)

    assert sorted(await walk(page)) == sorted(block.id for block in added)
