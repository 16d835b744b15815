"""Agents, their tags and their secrets, on both databases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import ids
from holdfast.core.hold import Hold
from holdfast.core.records import Agent, CompactionSettings, ModelChoice, Thread
from holdfast.core.tool_rules import ChildArguments, Children, RequiresApproval, RunFirst
from holdfast.errors import NotFound
from holdfast.store import agents, holds, threads
from holdfast.store.agents import AgentFilter, PendingRequest, SealedSecret
from holdfast.store.paging import Page
from holdfast.store.statements import insert_into
from holdfast.store.tables import holds as hold_table
from holdfast.store.transaction import Database, Transaction

from .world import NOW, a_message, add_run, call, look, say, walk

INSERT_HOLD = insert_into(hold_table)


def an_agent(**fields: Any) -> Agent:
    known: dict[str, Any] = {
        "id": ids.new("agent"),
        "name": "ada",
        "agent_type": "letta_v1_agent",
        "system": "Be brief.",
        "model": ModelChoice(handle="holdfast/offline", context_window=32_000),
        "created_us": NOW,
        "updated_us": NOW,
    }
    return Agent(**known | fields)


async def add(database: Database, **fields: Any) -> Agent:
    agent = an_agent(**fields)
    await call(database, agents.insert, agent)
    return agent


async def listed(database: Database, order_by: Any = "created_at", **filters: Any) -> set[str]:
    found = await look(database, agents.list_agents, AgentFilter(**filters), Page(), order_by)
    assert await look(database, agents.count_agents, AgentFilter(**filters)) == len(found)
    return {agent.id for agent in found}


async def test_an_agent_comes_back_as_it_went_in(database: Database) -> None:
    agent = await add(
        database,
        model=ModelChoice(
            handle="openai/gpt-4o",
            context_window=64_000,
            max_output_tokens=100,
            temperature=0.5,
            parallel_tool_calls=True,
            response_format={"type": "text"},
            settings={"provider_type": "openai"},
        ),
        embedding="openai/small",
        embedding_config={"embedding_dim": 3},
        description="d",
        metadata={"a": [1, None]},
        tool_rules=(
            RunFirst(tool_name="a", args={"x": 1}),
            Children(tool_name="b", children=("c",), child_arg_nodes=(ChildArguments("c", {"y": 2}),)),
            RequiresApproval(tool_name="d"),
        ),
        compaction=CompactionSettings(mode="all", prompt="Short."),
        timezone="Europe/Berlin",
        message_buffer_autoclear=True,
        enable_sleeptime=False,
        max_files_open=3,
        per_file_view_window_char_limit=2**31 - 1,
        hidden=True,
        project_id="p",
        template_id="t",
        base_template_id="b",
    )
    assert await look(database, agents.get, agent.id) == agent


async def test_an_unknown_agent_is_not_found(database: Database) -> None:
    stranger = ids.new("agent")
    for function in (agents.get, agents.require):
        with pytest.raises(NotFound, match=r"^Agent not found$"):
            await call(database, function, stranger)
    with pytest.raises(NotFound, match=r"^Agent not found$"):
        await call(database, agents.delete_agent, stranger, NOW)


async def test_an_edit_does_not_undo_the_end_of_a_run(database: Database) -> None:
    agent = await add(database)
    await call(database, threads.insert, Thread(id=agent.id, agent_id=agent.id, created_us=NOW, updated_us=NOW))
    await call(database, agents.record_last_run, agent.id, "max_steps", NOW + 5, 7_000)
    await call(database, agents.update_agent, msgspec.structs.replace(agent, name="eva", updated_us=NOW + 9))
    found = await look(database, agents.get, agent.id)
    assert (found.name, found.updated_us) == ("eva", NOW + 9)
    assert (found.last_stop_reason, found.last_run_completion_us) == ("max_steps", NOW + 5)


async def test_every_filter_narrows_the_list(database: Database) -> None:
    plain = await add(database, name="Plain 100%", created_us=NOW + 1)
    marked = await add(
        database,
        name="Marked",
        project_id="p",
        template_id="t",
        base_template_id="b",
        last_stop_reason="end_turn",
        created_us=NOW + 2,
    )
    hidden = await add(database, name="Hidden", hidden=True, created_us=NOW + 3)
    await call(database, agents.set_tags, plain.id, ("x",))
    await call(database, agents.set_tags, marked.id, ("x", "y"))
    assert await listed(database) == {plain.id, marked.id}
    assert await listed(database, show_hidden=True) == {plain.id, marked.id, hidden.id}
    assert await listed(database, name="Marked") == {marked.id}
    assert await listed(database, name="marked") == set()
    assert await listed(database, query_text="ARK") == {marked.id}
    assert await listed(database, query_text="100%") == {plain.id}
    assert await listed(database, query_text="%") == {plain.id}
    assert await listed(database, tags=("x", "y")) == {plain.id, marked.id}
    assert await listed(database, tags=("x", "y", "y"), match_all_tags=True) == {marked.id}
    assert await listed(database, project_id="p", template_id="t", base_template_id="b") == {marked.id}
    assert await listed(database, last_stop_reason="end_turn") == {marked.id}
    assert await listed(database, last_stop_reason="error") == set()


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("order_by", ["created_at", "updated_at", "last_run_completion"])
async def test_walking_the_list_meets_every_agent_once(database: Database, order: Any, order_by: Any) -> None:
    added = [
        await add(
            database,
            created_us=NOW + index // 2,
            updated_us=NOW - index,
            last_run_completion_us=NOW + index if index % 3 else None,
        )
        for index in range(7)
    ]

    async def page(**cursor: str) -> list[Agent]:
        asked = Page(limit=2, order=order, **cursor)  # type: ignore[arg-type]
        return await look(database, agents.list_agents, AgentFilter(), asked, order_by)

    seen = await walk(page)
    assert sorted(seen) == sorted(agent.id for agent in added)
    if order_by == "last_run_completion":
        never = {agent.id for agent in added if agent.last_run_completion_us is None}
        assert set(seen[-len(never) :]) == never


async def test_an_unknown_cursor_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound):
        await look(database, agents.list_agents, AgentFilter(), Page(after=ids.new("agent")))


async def test_tags_replace_one_another(database: Database) -> None:
    agent = await add(database)
    await call(database, agents.set_tags, agent.id, ("b", "a", "b"))
    assert await look(database, agents.tags_of, (agent.id,)) == {agent.id: ["a", "b"]}
    await call(database, agents.set_tags, agent.id, ("c",))
    assert await look(database, agents.tags_of, (agent.id,)) == {agent.id: ["c"]}
    await call(database, agents.set_tags, agent.id, ())
    assert await look(database, agents.tags_of, (agent.id,)) == {}


async def test_secrets_are_kept_as_the_bytes_given(database: Database) -> None:
    agent = await add(database)
    secrets = [SealedSecret("agent-env-1", "A", b"\x00\xff"), SealedSecret("agent-env-2", "B", b"b", "why")]
    await call(database, agents.set_secrets, agent.id, secrets)
    assert await look(database, agents.secrets_of, (agent.id,)) == {agent.id: secrets}
    await call(database, agents.set_secrets, agent.id, secrets[:1])
    assert await look(database, agents.secrets_of, (agent.id,)) == {agent.id: secrets[:1]}


async def test_only_an_open_hold_of_the_default_thread_is_pending(database: Database) -> None:
    agent = await add(database)
    await call(database, threads.insert, Thread(id=agent.id, agent_id=agent.id, created_us=NOW, updated_us=NOW))
    request = a_message(role="approval")
    await say(database, agent.id, agent.id, [request])
    run = await add_run(database, agent.id)
    assert await look(database, agents.pending_approvals_of, (agent.id,)) == {}
    await call(database, _hold, run.id, agent.id, request.id)
    assert await look(database, agents.pending_approvals_of, (agent.id,)) == {agent.id: PendingRequest(request, ())}
    await call(database, holds.decide, run.id, NOW + 1, None)
    assert await look(database, agents.pending_approvals_of, (agent.id,)) == {}


async def test_a_deleted_agent_takes_its_threads_along(database: Database) -> None:
    agent = await add(database)
    await call(database, threads.insert, Thread(id=agent.id, agent_id=agent.id, created_us=NOW, updated_us=NOW))
    await say(database, agent.id, agent.id, [a_message()])
    await call(database, agents.delete_agent, agent.id, NOW)
    assert await look(database, threads.find, agent.id) is None
    assert await listed(database) == set()


async def _hold(tx: Transaction, run_id: str, agent_id: str, request_id: str) -> None:
    from_row = {
        "run_id": run_id,
        "thread_id": agent_id,
        "agent_id": agent_id,
        "request_id": request_id,
        "hold": msgspec.json.encode(Hold(request_id, "step-1", ())).decode(),
        "asked_us": NOW,
    }
    await tx.execute(INSERT_HOLD, from_row)


async def test_pages_are_the_same_whether_few_or_many_agents_have_a_tag_or_a_word_in_their_name(
    database: Database,
) -> None:
    """Tags and words that many agents have are found in another way."""
    made = [
        an_agent(
            id=f"agent-{number:04}",
            name=f"Agent {number}{' of the Quay' if number % 100 == 7 else ''}",
            created_us=number,
            updated_us=number * 7 % 1_201,
        )
        for number in range(1_201)
    ]
    tags = {
        agent.id: [
            tag
            for tag, has in (("all", True), ("half", place % 2 == 0), ("old", place < 600), ("few", place % 100 == 7))
            if has
        ]
        for place, agent in enumerate(made)
    }

    async def write(tx: Transaction) -> None:
        for agent in made:
            await agents.insert(tx, agent)
            await agents.add_tags(tx, agent.id, tags[agent.id])

    await database.write(write)
    for asked in (("all",), ("half", "old"), ("few",), ("few", "all"), ("few", "none"), ("none",), ("all", "none")):
        for match_all in (False, True):
            wanted = [
                agent.id
                for agent in reversed(made)
                if (all if match_all else any)(tag in tags[agent.id] for tag in asked)
            ]
            filters = AgentFilter(tags=asked, match_all_tags=match_all)
            assert await _walked(database, filters) == wanted
            assert await database.read(lambda tx, f=filters: agents.count_agents(tx, f)) == len(wanted)
    by_change = sorted(made, key=lambda agent: (agent.updated_us, agent.id), reverse=True)
    assert await _walked(database, AgentFilter(tags=("old",)), "updated_at") == [
        agent.id for agent in by_change if "old" in tags[agent.id]
    ]
    for text in ("agent", "quay", "Quay", "AGENT 12", "%", "nowhere"):
        wanted = [agent.id for agent in reversed(made) if text.lower() in agent.name.lower()]
        assert await _walked(database, AgentFilter(query_text=text)) == wanted
    both = AgentFilter(query_text="quay", tags=("half",))
    assert await _walked(database, both) == []


async def _walked(database: Database, filters: AgentFilter, order_by: agents.OrderBy = "created_at") -> list[str]:
    met: list[str] = []
    cursor: str | None = None
    while True:
        page = Page(limit=400, after=cursor)
        found = await database.read(lambda tx, page=page: agents.list_agents(tx, filters, page, order_by))
        if not found:
            return met
        met += [agent.id for agent in found]
        cursor = met[-1]
