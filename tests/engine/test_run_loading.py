"""What the specs of runs share is stored once; windows are kept until they are too many; numbers are given once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, MetaData, Table, delete, func, select, text

from holdfast import ids
from holdfast.actions.runs.records import explain_run
from holdfast.actions.runs.spec import freeze
from holdfast.core.events import AnyEvent, RunStarted
from holdfast.core.messages import Approve, Message, Text
from holdfast.core.model_history import HistoryBuilder
from holdfast.core.records import CompactionSettings, ModelChoice, Run
from holdfast.core.spec import RunSpec, ToolSpec
from holdfast.core.tool_rules import RequiresApproval
from holdfast.engine.run_loading import (
    SHARED,
    SharedParts,
    Windows,
    load_state,
    numbers_begin_after,
    own_part,
    shared_part,
)
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import agents, journal, messages, move, runs, specs, threads, tools
from holdfast.store.database import open_database, sqlite_path
from holdfast.store.migrations import revision, upgrade
from holdfast.store.sqlite import SQLiteDatabase
from holdfast.store.statements import insert_into
from holdfast.store.tables import run_events
from holdfast.store.tables import specs as specs_table
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.requests import LettaRequest

from .. import postgres
from ..core.machine import judged, spec
from ..invariants import assert_invariants
from ..scenario import Node, World, sqlite_at, world_at, world_in
from .timed import HandClock


def window(size: int) -> list[Message]:
    return [Message(id=f"message-{each}", role="user", parts=(Text("hi"),), created_us=0) for each in range(size)]


def test_a_window_is_good_only_while_its_thread_ends_where_it_ended() -> None:
    windows, kept = Windows(), window(3)
    windows.keep("thread", 3, kept, HistoryBuilder())
    assert windows.of("thread", 3) is kept
    assert windows.of("thread", 4) is None
    assert windows.of("another", 3) is None


def test_a_newer_window_takes_the_place_of_the_older_one() -> None:
    windows, newer = Windows(), window(4)
    windows.keep("thread", 3, window(3), HistoryBuilder())
    windows.keep("thread", 4, newer, HistoryBuilder())
    assert windows.of("thread", 3) is None
    assert windows.of("thread", 4) is newer


def test_windows_that_were_not_used_for_longest_make_room() -> None:
    windows = Windows(most_messages=10)
    windows.keep("first", 4, window(4), HistoryBuilder())
    windows.keep("second", 4, window(4), HistoryBuilder())
    assert windows.of("first", 4)
    windows.keep("third", 4, window(4), HistoryBuilder())
    assert (windows.of("first", 4) is None, windows.of("second", 4) is None) == (False, True)


def test_a_window_that_is_too_large_is_not_kept() -> None:
    windows = Windows(most_messages=10)
    windows.keep("small", 4, window(4), HistoryBuilder())
    windows.keep("large", 11, window(11), HistoryBuilder())
    assert windows.of("large", 11) is None
    windows.keep("small", 4, window(4), HistoryBuilder())
    assert windows.of("small", 4)


def test_a_history_is_told_on_where_the_last_run_ended_even_if_the_window_changed() -> None:
    windows, told = Windows(), HistoryBuilder()
    windows.keep("thread", 3, window(3), told)
    assert windows.history_builder_of("thread") is told
    assert windows.history_builder_of("another") is not told


def test_windows_make_room_by_what_their_messages_weigh() -> None:
    windows = Windows(most_bytes=10_000_000)
    heavy = Message(id="message-1", role="user", parts=(Text("x" * 6_000_000),), created_us=0)
    windows.keep("a", 1, [heavy], HistoryBuilder())
    windows.keep("a", 2, [heavy], HistoryBuilder())
    assert windows.of("a", 2) == [heavy]
    windows.keep("b", 1, [heavy], HistoryBuilder())
    assert windows.of("a", 2) is None
    assert windows.of("b", 1) == [heavy]


_EVER = 2**62
_SPECS = select(func.count().label("stored")).select_from(specs_table)
_DELETE = delete(specs_table)
_RECORDED = Path(__file__).parent.parent / "journals" / "v0.1.0"
_event = msgspec.json.Decoder(AnyEvent)


async def stored_specs(world: World) -> int:
    row = await world.database.read(lambda tx: tx.fetch_one(_SPECS))
    assert row is not None
    return row["stored"]


async def delete_unused(world: World, before_us: int = _EVER) -> int:
    hashes = await world.database.read(lambda tx: specs.find_unused(tx, before_us, 100))
    return await world.database.write(lambda tx: specs.delete_unused(tx, before_us, hashes))


async def started_of(world: World, run_id: str) -> RunStarted:
    first = (await world.database.read(lambda tx: journal.load(tx, run_id)))[0]
    event = _event.decode(first)
    assert isinstance(event, RunStarted)
    return event


async def test_ten_turns_of_an_agent_store_its_tools_once(world: World, node: Node) -> None:
    for number in range(10):
        await node.ask(f"say {number}", override_system=f"Be brief, it is {number} o'clock.")
    assert await stored_specs(world) == 1


async def test_conversations_with_the_same_tools_share_them(world: World, node: Node) -> None:
    for number in range(3):
        await node.ask(f"say {number}", thread=await world.add_thread())
    assert await stored_specs(world) == 1


async def test_a_stored_start_is_short_and_is_loaded_whole(world: World, node: Node) -> None:
    run = await node.ask("say hello", override_system="Be loud.", max_steps=7)
    started = await started_of(world, run.id)
    assert [tool.name for tool in started.spec.tools][:2] == ["note", "lookup"]
    assert (started.spec.thread_id, started.spec.override_system, started.spec.max_steps) == (
        world.agent_id,
        "Be loud.",
        7,
    )
    rows = select(run_events.c.event).where(run_events.c.run_id == run.id, run_events.c.number == 1)
    row = await world.database.read(lambda tx: tx.fetch_one(rows))
    assert row is not None
    assert "lookup" not in row["event"]


@pytest.mark.parametrize("resumes", [(), (judged("guarded", "denied", note='a "spec":{ in words'),)])
def test_what_was_taken_apart_is_the_same_when_put_together(resumes: tuple[Any, ...]) -> None:
    given = msgspec.structs.replace(spec(), agent_name='"spec":{', override_system='{"event":"run_started","spec":{')
    started = RunStarted(given, ("message-1",), resumes, "step-1" if resumes else None, 4 if resumes else None)
    shared, own = shared_part(given), own_part(started)
    assert own.startswith(journal.START)
    assert _event.decode(journal.with_shared_spec(own, shared.text)) == started


def test_no_field_of_a_spec_is_lost_between_the_two_parts() -> None:
    assert set(SHARED) < set(RunSpec.__struct_fields__)
    own = msgspec.json.decode(own_part(RunStarted(spec(), ())))["spec"]
    assert own.keys() == set(RunSpec.__struct_fields__) - set(SHARED)


async def test_a_spec_that_a_journal_refers_to_is_not_deleted(world: World, node: Node) -> None:
    run = await node.ask("say hello")
    assert await delete_unused(world) == 0
    await world.database.write(lambda tx: runs.delete(tx, run.id))
    assert await delete_unused(world, before_us=1) == 0  # a server began to use it after that
    assert await delete_unused(world) == 1
    assert await stored_specs(world) == 0


async def test_a_message_is_accepted_though_another_server_has_deleted_the_spec_that_this_one_knows(
    world: World, node: Node
) -> None:
    first = await node.ask("say hello")
    await world.database.write(lambda tx: runs.delete(tx, first.id))
    assert await delete_unused(world) == 1

    second = await node.ask("say hello again")

    assert (await world.run(second.id)).status == "completed"
    assert (await started_of(world, second.id)).spec.tools
    await assert_invariants(world.database, idle=True)


async def test_an_answer_is_accepted_though_the_spec_that_this_server_knows_was_deleted(
    world: World, node: Node
) -> None:
    """The acceptance that is rolled back had decided the hold: the one that follows must find it undecided."""
    await node.ask("call the guarded tool")
    hold = await world.pending()
    assert hold is not None

    async def forget_journal(tx: Transaction) -> None:
        await tx.execute(delete(run_events).where(run_events.c.run_id == hold.run_id))
        await tx.execute(_DELETE)

    kept = await world.database.read(lambda tx: journal.load(tx, hold.run_id))
    await world.database.write(forget_journal)
    await world.database.write(lambda tx: journal.append(tx, hold.run_id, 1, kept, 0))

    decisions = [Approve(call_id) for call_id in hold.hold.asked_ids]
    answered = await node.ask(decisions=decisions)

    assert answered.status == "completed"
    assert await stored_specs(world) == 1


async def test_a_run_that_refers_to_a_shared_spec_is_carried_on_by_another_server(world: World) -> None:
    first = Node(world)
    first.database.crash_at(2, "before")
    await first.send("say hello")
    await first.settled()
    await first.die()
    second = Node(world)
    assert await second.take_over_all() == 1
    await second.settled()
    await second.die()
    await assert_invariants(world.database, idle=True)


async def test_an_unused_spec_goes_an_hour_after_a_server_has_begun_to_use_it(world: World) -> None:
    clock = world.clock = HandClock()
    node = world.node()
    run = await node.ask("say hello")
    await world.database.write(lambda tx: runs.delete(tx, run.id))
    await node.retention.forget_unused_specs()
    assert await stored_specs(world) == 1
    clock.advance(3_601)
    await node.retention.forget_unused_specs()
    assert await stored_specs(world) == 0
    await node.die()


@pytest.fixture
async def postgres_world(postgres_url: str) -> AsyncIterator[World]:
    """Only PostgreSQL has two transactions that write at once."""
    async with world_at(postgres_url) as made:
        yield made


async def test_a_spec_that_a_run_begins_to_use_meanwhile_is_not_deleted(postgres_world: World) -> None:
    world, node = postgres_world, postgres_world.node()
    first = await node.ask("say hello")
    given = shared_part((await started_of(world, first.id)).spec)
    await world.database.write(lambda tx: runs.delete(tx, first.id))
    unused = await world.database.read(lambda tx: specs.find_unused(tx, _EVER, 100))
    refers, may_commit = asyncio.Event(), asyncio.Event()

    async def begin(tx: Transaction) -> Run:
        run = await end_as_before(tx, world.agent_id, events=())
        await journal.append_start(tx, run.id, journal.START + '"agent_id":"a"}}', given.hash, 1)
        await journal.load(tx, run.id)  # what was put off is sent before anything is read
        refers.set()
        await may_commit.wait()
        return run

    beginning = asyncio.create_task(world.database.write(begin))
    await refers.wait()
    assert await world.database.write(lambda tx: specs.delete_unused(tx, _EVER, unused)) == 0
    may_commit.set()
    run = await beginning
    assert given.text[1:-1] in (await world.database.read(lambda tx: journal.load(tx, run.id)))[0]
    assert await delete_unused(world) == 0
    await node.die()


async def test_a_message_that_comes_while_its_spec_is_being_deleted_is_accepted(postgres_world: World) -> None:
    world, node = postgres_world, postgres_world.node()
    first = await node.ask("say hello")
    await world.database.write(lambda tx: runs.delete(tx, first.id))
    unused = await world.database.read(lambda tx: specs.find_unused(tx, _EVER, 100))
    deleted, may_commit = asyncio.Event(), asyncio.Event()

    async def forget(tx: Transaction) -> int:
        gone = await specs.delete_unused(tx, _EVER, unused)
        deleted.set()
        await may_commit.wait()
        return gone

    forgetting = asyncio.create_task(world.database.write(forget))
    await deleted.wait()
    asking = asyncio.create_task(node.ask("say hello again"))
    await one_waits_for_a_lock(world)
    may_commit.set()
    assert await forgetting == 1
    assert (await asking).status == "completed"
    await assert_invariants(world.database, idle=True)
    await node.die()


async def one_waits_for_a_lock(world: World) -> None:
    waiting = text(postgres.WAITING_FOR_LOCKS)
    for _ in range(2_000):
        row = await world.database.read(lambda tx: tx.fetch_one(waiting))
        if row is not None and row["waiting"]:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("nobody waited for a lock")


@pytest.fixture(params=["sqlite", "postgres"])
async def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Of a database that is not there yet."""
    if request.param == "sqlite":
        yield sqlite_at(tmp_path)
        return
    server = request.getfixturevalue("postgres_server").uri
    uri = await postgres.create_database(server, migrated=False)
    yield uri
    await postgres.drop_database(server, uri)


