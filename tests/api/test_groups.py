"""Groups: their records, the blocks that they share, and what their agents say about a message; on both databases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast import ids
from tests.served import ServedClient, served

STRANGER = "group-123e4567-e89b-42d3-8456-426614174000"


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url, queue_wait_s=5) as client:
        yield client


async def members(client: ServedClient, *names: str, **fields: Any) -> list[str]:
    return [(await client.agent(name=name, **fields)).id for name in names]


async def a_group(client: ServedClient, agent_ids: list[str], **config: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"agent_ids": agent_ids, "description": "a team"}
    return await client.ask("POST", "/v1/groups/", body | ({"manager_config": config} if config else {}))


async def said(client: ServedClient, group: dict[str, Any], text: str, **options: Any) -> list[str]:
    answer = await client.ask("POST", f"/v1/groups/{group['id']}/messages", {"input": text, **options})
    assert answer["stop_reason"]["stop_reason"] == "end_turn"
    assert answer["usage"]["step_count"] > 0
    return [each["content"] for each in answer["messages"] if each["message_type"] == "assistant_message"]


async def heard(client: ServedClient, agent_id: str) -> list[str]:
    rows: list[Any] = [each async for each in client.agents.messages.list(agent_id, order="asc")]
    return [str(each.content) for each in rows if each.message_type in ("user_message", "system_message")][1:]


class TestRecords:
    async def test_groups_of_every_type_are_stored_and_shown(self, client: ServedClient) -> None:
        one, two, boss = await members(client, "one", "two", "boss")
        plain = await a_group(client, [one, two])
        assert (plain["manager_type"], plain["agent_ids"], plain["description"]) == (
            "round_robin",
            [one, two],
            "a team",
        )
        limited = await a_group(client, [two, one], manager_type="round_robin", max_turns=3)
        assert (limited["agent_ids"], limited["max_turns"]) == ([two, one], 3)
        led = await a_group(client, [one], manager_type="supervisor", manager_agent_id=boss)
        assert led["manager_agent_id"] == boss
        free = await a_group(client, [one], manager_type="dynamic", manager_agent_id=boss)
        assert (free["termination_token"], free["max_turns"]) == ("DONE!", None)
        config = {"manager_type": "sleeptime", "manager_agent_id": boss, "sleeptime_agent_frequency": 3}
        asleep = await a_group(client, [one], **config)
        assert (asleep["sleeptime_agent_frequency"], asleep["turns_counter"]) == (3, -1)
        state = await client.ask("GET", f"/v1/agents/{boss}", include="agent.managed_group")
        assert state["enable_sleeptime"] is True and state["managed_group"] == asleep
        assert await client.ask("GET", "/v1/groups/count") == 5
        listed = await client.ask("GET", "/v1/groups/")
        assert [each["id"] for each in listed] == [each["id"] for each in (plain, limited, led, free, asleep)]
        assert await client.ask("GET", "/v1/groups/", manager_type="dynamic") == [free]
        of_one = await client.ask("GET", f"/v1/agents/{one}/groups")
        assert [each["id"] for each in of_one] == [each["id"] for each in (asleep, free, led, limited, plain)]
        assert await client.ask("GET", f"/v1/agents/{one}/groups", manager_type="sleeptime") == [asleep]
        assert await client.ask("GET", f"/v1/agents/{boss}/groups") == []

    async def test_a_group_is_changed_but_not_its_type(self, client: ServedClient) -> None:
        one, two, boss = await members(client, "one", "two", "boss")
        group = await a_group(client, [one], manager_type="dynamic", manager_agent_id=boss)
        path = f"/v1/groups/{group['id']}"
        config = {"manager_type": "dynamic", "max_turns": 9}
        changed = await client.ask("PATCH", path, {"agent_ids": [two, one], "manager_config": config})
        assert changed == group | {"agent_ids": [two, one], "max_turns": 9}
        assert (await client.ask("PATCH", path, {"description": "x", "project_id": "p"}))["description"] == "x"
        assert await client.ask("GET", "/v1/groups/", project_id="p") == [await client.ask("GET", path)]
        other = {"manager_config": {"manager_type": "round_robin"}}
        assert "cannot be changed" in await client.refusal(400, "PATCH", path, other)
        await client.refusal(404, "PATCH", path, {"agent_ids": [ids.new("agent")]})

    async def test_bad_requests_say_what_is_wrong_and_leave_nothing(self, client: ServedClient) -> None:
        one, boss = await members(client, "one", "boss")
        good: dict[str, Any] = {"agent_ids": [one], "description": "a team"}

        async def refused(status: int, named: str, **fields: Any) -> None:
            body = {name: value for name, value in (good | fields).items() if value is not None}
            assert named in await client.refusal(status, "POST", "/v1/groups/", body)

        def config(kind: str, **fields: Any) -> dict[str, Any]:
            return {"manager_type": kind, **fields}

        await refused(422, "description", description=None)
        await refused(422, "manager_type", manager_config=config("swarm"))
        await refused(422, "manager_agent_id", manager_config=config("supervisor"))
        await refused(422, "max_turns", manager_config=config("round_robin", max_turns=0))
        asleep = config("sleeptime", manager_agent_id=boss)
        await refused(422, "sleeptime_agent_frequency", manager_config=asleep | {"sleeptime_agent_frequency": 0})
        await refused(422, "agent_ids", agent_ids=["one"])
        await refused(400, "at least one", agent_ids=[])
        await refused(404, "agent-", agent_ids=[ids.new("agent")])
        await refused(404, "agent-", manager_config=config("supervisor", manager_agent_id=ids.new("agent")))
        await refused(404, "block-", shared_block_ids=[ids.new("block")])
        await refused(400, "itself", manager_config=config("sleeptime", manager_agent_id=one))
        await refused(400, "agent_ids", manager_config=config("supervisor", manager_agent_id=one))
        await refused(501, "Voice", manager_config=config("voice_sleeptime", manager_agent_id=boss))
        assert await client.ask("GET", "/v1/groups/count") == 0
        for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/messages")):
            await client.refusal(404, method, f"/v1/groups/{STRANGER}{path}", {} if method == "PATCH" else None)
        await client.refusal(404, "POST", f"/v1/groups/{STRANGER}/messages", {"input": "x"})
        await client.refusal(422, "GET", "/v1/groups/group-1")
        await client.refusal(404, "GET", f"/v1/agents/{ids.new('agent')}/groups")
        message = f"/v1/groups/{STRANGER}/messages/{ids.new('message')}"
        assert "cannot be changed" in await client.refusal(405, "PATCH", message, {})

    async def test_agents_do_not_look_after_each_other(self, client: ServedClient) -> None:
        one, two, three = await members(client, "one", "two", "three")
        await a_group(client, [two], manager_type="sleeptime", manager_agent_id=one)

        async def refused(status: int, agent_id: str, manager: str) -> None:
            config = {"manager_type": "sleeptime", "manager_agent_id": manager}
            body = {"agent_ids": [agent_id], "description": "", "manager_config": config}
            await client.refusal(status, "POST", "/v1/groups/", body)

        await refused(400, one, two)
        await refused(400, three, two)
        await refused(400, one, three)
        await refused(409, three, one)
        await client.refusal(400, "PATCH", f"/v1/agents/{two}", {"enable_sleeptime": True})

    async def test_shared_blocks_are_attached_to_all_agents_and_the_manager(self, client: ServedClient) -> None:
        one, two, boss = await members(client, "one", "two", "boss")
        block = await client.ask("POST", "/v1/blocks/", {"label": "plans", "value": ""})
        config = {"manager_type": "supervisor", "manager_agent_id": boss}
        body = {"agent_ids": [one, two], "description": "", "manager_config": config}
        group = await client.ask("POST", "/v1/groups/", body | {"shared_block_ids": [block["id"]]})
        assert group["shared_block_ids"] == [block["id"]]

        async def holders() -> set[str]:
            return {each["id"] for each in await client.ask("GET", f"/v1/blocks/{block['id']}/agents")}

        assert await holders() == {one, two, boss}
        path = f"/v1/groups/{group['id']}/blocks"
        assert await client.ask("PATCH", f"{path}/detach/{block['id']}") is None
        assert await holders() == set()
        assert "not shared" in await client.refusal(404, "PATCH", f"{path}/detach/{block['id']}")
        for _ in range(2):
            assert await client.ask("PATCH", f"{path}/attach/{block['id']}") is None
        assert await holders() == {one, two, boss}
        changed = await client.ask("PATCH", f"/v1/groups/{group['id']}", {"shared_block_ids": []})
        assert changed["shared_block_ids"] == [] and await holders() == set()
        await client.refusal(400, "PATCH", f"{path}/attach/plans")
        await client.refusal(404, "PATCH", f"{path}/attach/{ids.new('block')}")

    async def test_deleted_agents_leave_their_groups_and_a_manager_takes_its_groups_along(
        self, client: ServedClient
    ) -> None:
        one, two, boss = await members(client, "one", "two", "boss")
        group = await a_group(client, [one, two], manager_type="supervisor", manager_agent_id=boss)
        alone = await a_group(client, [one], manager_type="round_robin", max_turns=2)
        await client.ask("DELETE", f"/v1/agents/{one}")
        assert (await client.ask("GET", f"/v1/groups/{group['id']}"))["agent_ids"] == [two]
        path = f"/v1/groups/{alone['id']}/messages"
        assert "no agents" in await client.refusal(400, "POST", path, {"input": "x"})
        await client.ask("DELETE", f"/v1/agents/{boss}")
        await client.refusal(404, "GET", f"/v1/groups/{group['id']}")
        await client.ask("GET", f"/v1/agents/{two}")

    @pytest.mark.parametrize("order", ["asc", "desc"])
    @pytest.mark.parametrize("limit", [1, 2, 7])
    async def test_a_list_is_walked_once_while_groups_come_and_go(
        self, client: ServedClient, limit: int, order: Literal["asc", "desc"]
    ) -> None:
        agents = await members(client, "one")
        there = [(await a_group(client, agents))["id"] for _ in range(8)]
        met: list[str] = []
        cursor: dict[str, str] = {}
        while page := await client.ask("GET", "/v1/groups/", limit=limit, order=order, **cursor):
            met += [each["id"] for each in page]
            cursor = {"after": met[-1]}
            await client.ask("DELETE", f"/v1/groups/{met[-1]}")
            if len(met) < 8:
                await a_group(client, agents)
        assert met[:8] == (there if order == "asc" else there[::-1])
        assert len(set(met)) == len(met)
        assert STRANGER in await client.refusal(404, "GET", "/v1/groups/", after=STRANGER)


class TestDiscussions:
    async def test_members_speak_in_their_order_and_hear_those_before_them(self, client: ServedClient) -> None:
        one, two = await members(client, "one", "two")
        group = await a_group(client, [one, two], manager_type="round_robin", max_turns=3)
        told = await said(client, group, "Plan it. [[say:Agreed.]]")
        assert told == ["Agreed.", "You said: one: Agreed.", "You said: two: You said: one: Agreed."]
        assert await heard(client, two) == ["Plan it. [[say:Agreed.]]", "one: Agreed."]
        assert await heard(client, one) == ["Plan it. [[say:Agreed.]]", "two: You said: one: Agreed."]
        assert len(await said(client, group, "Again.")) == 3

    async def test_a_member_that_nobody_answers_is_told_to_go_on(self, client: ServedClient) -> None:
        [one] = await members(client, "one")
        group = await a_group(client, [one], manager_type="round_robin", max_turns=2)
        assert len(await said(client, group, "Plan it. [[say:Agreed.]]")) == 2
        assert "Go on." in (await heard(client, one))[-1]

    async def test_a_supervisor_is_told_what_the_members_say(self, client: ServedClient) -> None:
        one, two, boss = await members(client, "one", "two", "boss")
        group = await a_group(client, [one, two], manager_type="supervisor", manager_agent_id=boss)
        assert len(await said(client, group, "Plan it. [[say:Fine.]]")) == 3
        assert await heard(client, one) == await heard(client, two) == ["Plan it. [[say:Fine.]]"]
        assert await heard(client, boss) == ["Plan it. [[say:Fine.]]", "one: Fine.", "two: Fine."]

    async def test_the_manager_of_a_dynamic_group_names_the_speakers(self, client: ServedClient) -> None:
        one, two, boss = await members(client, "one", "two", "boss")
        group = await a_group(client, [one, two], manager_type="dynamic", manager_agent_id=boss, max_turns=2)

        async def the_manager_says(words: str) -> None:
            """The offline model does what it is told last, and it is told last how the agents are described."""
            await client.ask("PATCH", f"/v1/agents/{one}", {"description": f"[[say:{words}]]"})

        for named in (two, "TWO, please."):
            await the_manager_says(named)
            assert (await said(client, group, "Plan it. [[say:Yes.]]"))[0] == "Yes."
        assert await heard(client, one) == [] and len(await heard(client, two)) == 4
        told = await heard(client, boss)
        assert "decide who speaks next" in told[1] and f"- {one}: one" in told[1]
        assert told[2] == "two: Yes."
        for words in ("DONE! That is all.", "nobody"):
            await the_manager_says(words)
            answer = await client.ask("POST", f"/v1/groups/{group['id']}/messages", {"input": "Stop."})
            assert (answer["messages"], answer["stop_reason"]["stop_reason"]) == ([], "end_turn")

    async def test_a_stream_shows_all_speakers_and_one_end(self, client: ServedClient) -> None:
        one, two = await members(client, "one", "two")
        group = await a_group(client, [one, two])
        for tokens in (False, True):
            body = {"messages": [{"role": "user", "content": "Go. [[say:Well then.]]"}], "stream_tokens": tokens}
            events = await client.events(f"/v1/groups/{group['id']}/messages/stream", body)
            shown = [each for each in events if isinstance(each, dict) and each["message_type"] != "ping"]
            words: dict[str, str] = {}
            for each in shown:
                if each["message_type"] == "assistant_message":
                    words[each["run_id"]] = words.get(each["run_id"], "") + each["content"]
            assert list(words.values()) == ["Well then.", "You said: one: Well then."]
            assert [each["message_type"] for each in shown[-2:]] == ["stop_reason", "usage_statistics"]
            assert sum(each["message_type"] == "usage_statistics" for each in shown) == 1
            assert shown[-1]["step_count"] == 2 and events[-1] == "[DONE]"

    async def test_a_member_that_fails_asks_or_is_cancelled_ends_the_discussion(self, client: ServedClient) -> None:
        one, two = await members(client, "one", "two")
        group = await a_group(client, [one, two])
        path = f"/v1/groups/{group['id']}/messages"
        failed = await client.http.post(path, json={"input": "Go. [[error:bad_request]]"})
        assert failed.status_code == 400 and "bad_request" in failed.text
        stalled = asyncio.create_task(client.ask("POST", path, {"input": "Go. [[stall]]"}))
        await client.model_asked()
        assert "still discusses" in await client.refusal(409, "POST", path, {"input": "More."})
        await client.ask("POST", f"/v1/agents/{one}/messages/cancel")
        assert (await stalled)["stop_reason"]["stop_reason"] == "cancelled"
        assert await heard(client, two) == []
        assert len(await said(client, group, "Go. [[say:Yes.]]")) == 2

    async def test_the_same_request_again_is_the_same_discussion(self, client: ServedClient) -> None:
        one, two = await members(client, "one", "two")
        group = await a_group(client, [one, two])
        body = {"messages": [{"role": "user", "content": "Go. [[say:Yes.]]", "otid": "o1"}]}
        path = f"/v1/groups/{group['id']}/messages"
        first, again = [await client.ask("POST", path, body) for _ in range(2)]
        assert first["messages"] == again["messages"]
        assert len(await heard(client, one)) == 1

    @pytest.mark.slow
    async def test_a_busy_member_is_waited_for(self, client: ServedClient) -> None:
        one, two = await members(client, "one", "two")
        group = await a_group(client, [one, two])
        busy = asyncio.create_task(client.say(two, "Hello [[delay:0.1]] [[say:Done at last.]]"))
        await client.model_asked()
        assert len(await said(client, group, "Go. [[say:Yes.]]")) == 2
        await busy

    async def test_messages_of_a_group_are_listed_and_reset(self, client: ServedClient) -> None:
        one, two = await members(client, "one", "two")
        group = await a_group(client, [one, two])
        await client.say(one, "Alone. [[say:Yes.]] [[no_reasoning]]")
        await said(client, group, "Together. [[say:Yes.]] [[no_reasoning]]")
        path = f"/v1/groups/{group['id']}/messages"
        listed = await client.ask("GET", path, order="asc")
        spoken = [each for each in listed if each["message_type"] != "reasoning_message"]
        assert [(each["message_type"], each["content"].split(" [[")[0]) for each in spoken] == [
            ("user_message", "Together."),
            ("assistant_message", "Yes."),
            ("user_message", "Together."),
            ("user_message", "one: Yes."),
            ("assistant_message", "You said: one: Yes."),
        ]
        met: list[str] = []
        while page := await client.ask("GET", path, limit=2, **({"after": met[-1]} if met else {})):
            met += [each["id"] for each in page]
        assert list(dict.fromkeys(met)) == list(dict.fromkeys(each["id"] for each in reversed(listed)))
        assert await client.ask("PATCH", f"/v1/groups/{group['id']}/reset-messages") is None
        state = await client.ask("GET", f"/v1/agents/{one}")
        assert len(state["message_ids"]) == 3 and not set(state["message_ids"]) & set(met)
        assert await client.ask("GET", path, order="asc") == listed

    async def test_what_belongs_to_one_agent_is_refused_for_a_group(self, client: ServedClient) -> None:
        one, boss = await members(client, "one", "boss")
        group = await a_group(client, [one])
        path = f"/v1/groups/{group['id']}/messages"
        for field in ({"override_model": "holdfast/offline"}, {"client_tools": [{"name": "x"}]}):
            assert next(iter(field)) in await client.refusal(400, "POST", path, {"input": "x", **field})
        approval = {"type": "approval", "approve": True, "approval_request_id": ids.new("message")}
        assert "asked for it" in await client.refusal(400, "POST", path, {"messages": [approval]})
        await client.refusal(422, "POST", path, {})
        asleep = await a_group(client, [one], manager_type="sleeptime", manager_agent_id=boss)
        assert boss in await client.refusal(400, "POST", f"/v1/groups/{asleep['id']}/messages", {"input": "x"})
        assert json.loads((await client.http.get(path)).text) == []
