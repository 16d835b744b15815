"""Tools and their attachments, on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast import ids
from holdfast.core.records import Tool
from holdfast.errors import NotFound
from holdfast.store import agents, threads, tools
from holdfast.store.agents import SealedSecret
from holdfast.store.paging import Page
from holdfast.store.threads import ThreadHead
from holdfast.store.tools import ToolFilter
from holdfast.store.transaction import Database, IntegrityError

from .world import NOW, add_agent, call, look, walk


def a_tool(name: str = "roll", **fields: Any) -> Tool:
    known: dict[str, Any] = {
        "id": ids.new("tool"),
        "name": name,
        "tool_type": "custom",
        "description": "Roll dice.",
        "json_schema": {"name": name, "parameters": {"type": "object"}},
        "created_us": NOW,
        "updated_us": NOW,
    }
    return Tool(**known | fields)


async def add(database: Database, name: str = "roll", **fields: Any) -> Tool:
    tool = a_tool(name, **fields)
    assert await call(database, tools.insert, tool)
    return tool


async def listed(database: Database, **filters: Any) -> set[str]:
    found = await look(database, tools.list_tools, ToolFilter(**filters), Page())
    assert await look(database, tools.count_tools, ToolFilter(**filters)) == len(found)
    return {tool.name for tool in found}


async def test_a_tool_comes_back_as_it_went_in(database: Database) -> None:
    tool = await add(
        database,
        source_code="def roll(): ...",
        source_type="python",
        args_json_schema={"type": "object"},
        tags=("b", "a"),
        return_char_limit=7,
        pip_requirements=[{"name": "numpy", "version": None}],
        npm_requirements=[],
        default_requires_approval=False,
        enable_parallel_execution=True,
        metadata={"k": 1},
        project_id="p",
        version=3,
    )
    assert await look(database, tools.get, tool.id) == tool
    assert await call(database, tools.find_named, "roll") == tool
    assert await look(database, tools.find_many, [tool.id]) == {tool.id: tool}
    assert await call(database, tools.find_many_named, ["roll", "none"]) == {"roll": tool}


async def test_a_tool_is_read_with_the_secrets_of_the_agent_that_calls_it(database: Database) -> None:
    tool, agent_id, other_id = await add(database), await add_agent(database), await add_agent(database)
    secrets = [SealedSecret("agent-env-1", "A", b"\x00\xff"), SealedSecret("agent-env-2", "B", b"b", "why")]
    await call(database, agents.set_secrets, agent_id, secrets)

    async def read(tool_id: str, agent_id: str) -> tuple[Tool, list[SealedSecret]] | None:
        return await database.read_one(lambda tx: tools.find_with_secrets(tx, tool_id, agent_id))

    assert await read(tool.id, agent_id) == (tool, secrets)
    assert await read(tool.id, other_id) == (tool, [])
    assert await read(ids.new("tool"), agent_id) is None


async def test_the_tools_of_an_agent_are_read_with_the_head_of_its_thread(database: Database) -> None:
    agent_id = await add_agent(database)

    async def read() -> tuple[ThreadHead, list[Tool]]:
        return await database.read_one(lambda tx: threads.head_with_tools(tx, agent_id))

    assert await read() == (await look(database, threads.head, agent_id), [])
    odd = 'def roll():\n\t\'\\ " \u2028 é 😀 {"a": null}\''
    young = await add(
        database, "young", created_us=NOW + 1, source_code=odd, tags=("b", odd), metadata={"k": [odd, 1.5]}
    )
    old = await add(
        database,
        "old",
        args_json_schema={"type": "object"},
        return_char_limit=7,
        pip_requirements=[{"name": "numpy", "version": None}],
        npm_requirements=[],
        default_requires_approval=False,
        enable_parallel_execution=True,
        project_id="p",
        version=3,
    )
    await add(database, "another's")
    await call(database, tools.attach_many, agent_id, [young.id, old.id])
    assert (await read())[1] == [old, young] == await look(database, tools.of_agent, agent_id)
    with pytest.raises(NotFound):
        await database.read_one(lambda tx: threads.head_with_tools(tx, ids.new("conv")))


async def test_an_unknown_tool_is_not_found(database: Database) -> None:
    stranger = ids.new("tool")
    for function in (tools.get, tools.delete_tool):
        with pytest.raises(NotFound):
            await call(database, function, stranger)
    assert await call(database, tools.find_named, "none") is None
    assert await look(database, tools.find_many, []) == {}


async def test_of_many_who_take_a_name_at_once_one_gets_it(database: Database) -> None:
    outcomes = await asyncio.gather(*(call(database, tools.insert, a_tool()) for _ in range(20)))
    assert sum(outcomes) == 1
    assert await listed(database) == {"roll"}


async def test_a_tool_cannot_take_the_name_of_another(database: Database) -> None:
    roll, _ = await add(database), await add(database, "flip")
    with pytest.raises(IntegrityError):
        await call(database, tools.update_tool, msgspec.structs.replace(roll, name="flip", version=2))
    assert await look(database, tools.get, roll.id) == roll


async def test_an_updated_tool_keeps_its_birth(database: Database) -> None:
    roll = await add(database)
    changed = msgspec.structs.replace(roll, description="d", version=2, created_us=1, updated_us=NOW + 1)
    await call(database, tools.update_tool, changed)
    assert await look(database, tools.get, roll.id) == msgspec.structs.replace(changed, created_us=NOW)


async def test_tools_are_attached_once_and_detached_once(database: Database) -> None:
    one, two = await add_agent(database), await add_agent(database)
    roll, flip = await add(database, created_us=NOW + 1), await add(database, "flip")
    await call(database, tools.attach_many, one, [roll.id, flip.id, roll.id])
    await call(database, tools.attach_many, one, [roll.id])
    await call(database, tools.attach_many, two, [roll.id])
    await call(database, tools.attach_many, two, [])
    assert await look(database, tools.of_agents, [one, two]) == {one: [flip, roll], two: [roll]}
    assert await listed(database, agent_id=two) == {"roll"}
    assert await call(database, tools.detach, one, roll.id) is True
    assert await call(database, tools.detach, one, roll.id) is False
    assert await look(database, tools.of_agent, one) == [flip]
    await call(database, tools.detach_all, one)
    assert await look(database, tools.of_agent, one) == []
    await call(database, tools.delete_tool, roll.id)
    assert await look(database, tools.of_agent, two) == []


async def test_every_filter_narrows_the_list(database: Database) -> None:
    roll = await add(database, description="Throw a_dice.")
    await add(database, "memory_insert", tool_type="letta_core", description="Write.")
    assert await listed(database) == {"roll", "memory_insert"}
    assert await listed(database, name="roll") == {"roll"}
    assert await listed(database, names=("roll", "none")) == {"roll"}
    assert await listed(database, tool_ids=(roll.id,)) == {"roll"}
    assert await listed(database, tool_ids=()) == set()
    assert await listed(database, search="A_DICE") == {"roll"}
    assert await listed(database, search="insert") == {"memory_insert"}
    assert await listed(database, types=("letta_core",)) == {"memory_insert"}
    assert await listed(database, exclude_types=("letta_core", "letta_builtin")) == {"roll"}


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_walking_the_list_meets_every_tool_once(database: Database, order: Any) -> None:
    added = [await add(database, f"tool_{index}", created_us=NOW + index // 3) for index in range(7)]

    async def page(**cursor: str) -> list[Tool]:
        asked = Page(limit=3, order=order, **cursor)  # type: ignore[arg-type]
        return await look(database, tools.list_tools, ToolFilter(), asked)

    assert sorted(await walk(page)) == sorted(tool.id for tool in added)