async def open_before_specs(url: str) -> Database:
    """Brought to the revision before specs were shared, and no further."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(revision, "HEAD", "0004")
        if not url.startswith("sqlite"):
            return await open_database(url)
        upgrade.upgrade_sqlite(sqlite_path(url))
        return SQLiteDatabase(sqlite_path(url))


async def copy_rows(newest: Database, old: Database) -> None:
    """As the code of today writes them, without the tables and columns that came later."""
    for table in move.TABLES:
        known = await old.write(partial(column_names, table.name))  # no read may ask SQLite for them
        kept = [column.name for column in table.columns if column.name in known]
        rows = await newest.read(partial(move.rows_after, table=table, after=(), at_most=1_000))
        if not kept or not rows:
            continue
        names = [column.name for column in table.columns]
        narrow = Table(table.name, MetaData(), *(Column(name, table.columns[name].type) for name in kept))
        values = [{name: row[names.index(name)] for name in kept} for row in rows]
        await old.write(partial(insert_rows, narrow, values))
    await old.write(count_on)


async def count_on(tx: Transaction) -> None:
    """PostgreSQL numbers messages apart from its rows."""
    if tx.dialect == "postgresql":
        await tx.fetch_all(text("SELECT setval(pg_get_serial_sequence('messages', 'seq'), max(seq)) FROM messages"))


async def insert_rows(table: Table, rows: list[dict[str, Any]], tx: Transaction) -> None:
    await tx.execute_many(insert_into(table), rows)


async def column_names(table: str, tx: Transaction) -> set[str]:
    """Empty if there is no such table."""
    if tx.dialect == "sqlite":
        listing = text("SELECT name FROM pragma_table_info(:of)")
    else:
        listing = text("SELECT column_name AS name FROM information_schema.columns WHERE table_name = :of")
    return {row["name"] for row in await tx.fetch_all(listing, {"of": table})}


async def begin_as_before(tx: Transaction, agent_id: str) -> Run:
    """An accepted message and its run, with the whole spec in the journal, as written before revision 0005."""
    agent, thread = await agents.get(tx, agent_id), await threads.get(tx, agent_id)
    frozen = await freeze(
        ModelCatalog(), agent, thread, await tools.of_agent(tx, agent_id), LettaRequest(input="-"), stream_tokens=False
    )
    run = Run(id=ids.new("run"), agent_id=agent_id, thread_id=agent_id, status="running", created_us=1, lease=1)
    asked = Message(id=ids.new("message"), role="user", parts=(Text("say hello"),), created_us=1, run_id=run.id)
    await runs.insert(tx, run)
    await messages.insert_many(tx, agent_id, [asked])
    await threads.append(tx, agent_id, [asked.id])
    await journal.append(tx, run.id, 1, [msgspec.json.encode(RunStarted(frozen, (asked.id,))).decode()], 1)
    return run


async def end_as_before(tx: Transaction, agent_id: str, events: Sequence[str] | None = None) -> Run:
    """A run that has ended, with a journal that an earlier release has recorded."""
    run = Run(
        id=ids.new("run"), agent_id=agent_id, thread_id=agent_id, status="completed", created_us=1, completed_us=2
    )
    await runs.insert(tx, run)
    recorded = events if events is not None else (_RECORDED / "tools-1.jsonl").read_text().splitlines()
    await journal.append(tx, run.id, 1, recorded, 1)
    return run


async def test_a_database_of_the_revision_before_is_used_on(old_url: str, tmp_path: Path) -> None:
    newest = await open_database(f"sqlite:///{tmp_path}/newest.db")
    agent_id = (await world_in(newest)).agent_id
    ended = await newest.write(lambda tx: end_as_before(tx, agent_id))
    active = await newest.write(lambda tx: begin_as_before(tx, agent_id))
    before = await open_before_specs(old_url)
    await copy_rows(newest, before)
    await newest.aclose()
    await before.aclose()
    database = await open_database(old_url)
    world = World(database)
    world.agent_id = agent_id
    node = world.node()
    try:
        assert await node.take_over_all() == 1
        await node.settled()
        assert (await world.run(active.id)).status == "completed"
        for run_id in (ended.id, active.id):
            story = await explain_run(world.database, run_id, 10)
            assert story.state is not None
            assert not story.journal_removed
        assert await stored_specs(world) == 0
        later = await node.ask("say hello again")
        assert later.status == "completed"
        assert await stored_specs(world) == 1
        state, _ = await world.database.read(lambda tx: load_state(tx, active.id))
        assert state.spec is not None
        assert state.spec.tools == (await started_of(world, later.id)).spec.tools
    finally:
        await node.die()
        await database.aclose()


def test_a_change_of_any_shared_field_makes_another_shared_part() -> None:
    model = ModelChoice(handle="holdfast/offline", context_window=1_000)
    plain = RunSpec(agent_id="agent-1", thread_id="agent-1", model=model)
    tool = ToolSpec(name="t", description="", parameters={}, effect="once")
    changes: dict[str, Any] = {
        "model": ModelChoice(handle="holdfast/offline", context_window=2_000),
        "tools": (tool,),
        "rules": (RequiresApproval(tool_name="t"),),
        "compaction": CompactionSettings(clip_chars=7),
        "skills": "skills",
    }
    assert changes.keys() == set(SHARED)
    parts = SharedParts()
    first = parts.of(plain)
    for name, value in changes.items():
        changed = msgspec.structs.replace(plain, **{name: value})
        assert parts.of(changed) == shared_part(changed) != first
        assert parts.of(plain) == first
    assert parts.of(msgspec.structs.replace(plain, max_steps=3)) == first


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 5_000)), min_size=1, max_size=20))
def test_no_owner_shows_a_number_that_one_who_died_has_shown(lives: list[tuple[int, int]]) -> None:
    """Each of them stores some frames, and shows some more."""
    base = last_stored = highest_shown = 0
    for lease, (stored, lost) in enumerate(lives, 1):
        if lease > 1:
            base = numbers_begin_after(last_stored, lease, owner_died=True)
        assert base >= highest_shown
        last_stored = base + stored if stored else last_stored
        highest_shown = base + stored + lost
