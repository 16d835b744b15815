"""Conversations: histories of one agent that do not see each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from letta_client import BadRequestError, ConflictError, NotFoundError

from holdfast import ids

from ..served import ServedClient, run_of, served

SECRET = 'def open_door() -> str:\n    """Open the door."""\n    return "opened"\n'


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def talk(client: ServedClient, conversation_id: str, text: str, **options: Any) -> list[Any]:
    stream = await client.conversations.messages.create(conversation_id, input=text, **options)
    return [event async for event in stream]


async def texts(client: ServedClient, conversation_id: str, **query: Any) -> list[str]:
    rows = await client.ask("GET", f"/v1/conversations/{conversation_id}/messages", **query)
    return [row["content"] for row in rows if row["message_type"] in ("user_message", "assistant_message")]


async def test_a_new_conversation_holds_its_own_system_message_and_nothing_else(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id, summary="plans")
    assert conversation.id.startswith("conv-")
    assert conversation.summary == "plans"
    (system_id,) = conversation.in_context_message_ids or []
    assert system_id not in (agent.message_ids or [])
    (system,) = await client.ask("GET", f"/v1/conversations/{conversation.id}/messages")
    assert system["message_type"] == "system_message"
    assert f"CONVERSATION_ID: {conversation.id}" in system["content"]


async def test_the_agent_must_be_named_and_known(client: ServedClient) -> None:
    assert "agent_id" in await client.refusal(422, "POST", "/v1/conversations/", {})
    with pytest.raises(NotFoundError):
        await client.conversations.create(agent_id=ids.new("agent"))


async def test_conversations_see_neither_each_other_nor_the_default_history(client: ServedClient) -> None:
    agent = await client.agent()
    one = await client.conversations.create(agent_id=agent.id)
    two = await client.conversations.create(agent_id=agent.id)
    await talk(client, one.id, "[[say:first]]")
    await talk(client, two.id, "[[say:second]]")
    await client.say(agent.id, "[[say:third]]")
    assert await texts(client, one.id) == ["first", "[[say:first]]"]
    assert await texts(client, two.id) == ["second", "[[say:second]]"]
    assert await texts(client, "default", agent_id=agent.id) == ["[[say:third]]", "third"]


async def test_a_message_streams_by_default_and_ends_properly(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    events = await talk(client, conversation.id, "hello [[no_reasoning]]")
    kinds = [event.message_type for event in events]
    assert kinds == ["ping", "assistant_message", "stop_reason", "usage_statistics"]
    (run,) = [run async for run in client.runs.list(conversation_id=conversation.id)]
    assert (run.status, run.conversation_id) == ("completed", conversation.id)
    assert (run.metadata or {})["run_type"] == "send_conversation_message"
    known = await client.conversations.retrieve(conversation.id)
    assert known.last_message_at is not None
    assert len(known.in_context_message_ids or []) == 3


async def test_a_blocking_message_is_answered_with_json(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    answer = await client.ask(
        "POST", f"/v1/conversations/{conversation.id}/messages", {"input": "[[say:hi]]", "streaming": False}
    )
    assert answer["messages"][-1]["content"] == "hi"
    assert answer["stop_reason"]["stop_reason"] == "end_turn"


@pytest.mark.parametrize("alias", [False, True], ids=["default", "agent id"])
async def test_the_default_history_has_two_other_names(client: ServedClient, alias: bool) -> None:
    agent = await client.agent()
    name, named = (agent.id, {}) if alias else ("default", {"agent_id": agent.id})
    await talk(client, name, "[[say:here]]", **named)
    assert await texts(client, name, **named) == ["[[say:here]]", "here"]
    (run,) = [run async for run in client.runs.list(agent_id=agent.id)]
    assert run.conversation_id is None
    assert (run.metadata or {})["run_type"] == "send_message"


async def test_default_without_an_agent_is_not_found(client: ServedClient) -> None:
    assert "agent_id" in await client.refusal(404, "POST", "/v1/conversations/default/messages", {"input": "x"})
    assert "agent_id" in await client.refusal(404, "GET", "/v1/conversations/default/messages")


async def test_a_busy_conversation_answers_409_at_once_and_names_the_run(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    stream = await client.conversations.messages.create(conversation.id, input="[[stall]]")
    run_id = await run_of(stream)
    path = f"/v1/conversations/{conversation.id}/messages"
    answer = await client.http.post(path, json={"input": "me too", "streaming": False})
    assert answer.status_code == 409
    assert answer.json()["run_id"] == run_id
    other = await client.conversations.create(agent_id=agent.id)
    assert (await talk(client, other.id, "[[say:free]]"))[-1].message_type == "usage_statistics"
    cancelled = await client.conversations.cancel(conversation.id)
    assert cancelled == {run_id: "cancelled"}
    await stream.close()


async def test_an_idle_conversation_has_nothing_to_cancel(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    with pytest.raises(ConflictError, match="No active runs to cancel"):
        await client.conversations.cancel(conversation.id)


async def test_walking_the_messages_meets_every_row_once(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    for number in range(3):
        await talk(client, conversation.id, f"[[say:reply {number}]] [[no_reasoning]]")
    for order in ("asc", "desc"):
        walked = [row.id async for row in client.conversations.messages.list(conversation.id, limit=2, order=order)]
        assert len(walked) == len(set(walked)) == 7
    newest = await client.ask("GET", f"/v1/conversations/{conversation.id}/messages", limit=1)
    assert newest[0]["content"] == "reply 2"


async def test_only_the_fields_that_were_sent_are_changed(client: ServedClient) -> None:
    agent = await client.agent()
    fields = {"summary": "old", "description": "kept"}
    path = f"/v1/conversations/{(await client.ask('POST', '/v1/conversations/', fields, agent_id=agent.id))['id']}"
    changed = await client.ask("PATCH", path, {"summary": "new", "archived": True})
    assert (changed["summary"], changed["description"], changed["archived"]) == ("new", "kept", True)
    cleared = await client.ask("PATCH", path, {"summary": None, "archived": False})
    assert (cleared["summary"], cleared["archived"], cleared["archived_at"]) == (None, False, None)
    settings = {"model_settings": {"provider_type": "openai", "temperature": "hot"}}
    assert "temperature" in await client.refusal(400, "PATCH", path, settings)
    assert "malformed" in await client.refusal(400, "PATCH", path, {"model": "nonsense"})
    assert "not found" in await client.refusal(404, "PATCH", path, {"model": "acme/nothing"})


async def test_conversations_are_listed_newest_first_and_filtered(client: ServedClient) -> None:
    agent, stranger = await client.agent(), await client.agent()
    made = [(await client.conversations.create(agent_id=agent.id, summary=f"talk {n}")).id for n in range(3)]
    await client.conversations.create(agent_id=stranger.id)
    await client.conversations.update(made[0], archived=True)
    assert [one.id for one in await client.conversations.list(agent_id=agent.id)] == made[::-1]
    assert [one.id for one in await client.conversations.list(agent_id=agent.id, after=made[1])] == [made[0]]
    assert [one.id for one in await client.conversations.list(summary_search="TALK 1")] == [made[1]]
    kept = await client.conversations.list(agent_id=agent.id, archive_status="unarchived")
    assert [one.id for one in kept] == made[:0:-1]


async def test_a_deleted_conversation_is_gone_for_every_route(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    await talk(client, conversation.id, "hello")
    await client.conversations.delete(conversation.id)
    path = f"/v1/conversations/{conversation.id}"
    for method, tail, body in (
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("GET", "/messages", None),
        ("POST", "/messages", {"input": "x"}),
        ("POST", "/fork", None),
        ("POST", "/compact", None),
        ("POST", "/recompile", None),
        ("POST", "/cancel", None),
        ("POST", "/stream", None),
        ("POST", "/messages/preview-raw-payload", {"input": "x"}),
    ):
        assert "not found" in await client.refusal(404, method, path + tail, body)
    assert await client.conversations.list(agent_id=agent.id) == []


async def test_deleting_a_conversation_stops_its_run_first(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    stream = await client.conversations.messages.create(conversation.id, input="[[stall]]")
    run_id = await run_of(stream)
    await client.conversations.delete(conversation.id)
    assert (await client.runs.retrieve(run_id)).status == "cancelled"
    rest = [event.message_type async for event in stream]
    assert rest == ["stop_reason", "usage_statistics"]


async def test_private_blocks_are_copies_that_live_and_die_with_the_conversation(client: ServedClient) -> None:
    agent = await client.agent(memory_blocks=[{"label": "human", "value": "shared"}, {"label": "notes", "value": "-"}])
    made = await client.ask("POST", "/v1/conversations/", {"isolated_block_labels": ["human"]}, agent_id=agent.id)
    (private_id,) = made["isolated_block_ids"]
    assert [block.label async for block in client.agents.blocks.list(agent.id)].count("human") == 1
    await client.blocks.update(private_id, value="private")
    mine = await client.ask("POST", f"/v1/conversations/{made['id']}/recompile")
    theirs = await client.ask("POST", f"/v1/agents/{agent.id}/recompile")
    assert "private" in mine and "shared" not in mine
    assert "shared" in theirs and "private" not in theirs
    await client.conversations.delete(made["id"])
    with pytest.raises(NotFoundError):
        await client.blocks.retrieve(private_id)


async def test_a_private_block_must_be_one_of_the_agents(client: ServedClient) -> None:
    agent = await client.agent(memory_blocks=[{"label": "human", "value": ""}])
    path, body = "/v1/conversations/", {"isolated_block_labels": ["human", "nobody"]}
    assert "nobody" in await client.refusal(400, "POST", path, body, agent_id=agent.id)
    assert await client.conversations.list(agent_id=agent.id) == []


async def test_a_fork_shares_the_messages_and_goes_on_apart(client: ServedClient) -> None:
    agent = await client.agent()
    source = await client.conversations.create(agent_id=agent.id, summary="source")
    await talk(client, source.id, "[[say:common]] [[no_reasoning]]")
    fork = await client.conversations.fork(source.id)
    before = (await client.conversations.retrieve(source.id)).in_context_message_ids or []
    assert fork.summary is None
    assert (fork.in_context_message_ids or [])[1:] == before[1:]
    assert (fork.in_context_message_ids or [])[0] != before[0]
    await talk(client, fork.id, "[[say:apart]] [[no_reasoning]]")
    assert await texts(client, source.id) == ["common", "[[say:common]] [[no_reasoning]]"]
    assert (await texts(client, fork.id))[:2] == ["apart", "[[say:apart]] [[no_reasoning]]"]
    await client.conversations.delete(source.id)
    assert "common" in await texts(client, fork.id)


async def test_forking_the_default_history_leaves_it_as_it_was(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "[[say:kept]]")
    fork = await client.conversations.fork("default", agent_id=agent.id)
    assert await texts(client, "default", agent_id=agent.id) == ["[[say:kept]]", "kept"]
    assert await texts(client, fork.id) == ["kept", "[[say:kept]]"]


async def test_a_fork_says_what_it_was_made_from(client: ServedClient) -> None:
    agent = await client.agent()
    first = await client.conversations.fork("default", agent_id=agent.id)
    second = await client.conversations.fork(first.id)
    await client.conversations.update(second.id, summary="renamed")
    new = await client.conversations.create(agent_id=agent.id)
    listed = {each.id: each.model_dump()["forked_from"] for each in await client.conversations.list(agent_id=agent.id)}
    assert listed == {first.id: agent.id, second.id: first.id, new.id: None}


async def test_a_fork_may_end_at_a_message(client: ServedClient) -> None:
    agent = await client.agent()
    source = await client.conversations.create(agent_id=agent.id)
    for number in range(2):
        await talk(client, source.id, f"[[say:reply {number}]] [[no_reasoning]]")
    window = (await client.conversations.retrieve(source.id)).in_context_message_ids or []
    fork = await client.conversations.fork(source.id, message_id=window[2])
    assert (fork.in_context_message_ids or [])[1:] == window[1:3]
    with pytest.raises(NotFoundError):
        await client.conversations.fork(source.id, message_id=ids.new("message"))


async def test_a_fork_does_not_take_a_pending_approval_along(client: ServedClient) -> None:
    agent = await client.guarded_agent(SECRET)
    source = await client.conversations.create(agent_id=agent.id)
    await talk(client, source.id, "Call open_door")
    fork = await client.conversations.fork(source.id)
    assert len(fork.in_context_message_ids or []) == 2
    assert (await talk(client, fork.id, "[[say:free]]"))[-1].message_type == "usage_statistics"
    with pytest.raises(ConflictError, match="approval"):
        await talk(client, source.id, "and?")


async def test_cancelling_a_pending_approval_frees_the_conversation(client: ServedClient) -> None:
    agent = await client.guarded_agent(SECRET)
    conversation = await client.conversations.create(agent_id=agent.id)
    await talk(client, conversation.id, "Call open_door")
    assert list((await client.conversations.cancel(conversation.id)).values()) == ["cancelled"]
    assert (await talk(client, conversation.id, "[[say:on we go]]"))[-2].stop_reason == "end_turn"


async def test_deleting_a_conversation_withdraws_its_pending_approval(client: ServedClient) -> None:
    agent = await client.guarded_agent(SECRET)
    conversation = await client.conversations.create(agent_id=agent.id)
    await talk(client, conversation.id, "Call open_door")
    (waiting,) = await client.ask("GET", "/v1/approvals/")
    await client.conversations.delete(conversation.id)
    assert await client.ask("GET", "/v1/approvals/") == []
    assert (await client.runs.retrieve(waiting["run_id"])).status == "cancelled"


async def test_compacting_leaves_the_system_message_and_a_summary(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    await talk(client, conversation.id, "[[summary:all that was said]]")
    await talk(client, conversation.id, "more")
    settings = {"compaction_settings": {"mode": "all"}}
    made = await client.ask("POST", f"/v1/conversations/{conversation.id}/compact", settings)
    assert made == {"summary": "all that was said", "num_messages_before": 5, "num_messages_after": 2}
    window = (await client.conversations.retrieve(conversation.id)).in_context_message_ids or []
    assert len(window) == 2
    assert len(await texts(client, conversation.id)) > 2
    with pytest.raises(BadRequestError):
        await client.conversations.messages.compact(conversation.id)


@pytest.mark.slow
async def test_the_stream_of_a_conversation_is_found_by_run_by_otid_or_by_being_active(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    path = f"/v1/conversations/{conversation.id}"
    assert await client.refusal(400, "POST", f"{path}/stream") == "No active runs found for this conversation."
    message = {"role": "user", "content": "hello [[ttft:0.3]]", "otid": "my-key"}
    sending = asyncio.create_task(client.events(f"{path}/messages", {"messages": [message], "background": True}))
    by_otid = await client.events(f"{path}/stream", {"otid": "my-key", "include_pings": False})
    sent = await sending
    assert by_otid == [event for event in sent if not _is_ping(event)]
    assert by_otid[-1] == "[DONE]"
    run_id = next(event["run_id"] for event in sent if isinstance(event, dict))
    assert await client.events(f"{path}/stream", {"run_id": run_id, "include_pings": False}) == by_otid
    again = await client.events(f"{path}/messages", {"messages": [message], "background": True})
    assert [event for event in again if not _is_ping(event)] == by_otid
    assert await client.refusal(404, "POST", f"{path}/stream", {"otid": "other"}) == "No run found for otid=other"


async def test_the_active_run_of_a_conversation_can_be_followed(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    stream = await client.conversations.messages.create(conversation.id, input="[[stall]]", background=True)
    run_id = await run_of(stream)
    following = await client.conversations.messages.stream(conversation.id)
    assert await run_of(following) == run_id
    await client.conversations.cancel(conversation.id)
    rest = [event async for event in following]
    assert [event.message_type for event in rest] == ["stop_reason", "usage_statistics"]
    await stream.close()


async def test_a_preview_shows_the_request_and_stores_nothing(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    path = f"/v1/conversations/{conversation.id}"
    payload = await client.ask("POST", f"{path}/messages/preview-raw-payload", {"input": "what if"})
    assert [message["role"] for message in payload["messages"]] == ["system", "user"]
    assert conversation.id in payload["messages"][0]["content"]
    assert len(await client.ask("GET", f"{path}/messages")) == 1
    assert [run async for run in client.runs.list(agent_id=agent.id)] == []


def _is_ping(event: dict[str, Any] | str) -> bool:
    return isinstance(event, dict) and event["message_type"] == "ping"
