"""Messages: every kind of part survives, lists are walked exactly once, search finds what a reader sees."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import ids
from holdfast.core.messages import (
    Approve,
    ClientReturn,
    CompactionStats,
    Deny,
    Image,
    Message,
    OmittedReasoning,
    Parts,
    Reasoning,
    RedactedReasoning,
    Summary,
    Text,
    ToolCall,
    ToolReturn,
)
from holdfast.errors import NotFound
from holdfast.store import messages
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, IntegrityError

from .world import NOW, a_message, add_agent, add_conversation, call, look, say, walk

EVERY_PART: Parts = (
    Text('quotes " and \\ and \n and ö and 🦀', "signature"),
    Image("image/png", "aGk=", "low"),
    Reasoning("hm", "sig"),
    RedactedReasoning("xyz"),
    OmittedReasoning("sig"),
    ToolCall("call-1", "mail", '{"to":  "you"}'),
    ToolReturn("call-1", "mail", "error", (Text("see"), Image("image/png", "aGk=")), ("out",), ("err",)),
    ToolReturn("call-2", "dice", "success", "4"),
    Approve("call-1", "fine"),
    Deny("call-2", "no"),
    ClientReturn("call-3", "done", "error"),
    Summary("so far", CompactionStats("manual", 1, 2, 3, 4, None), True),
)


async def test_a_message_comes_back_as_it_was_stored(database: Database) -> None:
    agent_id = await add_agent(database)
    message = Message(
        id=ids.new("message"),
        role="assistant",
        parts=EVERY_PART,
        created_us=NOW,
        run_id="run-1",
        step_id="step-1",
        otid="o",
        name="n",
        sender_id="s",
        group_id="g",
        batch_item_id="b",
        model="openai/gpt-5",
    )
    await call(database, messages.insert_many, agent_id, [message, a_message()])
    assert await look(database, messages.get, message.id) == message
    assert await look(database, messages.count_of_agent, agent_id) == 2


async def test_an_id_is_stored_once(database: Database) -> None:
    agent_id, message = await add_agent(database), a_message()
    await call(database, messages.insert_many, agent_id, [message])
    with pytest.raises(IntegrityError):
        await call(database, messages.insert_many, agent_id, [message])


async def test_many_are_found_in_the_order_asked_for(database: Database) -> None:
    agent_id = await add_agent(database)
    said = await say(database, agent_id, agent_id, [a_message(), a_message(), a_message()])
    wanted = [said[2], "message-none", said[0]]
    assert [message.id for message in await look(database, messages.find_many, wanted)] == [said[2], said[0]]
    assert await look(database, messages.find_many, []) == []


async def test_an_unknown_message_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound, match="message-none"):
        await look(database, messages.get, "message-none")
    with pytest.raises(NotFound):
        await call(database, messages.replace_parts, "message-none", ())


async def test_a_tool_row_gathers_its_returns(database: Database) -> None:
    agent_id, row = await add_agent(database), a_message(role="tool", parts=())
    await call(database, messages.insert_many, agent_id, [row])
    returns = (ToolReturn("call-1", "dice", "success", "4"), ToolReturn("call-2", "dice", "error", "no"))
    await call(database, messages.replace_parts, row.id, returns)
    assert (await look(database, messages.get, row.id)).returns == returns


async def test_threads_of_a_message_are_known(database: Database) -> None:
    agent_id = await add_agent(database)
    talk = await add_conversation(database, agent_id)
    own, other = (
        await say(database, agent_id, agent_id, [a_message()]),
        await say(database, talk, agent_id, [a_message()]),
    )
    assert await look(database, messages.threads_of, own + other) == {own[0]: [agent_id], other[0]: [talk]}


async def two_threads(database: Database) -> tuple[str, str, list[str], list[str]]:
    """(agent, conversation, the agent's own messages, the conversation's), said in turns and all at one instant."""
    agent_id = await add_agent(database)
    talk = await add_conversation(database, agent_id)
    own: list[str] = []
    other: list[str] = []
    for _ in range(7):
        own += await say(database, agent_id, agent_id, [a_message(run_id="run-1", step_id="step-1")])
        other += await say(database, talk, agent_id, [a_message(run_id="run-2", step_id="step-2")])
    return agent_id, talk, own, other


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_iterating_any_message_list_yields_each_once(database: Database, order: Any, limit: int) -> None:
    agent_id, talk, own, other = await two_threads(database)
    everything = [each for pair in zip(own, other, strict=True) for each in pair]
    lists = (
        (messages.list_of_thread, talk, other),
        (messages.list_of_run, "run-1", own),
        (messages.list_of_step, "step-2", other),
        (messages.list_of_agent, agent_id, everything),
        (messages.list_of_agent, None, everything),
    )
    for function, owner, expected in lists:

        async def fetch(_function: Any = function, _owner: str | None = owner, **cursors: Any) -> list[Message]:
            return await look(database, _function, _owner, Page(limit=limit, order=order, **cursors))

        shown = expected if order == "asc" else expected[::-1]
        assert await walk(fetch) == shown
        assert await walk(fetch, before=shown[-1]) == shown[:-1]


async def test_an_agents_own_messages_are_shown_oldest_first_with_cursors_in_time(database: Database) -> None:
    agent_id, _, own, other = await two_threads(database)

    async def shown(**given: Any) -> list[str]:
        page = Page(limit=3, chronological=True, **given)
        return [message.id for message in await look(database, messages.list_of_thread, agent_id, page)]

    assert await shown() == own[-3:]
    assert await shown(order="asc") == own[:3]
    assert await shown(after=own[1]) == own[2:5]
    assert await shown(before=own[4]) == own[1:4]
    assert await shown(after=own[-1]) == []
    with pytest.raises(NotFound):
        await shown(after=other[0])


async def test_an_unknown_cursor_is_not_found_in_every_list(database: Database) -> None:
    agent_id, talk, own, other = await two_threads(database)
    for function, owner, foreign in (
        (messages.list_of_thread, talk, own[0]),
        (messages.list_of_run, "run-1", other[0]),
        (messages.list_of_step, "step-1", other[0]),
        (messages.list_of_agent, agent_id, "message-none"),
    ):
        with pytest.raises(NotFound, match=foreign):
            await look(database, function, owner, Page(after=foreign))


@pytest.fixture
async def library(database: Database) -> tuple[Database, str, dict[str, str]]:
    agent_id = await add_agent(database)
    rows: dict[str, Message] = {
        "greeting": a_message("Grüße AUS Köln", created_us=NOW),
        "quoted": a_message('He said "Stop\\Go" 100% sure', "assistant", created_us=NOW + 1),
        "tool": a_message(role="tool", parts=(ToolReturn("c", "dice", "success", "rolled FOUR"),), created_us=NOW + 2),
        "thought": a_message(role="assistant", parts=(Reasoning("secretly"), Text("said")), created_us=NOW + 3),
        "call": a_message(role="assistant", parts=(ToolCall("c", "mail", '{"text": "hidden"}'),), created_us=NOW + 4),
        "chinese": a_message("今天天气很好", created_us=NOW + 5),
        "summary": a_message(role="summary", parts=(Summary("We spoke of kind parts"),), created_us=NOW + 6),
    }
    await say(database, agent_id, agent_id, list(rows.values()))
    return database, agent_id, {message.id: name for name, message in rows.items()}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("aus köln", ["greeting"]),
        ("GRÜSSE", []),
        ("grÜße", ["greeting"]),
        ('"stop\\go"', ["quoted"]),
        ("100%", ["quoted"]),
        ("1_0", []),
        ("four", ["tool"]),
        ("secretly", []),
        ("hidden", []),
        ("tool_return", []),
        ("天气", ["chinese"]),
        ("kind parts", ["summary"]),
        ("kind", ["summary"]),
        ("SAID", ["thought", "quoted"]),
        ("ü", ["greeting"]),
    ],
)
async def test_search_finds_what_a_reader_sees_newest_first(
    library: tuple[Database, str, dict[str, str]], wanted: str, found: list[str]
) -> None:
    database, agent_id, names = library
    assert [names[message.id] for message in await look(database, messages.search, agent_id, wanted)] == found


async def test_search_is_narrowed_by_role_time_owner_and_limit(library: tuple[Database, str, dict[str, str]]) -> None:
    database, agent_id, names = library

    async def shown(owner: str | None = agent_id, **given: Any) -> list[str]:
        return [names[message.id] for message in await look(database, messages.search, owner, **given)]

    assert await shown(roles=["user", "tool"]) == ["chinese", "tool", "greeting"]
    assert await shown(start_us=NOW + 1, end_us=NOW + 2) == ["tool", "quoted"]
    assert await shown(text="said", limit=1) == ["thought"]
    assert await shown(None, text="four") == ["tool"]
    assert await shown("agent-other") == []
    assert await shown(thread_id=agent_id, text="four") == ["tool"]
    assert await shown(thread_id="conv-other") == []


async def test_search_looks_past_rows_that_only_seem_to_match(database: Database) -> None:
    agent_id = await add_agent(database)
    decoys = [a_message(role="assistant", parts=(Reasoning("needle"),)) for _ in range(450)]
    (first,) = await say(database, agent_id, agent_id, [a_message("the needle")])
    await say(database, agent_id, agent_id, decoys)
    assert [message.id for message in await look(database, messages.search, agent_id, "needle")] == [first]
