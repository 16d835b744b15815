"""Threads: positions are given once, the window is a relation, shared rows outlive one of their owners."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast import ids
from holdfast.core.messages import Message, Text
from holdfast.core.records import Thread
from holdfast.errors import BugError, Busy, NotFound
from holdfast.store import messages, threads
from holdfast.store.database import open_database
from holdfast.store.paging import Page
from holdfast.store.threads import OrderBy, ThreadFilter
from holdfast.store.transaction import Database, IntegrityError, Transaction

from .world import NOW, a_message, add_agent, add_conversation, call, look, say, until_somebody_waits, walk


async def conversation_of(database: Database, *texts: str) -> tuple[str, str, list[str]]:
    """(agent, thread, message ids): a system message and what was said after it."""
    agent_id = await add_agent(database)
    thread_id = await add_conversation(database, agent_id)
    said = [a_message("system", "system"), *(a_message(text) for text in texts)]
    return agent_id, thread_id, await say(database, thread_id, agent_id, said)


async def history(database: Database, thread_id: str) -> list[str]:
    page = Page(limit=None, order="asc")
    return [message.id for message in await look(database, messages.list_of_thread, thread_id, page)]


async def test_a_thread_comes_back_as_it_was_stored_and_as_it_was_changed(database: Database) -> None:
    agent_id = await add_agent(database)
    thread = Thread(
        id=ids.new("conv"),
        agent_id=agent_id,
        summary="about ö",
        model="openai/gpt-5",
        model_settings={"temperature": 0.5},
        context_window_limit=9_000,
        isolated_block_ids=("block-1", "block-2"),
        hidden=True,
        created_us=NOW,
        updated_us=NOW,
    )
    await call(database, threads.insert, thread)
    assert await look(database, threads.get, thread.id) == thread
    changed = msgspec.structs.replace(
        thread, summary=None, model_settings=None, hidden=None, archived_us=NOW + 1, updated_us=NOW + 2
    )
    await call(database, threads.update, changed)
    assert await look(database, threads.get, thread.id) == changed


async def test_an_unknown_thread_is_not_found(database: Database) -> None:
    assert await look(database, threads.find, "conv-none") is None
    for function, given in (
        (threads.get, "conv-none"),
        (threads.update, Thread(id="conv-none", agent_id="agent-none")),
    ):
        with pytest.raises(NotFound, match="conv-none"):
            await call(database, function, given)
    with pytest.raises(NotFound):
        await call(database, threads.append, "conv-none", ["message-none"])
    with pytest.raises(NotFound):
        await call(database, threads.soft_delete, "conv-none", NOW)


async def test_a_thread_knows_how_far_it_has_come(database: Database) -> None:
    agent_id = await add_agent(database)
    await say(database, agent_id, agent_id, [a_message(), a_message(), a_message()])
    await call(database, threads.set_system_digest, agent_id, "abc")
    standing = await look(database, threads.head, agent_id)
    assert (standing.thread.id, standing.end, standing.system_digest) == (agent_id, 3, "abc")
    with pytest.raises(NotFound):
        await look(database, threads.head, "conv-none")


async def test_a_thread_is_extended_only_from_where_it_ends(database: Database) -> None:
    agent_id = await add_agent(database)
    await say(database, agent_id, agent_id, [a_message()])
    with pytest.raises(Busy):
        await database.write(lambda tx: threads.extend(tx, agent_id, 0, 1, NOW + 1, otherwise=Busy(None)))
    await database.write(lambda tx: threads.extend(tx, agent_id, 1, 2, NOW + 2, otherwise=Busy(None)))
    standing = await look(database, threads.head, agent_id)
    assert (standing.end, standing.thread.last_message_us) == (3, NOW + 2)


async def test_every_change_of_a_window_moves_the_end_of_its_history(database: Database) -> None:
    agent_id, thread_id, said = await conversation_of(database, "one", "two", "three")
    summary = a_message("so far", "summary")
    await call(database, messages.insert_many, agent_id, [summary])

    async def end() -> int:
        return (await look(database, threads.head, thread_id)).end

    ends = [await end()]
    for function, *given in (
        (messages.replace_parts, said[0], (Text("another"),)),
        (threads.replace_window, thread_id, said[1:2], summary.id),
        (threads.replace_window, thread_id, said[2:3]),
        (threads.reset_window, thread_id),
    ):
        await call(database, function, *given)
        ends.append(await end())
    assert ends == sorted(set(ends))


async def test_appended_messages_are_the_window_in_order(database: Database) -> None:
    agent_id, thread_id, said = await conversation_of(database, "one", "two")
    more = await say(database, thread_id, agent_id, [a_message("three")])
    assert await look(database, threads.window_ids, thread_id) == said + more
    window: list[Message] = await look(database, threads.window, thread_id)
    assert [message.id for message in window] == said + more
    assert await look(database, threads.count_messages, thread_id) == 4
    assert await look(database, threads.windows_ids, [thread_id, agent_id]) == {thread_id: said + more, agent_id: []}


async def test_concurrent_appends_never_share_a_position(database: Database) -> None:
    agent_id = await add_agent(database)
    await asyncio.gather(*(say(database, agent_id, agent_id, [a_message(), a_message()]) for _ in range(20)))
    assert len(await look(database, threads.window_ids, agent_id)) == 40


async def test_a_reserved_position_is_filled_later_and_shows_in_its_place(database: Database) -> None:
    agent_id, thread_id, said = await conversation_of(database, "call")
    late, after = a_message("return", "tool"), a_message("after")
    gap = await call(database, threads.reserve, thread_id, 1)
    (after_id,) = await say(database, thread_id, agent_id, [after])
    assert await look(database, threads.window_ids, thread_id) == [*said, after_id]
    await call(database, messages.insert_many, agent_id, [late])
    await call(database, threads.place, thread_id, [(gap, late.id)])
    assert await look(database, threads.window_ids, thread_id) == [*said, late.id, after_id]
    assert await history(database, thread_id) == [*said, late.id, after_id]
    with pytest.raises(IntegrityError):
        await call(database, threads.place, thread_id, [(gap + 10, late.id)])


async def test_a_summary_stands_where_the_last_message_it_replaced_stood(database: Database) -> None:
    agent_id, thread_id, said = await conversation_of(database, "one", "two", "three", "four")
    summary = a_message("so far", "summary")
    await call(database, messages.insert_many, agent_id, [summary])
    await call(database, threads.replace_window, thread_id, said[1:4], summary.id)
    assert await look(database, threads.window_ids, thread_id) == [said[0], summary.id, said[4]]
    assert await history(database, thread_id) == [*said, summary.id]
    later = await say(database, thread_id, agent_id, [a_message("five")])
    again = a_message("so far, again", "summary")
    await call(database, messages.insert_many, agent_id, [again])
    await call(database, threads.replace_window, thread_id, [summary.id, said[4]], again.id)
    assert await look(database, threads.window_ids, thread_id) == [said[0], again.id, *later]


async def test_messages_can_leave_the_window_without_a_summary(database: Database) -> None:
    _, thread_id, said = await conversation_of(database, "one", "two")
    await call(database, threads.replace_window, thread_id, said[1:2])
    assert await look(database, threads.window_ids, thread_id) == [said[0], said[2]]
    with pytest.raises(BugError):
        await call(database, threads.replace_window, thread_id, said[1:2])


async def test_a_reset_keeps_the_system_message_and_all_of_history(database: Database) -> None:
    agent_id, thread_id, said = await conversation_of(database, "one", "two")
    await call(database, threads.reset_window, thread_id)
    assert await look(database, threads.window_ids, thread_id) == said[:1]
    assert await history(database, thread_id) == said
    more = await say(database, thread_id, agent_id, [a_message("new start")])
    assert await look(database, threads.window_ids, thread_id) == [said[0], *more]


async def test_a_reset_of_one_thread_leaves_others_alone(database: Database) -> None:
    _, first, _ = await conversation_of(database, "one")
    _, second, said = await conversation_of(database, "one")
    await call(database, threads.reset_window, first)
    assert await look(database, threads.window_ids, second) == said


async def fork(database: Database, agent_id: str, source_id: str, until: str | None = None) -> tuple[str, str]:
    """(thread, its own system message)"""
    target = await add_conversation(database, agent_id)
    (system,) = await say(database, target, agent_id, [a_message("new system", "system")])
    await call(database, threads.fork, source_id, target, until)
    return target, system


async def test_a_fork_shares_the_window_after_the_system_message(database: Database) -> None:
    agent_id, source, said = await conversation_of(database, "one", "two", "three")
    await call(database, threads.replace_window, source, said[1:2])
    target, system = await fork(database, agent_id, source)
    assert await look(database, threads.window_ids, target) == [system, *said[2:]]
    assert await history(database, source) == said
    ahead = await say(database, target, agent_id, [a_message("ahead")])
    assert await look(database, threads.window_ids, target) == [system, *said[2:], *ahead]
    assert await look(database, threads.window_ids, source) == [said[0], *said[2:]]


async def test_a_fork_can_end_at_a_message(database: Database) -> None:
    agent_id, source, said = await conversation_of(database, "one", "two", "three")
    target, system = await fork(database, agent_id, source, said[2])
    assert await look(database, threads.window_ids, target) == [system, said[1], said[2]]
    with pytest.raises(NotFound, match="message-none"):
        await fork(database, agent_id, source, "message-none")


async def test_a_deleted_thread_is_gone_with_the_messages_that_only_it_held(database: Database) -> None:
    agent_id, source, said = await conversation_of(database, "one", "two")
    target, system = await fork(database, agent_id, source, said[1])
    await call(database, threads.soft_delete, source, NOW)
    with pytest.raises(NotFound):
        await look(database, threads.get, source)
    with pytest.raises(NotFound):
        await call(database, threads.soft_delete, source, NOW)
    assert [message.id for message in await look(database, messages.find_many, said)] == [said[1]]
    assert await look(database, threads.window_ids, target) == [system, said[1]]
    assert await look(database, threads.window_ids, source) == []
    await call(database, threads.soft_delete, target, NOW)
    assert await look(database, messages.find_many, [*said, system]) == []


async def test_a_thread_that_is_forked_while_it_is_deleted_leaves_the_fork_its_messages(postgres_url: str) -> None:
    """SQLite has one writer. On PostgreSQL the deletion must wait before it looks who else holds the messages."""
    database = await open_database(postgres_url)
    agent_id, source, said = await conversation_of(database, "one", "two")
    target = await add_conversation(database, agent_id)
    forked, waited = asyncio.Event(), asyncio.Event()

    async def fork_slowly(tx: Transaction) -> None:
        await threads.fork(tx, source, target)
        forked.set()
        await waited.wait()

    forking = asyncio.create_task(database.write(fork_slowly))
    await forked.wait()
    deleting = asyncio.create_task(call(database, threads.soft_delete, source, NOW))
    await until_somebody_waits(postgres_url, deleting)
    waited.set()
    await forking
    await deleting
    assert await look(database, threads.window_ids, target) == said[1:]
    await database.aclose()


async def test_the_system_digest_is_kept(database: Database) -> None:
    agent_id = await add_agent(database)
    assert await look(database, threads.system_digest, agent_id) is None
    await call(database, threads.set_system_digest, agent_id, "abc")
    assert await look(database, threads.system_digest, agent_id) == "abc"


async def test_an_interrupted_transaction_leaves_store_and_window_in_step(database: Database) -> None:
    agent_id, thread_id, said = await conversation_of(database, "one")
    new = a_message("half done")

    async def job(tx: Transaction) -> None:
        await messages.insert_many(tx, agent_id, [new])
        await threads.append(tx, thread_id, [new.id])
        raise NotFound("interrupted")

    with pytest.raises(NotFound):
        await database.write(job)
    assert await look(database, threads.window_ids, thread_id) == said
    assert await look(database, messages.find_many, [new.id]) == []


async def test_every_filter_of_the_conversation_list_narrows_it(database: Database) -> None:
    ada, bob = await add_agent(database), await add_agent(database)
    plain = await add_conversation(database, ada, summary="Travel to 100%_sure places")
    archived = await add_conversation(database, ada, archived_us=NOW, hidden=False)
    hidden = await add_conversation(database, bob, hidden=True)
    deleted = await add_conversation(database, bob)
    await call(database, threads.soft_delete, deleted, NOW)

    async def shown(**filters: Any) -> set[str]:
        return {thread.id for thread in await look(database, threads.list_threads, ThreadFilter(**filters), Page())}

    assert await shown() == {plain, archived, hidden}
    assert await shown(agent_id=ada) == {plain, archived}
    assert await shown(summary_search="tRAVEL") == {plain}
    assert await shown(summary_search="100%_s") == {plain}
    assert await shown(summary_search="1_0") == set()
    assert await shown(archive_status="archived") == {archived}
    assert await shown(archive_status="unarchived") == {plain, hidden}
    assert await shown(show_hidden=False) == {plain, archived}


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("order_by", ["created_at", "last_run_completion", "last_message_at"])
async def test_iterating_conversations_yields_each_once(database: Database, order: Any, order_by: OrderBy) -> None:
    agent_id = await add_agent(database)
    made = [
        await add_conversation(
            database,
            agent_id,
            created_us=NOW + number // 2,
            last_message_us=NOW - number if number % 3 else None,
            last_run_completion_us=NOW + number if number % 2 else None,
        )
        for number in range(7)
    ]

    async def fetch(**cursors: Any) -> list[Thread]:
        page = Page(limit=2, order=order, **cursors)
        return await look(database, threads.list_threads, ThreadFilter(agent_id=agent_id), page, order_by)

    walked = await walk(fetch)
    assert sorted(walked) == sorted(made)
    if order_by == "last_message_at":
        dated = [made[number] for number in (5, 4, 2, 1)]
        assert walked[:4] == (dated if order == "asc" else dated[::-1])
