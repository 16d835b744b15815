"""Built-in tools within real runs: their effects and their returns are one, whoever else writes and whatever dies."""

from __future__ import annotations

import asyncio
import json
from ast import literal_eval
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import ids
from holdfast.actions.tools.base_tools import sync_base_tools
from holdfast.core.deltas import Delta
from holdfast.core.messages import Message, Text, ToolReturn, text_of
from holdfast.core.records import Agent, Block, Thread, Tool
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.tool_calls import InlineTools, Performed
from holdfast.llm.base import ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.offline.model import OfflineModel
from holdfast.store import agents, blocks, messages, threads, tools
from holdfast.store.transaction import Database, Job, Transaction

from ..scenario import Node, World, sqlite_at, world_at
from ..wrapping import WrappedDatabase


class Attentive(OfflineModel):
    """Remembers the system prompts that it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.systems: list[str] = []

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        self.systems.append(request.system)
        return super().stream(request)


class EditingDatabase(WrappedDatabase):
    """Another caller edits a block just before the n-th write."""

    def __init__(self, inner: Database, block_id: str, at: int) -> None:
        super().__init__(inner)
        self._block_id = block_id
        self._left = at

    async def write(
        self,
        job: Job[Any],
        performed: Callable[[Any], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> Any:
        self._left -= 1
        if self._left == 0:
            await self._inner.write(self._edit)
        return await super().write(job, performed, settled)

    async def _edit(self, tx: Transaction) -> None:
        block = await blocks.get(tx, self._block_id)
        changed = msgspec.structs.replace(block, value=f"edited\n{block.value}", version=block.version + 1)
        await blocks.update_block(tx, changed, label_before=block.label)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(sqlite_at(tmp_path)) as made:
        await made.database.write(lambda tx: _attach_built_ins(tx, made.agent_id))
        yield made


async def _attach_built_ins(tx: Transaction, agent_id: str) -> None:
    shipped = await sync_base_tools(tx, 1)
    await tools.attach_many(tx, agent_id, [tool.id for tool in shipped])


async def add_block(world: World, label: str, value: str = "", *, attached: bool = True, **more: Any) -> Block:
    block = Block(id=ids.new("block"), label=label, value=value, **more)

    async def write(tx: Transaction) -> None:
        await blocks.insert(tx, block)
        if attached:
            await blocks.attach(tx, world.agent_id, block)

    await world.database.write(write)
    return block


async def add_sharer(world: World, block: Block) -> str:
    """Another agent that has the same block."""
    agent = await world.database.read(lambda tx: agents.get(tx, world.agent_id))
    other = msgspec.structs.replace(agent, id=ids.new("agent"), name="bea")

    async def write(tx: Transaction) -> None:
        await agents.insert(tx, other)
        await _attach_built_ins(tx, other.id)
        await blocks.attach(tx, other.id, block)
        await _open(tx, Thread(id=other.id, agent_id=other.id))

    await world.database.write(write)
    return other.id


async def add_conversation(world: World, agent_id: str, **more: Any) -> str:
    thread = Thread(id=ids.new("conv"), agent_id=agent_id, **more)
    await world.database.write(lambda tx: _open(tx, thread))
    return thread.id


async def _open(tx: Transaction, thread: Thread) -> None:
    system = Message(id=ids.new("message"), role="system", parts=(Text("Be brief."),), created_us=0)
    await threads.insert(tx, thread)
    await messages.insert_many(tx, thread.agent_id, [system])
    await threads.append(tx, thread.id, [system.id])


def order(tool: str, **arguments: Any) -> str:
    """A message that makes the offline model call a tool once."""
    return f"[[call:{tool} {json.dumps(arguments)}@1]]"


async def value_of(world: World, block: Block) -> str:
    return (await world.database.read(lambda tx: blocks.get(tx, block.id))).value


async def returns_of(world: World, thread: str | None = None) -> list[ToolReturn]:
    return [answer for row in await world.window(thread) for answer in row.returns]


async def call(world: World, tool: str, *, thread: str | None = None, **arguments: Any) -> ToolReturn:
    """The return of one call in a run of its own."""
    run = await world.node().ask(order(tool, **arguments) + " [[say:Done@2]]", thread=thread)
    assert run.status == "completed"
    return (await returns_of(world, thread))[-1]


class TestAnEditWithinARun:
    async def test_is_stored_with_its_return_and_seen_by_the_next_model_call(self, world: World) -> None:
        block = await add_block(world, "human", "Ann")
        model = Attentive()
        node = world.node()
        node.catalog.offline.model = model
        await node.ask(order("memory_insert", label="human", new_string="likes tea"))
        assert await value_of(world, block) == "Ann\nlikes tea"
        (answer,) = await returns_of(world)
        assert answer == ToolReturn(answer.call_id, "memory_insert", "success", "Ann\nlikes tea", (), ())
        first, second = model.systems
        assert "likes tea" not in first
        assert "Ann\nlikes tea" in second
        assert text_of((await world.window())[0].parts) == second

    async def test_sees_what_an_earlier_call_of_the_same_reply_did(self, world: World) -> None:
        block = await add_block(world, "human")
        both = order("memory_insert", label="human", new_string="a") + order(
            "memory_replace", label="human", old_string="a", new_string="b"
        )
        await world.node().ask(both)
        assert await value_of(world, block) == "b"
        assert [answer.content for answer in await returns_of(world)] == ["a", "b"]

    async def test_may_create_a_block_and_write_to_it_at_once(self, world: World) -> None:
        await world.node().ask(
            order("memory", command="create", path="tasks", description="to do")
            + order("core_memory_append", label="tasks", content="one")
        )
        (block,) = await world.database.read(lambda tx: blocks.of_agent(tx, world.agent_id))
        assert (block.label, block.value, block.version) == ("tasks", "\none", 2)
        assert "<tasks>" in text_of((await world.window())[0].parts)

    async def test_that_fails_tells_the_model_why_and_changes_nothing(self, world: World) -> None:
        block = await add_block(world, "human", "Ann", read_only=True)
        answer = await call(world, "memory_insert", label="human", new_string="x")
        assert answer.status == "error"
        assert answer.content == (
            "Error executing function memory_insert: ValueError: This block is read-only and cannot be edited."
        )
        assert await value_of(world, block) == "Ann"

    async def test_that_changes_nothing_makes_no_new_version(self, world: World) -> None:
        block = await add_block(world, "human", "Ann")
        assert (await call(world, "memory_rethink", label="human", new_memory="Ann")).status == "success"
        assert (await world.database.read(lambda tx: blocks.get(tx, block.id))).version == 1

    async def test_of_a_conversation_touches_its_own_copy_and_not_the_shared_block(self, world: World) -> None:
        shared = await add_block(world, "human", "shared")
        private = await add_block(world, "human", "private", attached=False)
        thread = await add_conversation(world, world.agent_id, isolated_block_ids=(private.id,))
        answer = await call(world, "memory_insert", thread=thread, label="human", new_string="x")
        assert answer.content == "private\nx"
        assert await value_of(world, private) == "private\nx"
        assert await value_of(world, shared) == "shared"
        refused = await call(world, "memory", thread=thread, command="delete", path="human")
        assert "own copy" in str(refused.content)

    async def test_to_a_label_that_another_sharer_uses_is_refused_without_end(self, world: World) -> None:
        block = await add_block(world, "human", "Ann")
        other_id = await add_sharer(world, block)
        theirs = Block(id=ids.new("block"), label="user")

        async def attach(tx: Transaction) -> None:
            await blocks.insert(tx, theirs)
            await blocks.attach(tx, other_id, theirs)

        await world.database.write(attach)
        answer = await call(world, "memory", command="rename", old_path="human", new_path="user")
        assert "already has a block labelled 'user'" in str(answer.content)
        free = await call(world, "memory", command="rename", old_path="human", new_path="person")
        assert free.status == "success"


class TestOthersWriteAtTheSameTime:
    async def test_twenty_runs_of_two_agents_lose_no_edit_of_the_block_they_share(self, world: World) -> None:
        block = await add_block(world, "notes")
        other_id = await add_sharer(world, block)
        talks = [await add_conversation(world, agent_id) for agent_id in (world.agent_id, other_id) for _ in range(10)]
        node = world.node()

        async def run(number: int, thread: str) -> str:
            done = await node.ask(order("core_memory_append", label="notes", content=str(number)), thread=thread)
            return done.status

        assert set(await asyncio.gather(*(run(*talk) for talk in enumerate(talks)))) == {"completed"}
        assert sorted((await value_of(world, block)).split(), key=int) == [str(number) for number in range(20)]
        for number, thread in enumerate(talks):
            (answer,) = await returns_of(world, thread)
            assert str(answer.content).endswith(f"\n{number}")

    @pytest.mark.parametrize("at", [1, 2, 3])
    async def test_an_edit_is_computed_again_and_the_reply_is_kept(self, world: World, at: int) -> None:
        block = await add_block(world, "human", "Ann")
        edited = World(EditingDatabase(world.database, block.id, at))
        edited.agent_id = world.agent_id
        await edited.node().ask(order("core_memory_append", label="human", content="tea"))
        assert await value_of(world, block) == "edited\nAnn\ntea"
        rows = await world.window()
        assert [row.role for row in rows] == ["system", "user", "assistant", "tool", "assistant"]
        assert len(rows[2].calls) == 1
        assert str(rows[3].returns[0].content).endswith("Ann\ntea")


class TestTheProcessDies:
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("write", [1, 2, 3])
    async def test_edit_and_return_are_both_there_or_neither_and_happen_once(
        self, world: World, write: int, when: Any
    ) -> None:
        block = await add_block(world, "human", "Ann")
        node = world.node()
        node.database.crash_at(write, when)
        await _ask_until_dead(node, order("core_memory_append", label="human", content="tea"))
        edited = await value_of(world, block) == "Ann\ntea"
        assert edited == bool(await returns_of(world))
        heir = world.node()
        carried_on = await heir.take_over_all()
        await heir.settled()
        accepted = carried_on or len(await world.window()) > 1
        assert await value_of(world, block) == ("Ann\ntea" if accepted else "Ann")
        assert len(await returns_of(world)) == bool(accepted)

    async def test_the_crash_points_include_the_commit_of_the_edit(self, world: World) -> None:
        """Guards the test above: were the edit committed later than its last crash point, it would prove nothing."""
        block = await add_block(world, "human", "Ann")
        seen: set[str] = set()
        for write in (1, 2, 3):
            node = world.node()
            node.database.crash_at(write, "after")
            before = await value_of(world, block)
            await _ask_until_dead(node, order("core_memory_append", label="human", content="tea"))
            seen.add("edited" if await value_of(world, block) != before else "not yet")
            heir = world.node()
            await heir.take_over_all()
            await heir.settled()
        assert seen == {"edited", "not yet"}


async def _ask_until_dead(node: Node, text: str) -> None:
    """The run ends, or the process does."""
    try:
        await node.send(text)
    except BaseException:
        if not node.database.dead:
            raise
    while node.worker._tasks:
        await asyncio.wait(node.worker._tasks)


class TestOtherBuiltInTools:
    async def test_a_cancel_during_a_long_search_ends_the_run_at_once(self, world: World) -> None:
        await call(world, "conversation_search", query="words")
        node = world.node()
        node.database.long_reads_hang = True
        run_id = (await node.send('[[call:conversation_search {"query": "words"}]]')).run.id
        await node.database.hanging.wait()
        assert await asyncio.wait_for(node.cancel.one(run_id), 20) == "cancelled"
        assert (await world.run(run_id)).stop_reason == "cancelled"
        await node.die()

    @pytest.mark.parametrize("name", ["conversation_search", "archival_memory_search"])
    async def test_a_search_that_takes_too_long_is_told_and_not_repeated(self, world: World, name: str) -> None:
        await call(world, "archival_memory_insert", content="words")
        node = world.node()
        node.database.long_reads_take_too_long = True
        await node.ask(order(name, query="words"))
        answer = (await world.window())[-2].returns[0]
        assert (answer.status, "did not finish in time. Search for less." in str(answer.content)) == ("error", True)

    async def test_search_finds_what_was_said_in_any_conversation_but_not_itself(self, world: World) -> None:
        thread = await add_conversation(world, world.agent_id)
        await world.node().ask("My aunt sells marzipan [[say:How sweet]]", thread=thread)
        await world.node().ask("My uncle buys marzipan [[say:I see]]")
        answer = await call(world, "conversation_search", query="MARZIPAN", limit=10, roles=["user"])
        found = [result["content"] for result in literal_eval(str(answer.content))["results"]]
        assert "My aunt sells marzipan [[say:How sweet]]" in found
        assert "My uncle buys marzipan [[say:I see]]" in found
        again = await call(world, "conversation_search", query="marzipan", roles=["assistant", "tool"])
        assert literal_eval(str(again.content))["results"] == []

    async def test_search_minds_dates(self, world: World) -> None:
        await world.node().ask("marzipan")
        answer = await call(world, "conversation_search", query="marzipan", end_date="2020-01-01")
        assert literal_eval(str(answer.content)) == {"message": "No results found.", "results": []}

    async def test_returns_are_cut_to_their_limit_but_not_those_of_searches(self, world: World) -> None:
        async def shorten(tx: Transaction) -> None:
            for tool in (await tools.find_many_named(tx, ["memory_insert", "conversation_search"])).values():
                await tools.update_tool(tx, msgspec.structs.replace(tool, return_char_limit=10))

        await world.database.write(shorten)
        block = await add_block(world, "human")
        text = "a long line of words"
        answer = await call(world, "memory_insert", label="human", new_string=text)
        assert str(answer.content).startswith("a long lin... [NOTE: function output was truncated")
        assert await value_of(world, block) == text
        found = await call(world, "conversation_search", query="words")
        assert literal_eval(str(found.content))["results"]

    async def test_a_message_that_was_sent_is_confirmed(self, world: World) -> None:
        assert (await call(world, "send_message", message="Hi")).content == "Sent message successfully."

    async def test_a_message_without_words_is_an_error(self, world: World) -> None:
        refused = await call(world, "send_message")
        assert refused.status == "error"
        assert "missing 1 required positional argument: 'message'" in str(refused.content)

    async def test_finishing_edits_returns_nothing(self, world: World) -> None:
        assert (await call(world, "memory_finish_edits")).content == "None"

    async def test_one_that_this_server_does_not_have_is_an_error(self, world: World) -> None:
        tool = Tool(
            id=ids.new("tool"),
            name="generate_music",
            tool_type="letta_core",
            description="",
            json_schema={"name": "generate_music", "parameters": {"type": "object", "properties": {}}},
        )

        async def attach(tx: Transaction) -> None:
            await tools.insert(tx, tool)
            await tools.attach_many(tx, world.agent_id, [tool.id])

        await world.database.write(attach)
        answer = await call(world, "generate_music")
        assert answer.status == "error"
        assert "Tool not found" in str(answer.content)


class TestByHand:
    async def perform(
        self, world: World, name: str, *, at: int = 0, block: Block | None = None, **given: Any
    ) -> Performed:
        async def load(tx: Transaction) -> tuple[Agent, Tool]:
            found = await tools.find_many_named(tx, [name])
            return await agents.get(tx, world.agent_id), found[name]

        agent, tool = await world.database.read(load)
        database = EditingDatabase(world.database, block.id, at) if block else world.database
        archival = ArchivalMemory(database, ModelCatalog(), world.clock)
        return await InlineTools(database, world.clock, archival).run_by_hand(agent, tool, given)

    async def test_an_edit_is_committed(self, world: World) -> None:
        block = await add_block(world, "human", "Ann")
        done = await self.perform(world, "memory_insert", label="human", new_string="x")
        assert (done.status, done.content) == ("success", "Ann\nx")
        assert await value_of(world, block) == "Ann\nx"

    async def test_an_edit_that_was_overtaken_is_computed_again(self, world: World) -> None:
        block = await add_block(world, "human", "Ann")
        done = await self.perform(world, "memory_insert", at=1, block=block, label="human", new_string="x")
        assert done.content == await value_of(world, block) == "edited\nAnn\nx"

    async def test_a_failure_and_a_search_write_nothing(self, world: World) -> None:
        failed = await self.perform(world, "memory_insert", label="nobody", new_string="x")
        assert failed.status == "error"
        found = await self.perform(world, "conversation_search", query="nothing")
        assert literal_eval(str(found.content))["results"] == []
        assert len(await world.window()) == 1
