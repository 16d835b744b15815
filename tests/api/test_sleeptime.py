"""Sleeptime: a second agent looks after the memory of the first, after its turns, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ids
from holdfast.core.records import Run
from holdfast.core.sleeptime import RUN_TYPE
from holdfast.store import groups, runs
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.tables import tasks
from holdfast.store.transaction import Transaction
from tests.served import ServedClient, served

STORE = '[[call:memory_insert {{"label": "human", "new_string": "{}"}}]] [[call:memory_finish_edits {{}}]]'


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url, queue_wait_s=5) as client:
        yield client


async def looked_after(client: ServedClient, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"name": "main", "memory_blocks": [{"label": "human", "value": "Ada."}]}
    return await client.ask("POST", "/v1/agents/", known | {"enable_sleeptime": True, "tags": ["t"]} | fields)


async def group_of(client: ServedClient, agent_id: str) -> dict[str, Any] | None:
    state = await client.ask("GET", f"/v1/agents/{agent_id}", include="agent.managed_group")
    assert state["managed_group"] == state["multi_agent_group"]
    return state["managed_group"]


async def every_turn(client: ServedClient, agent: dict[str, Any], frequency: int | None = 1) -> str:
    """The sleeptime agent's id, which is set to work after so many turns."""
    group = agent["managed_group"]
    config = {"manager_type": "sleeptime", "sleeptime_agent_frequency": frequency}
    await client.ask("PATCH", f"/v1/groups/{group['id']}", {"manager_config": config})
    return group["agent_ids"][0]


async def runs_of(client: ServedClient, agent_id: str) -> list[Run]:
    every = Page(limit=None, order="asc")
    return await client.deps.database.read(lambda tx: runs.list_runs(tx, RunFilter(agent_ids=(agent_id,)), every))


async def all_done(client: ServedClient) -> None:
    """Returns when no task waits and no run is under way."""
    for _ in range(2_000):
        if not await client.deps.database.read(_anything_to_do):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("there was always something to do")


async def _anything_to_do(tx: Transaction) -> bool:
    """Of one snapshot: between two, a task becomes a run, and the end of a run leaves a task."""
    if await tx.fetch_all(tasks.select()):
        return True
    return bool(await runs.list_runs(tx, RunFilter(active=True), Page(limit=None)))


class TestThePair:
    async def test_an_agent_is_made_with_a_second_one_that_shares_its_blocks(self, client: ServedClient) -> None:
        main = await looked_after(client)
        assert main["enable_sleeptime"] is True
        assert {tool["name"] for tool in main["tools"]} == {
            "send_message",
            "conversation_search",
            "archival_memory_search",
        }
        group = main["managed_group"]
        assert group == main["multi_agent_group"] == await client.ask("GET", f"/v1/groups/{group['id']}")
        [second_id] = group["agent_ids"]
        nothing = ("project_id", "template_id", "base_template_id", "deployment_id", "termination_token", "max_turns")
        unset = ("last_processed_message_id", "max_message_buffer_length", "min_message_buffer_length", "hidden")
        assert group == {
            "id": group["id"],
            "manager_type": "sleeptime",
            "agent_ids": [second_id],
            "description": "",
            "shared_block_ids": [],
            "manager_agent_id": main["id"],
            "sleeptime_agent_frequency": 5,
            "turns_counter": -1,
            **dict.fromkeys((*nothing, *unset)),
        }
        include = ["agent.blocks", "agent.tools", "agent.tags", "agent.managed_group"]
        second = await client.ask("GET", f"/v1/agents/{second_id}", include=include)
        assert (second["name"], second["agent_type"]) == ("main-sleeptime", "sleeptime_agent")
        assert (second["model"], second["enable_sleeptime"], second["tags"]) == (main["model"], None, [])
        assert (second["hidden"], second["managed_group"], len(second["message_ids"])) == (None, None, 1)
        assert {tool["name"] for tool in second["tools"]} == {
            "memory_insert",
            "memory_replace",
            "memory_rethink",
            "memory_finish_edits",
        }
        rules = {(rule["type"], rule["tool_name"]) for rule in second["tool_rules"]}
        assert ("exit_loop", "memory_finish_edits") in rules and len(rules) == 4
        blocks = {block["label"]: block for block in second["blocks"]}
        assert blocks["human"]["id"] == main["blocks"][0]["id"]
        assert set(blocks) == {"human", "memory_persona"} and blocks["memory_persona"]["limit"] == 100_000

    async def test_an_agent_of_the_type_that_looks_after_others_can_be_looked_after_unless_it_does(
        self, client: ServedClient
    ) -> None:
        main = await looked_after(client, agent_type="sleeptime_agent")
        helper = main["managed_group"]["agent_ids"][0]
        told = await client.refusal(400, "PATCH", f"/v1/agents/{helper}", {"enable_sleeptime": True})
        assert "looks after another agent" in told

    async def test_it_is_switched_on_and_off_later_and_stays_the_same_pair(self, client: ServedClient) -> None:
        plain = await client.ask("POST", "/v1/agents/", {"name": "plain"})
        assert plain["managed_group"] is None
        path = f"/v1/agents/{plain['id']}"
        on = await client.ask("PATCH", path, {"enable_sleeptime": True})
        assert {tool["name"] for tool in on["tools"]} == {tool["name"] for tool in plain["tools"]}
        off = await client.ask("PATCH", path, {"enable_sleeptime": False})
        assert (off["enable_sleeptime"], off["managed_group"]) == (False, on["managed_group"])
        again = await client.ask("PATCH", path, {"enable_sleeptime": True})
        assert again["managed_group"] == on["managed_group"] != None  # noqa: E711 - it is one chain

    async def test_blocks_that_come_and_go_are_shared(self, client: ServedClient) -> None:
        main = await looked_after(client)
        [second] = main["managed_group"]["agent_ids"]

        async def labels() -> set[str]:
            listed = await client.ask("GET", f"/v1/agents/{second}/core-memory/blocks")
            return {block["label"] for block in listed}

        block = await client.ask("POST", "/v1/blocks/", {"label": "plans", "value": "none"})
        await client.ask("PATCH", f"/v1/agents/{main['id']}/core-memory/blocks/attach/{block['id']}")
        assert await labels() == {"human", "memory_persona", "plans"}
        await client.ask("PATCH", f"/v1/agents/{main['id']}/core-memory/blocks/detach/{block['id']}")
        assert await labels() == {"human", "memory_persona"}
        await client.ask("PATCH", f"/v1/agents/{main['id']}", {"block_ids": [block["id"]]})
        assert await labels() == {"plans", "memory_persona"}

    async def test_deleting_the_main_agent_deletes_both_and_the_group(self, client: ServedClient) -> None:
        main = await looked_after(client)
        group = main["managed_group"]
        await client.ask("DELETE", f"/v1/agents/{main['id']}")
        await client.refusal(404, "GET", f"/v1/agents/{group['agent_ids'][0]}")
        await client.refusal(404, "GET", f"/v1/groups/{group['id']}")
        assert len(await client.ask("GET", "/v1/blocks/")) == 2

    async def test_deleting_the_second_agent_leaves_the_main_one_alone(self, client: ServedClient) -> None:
        main = await looked_after(client)
        group = main["managed_group"]
        await client.ask("DELETE", f"/v1/agents/{group['agent_ids'][0]}")
        await client.refusal(404, "GET", f"/v1/groups/{group['id']}")
        state = await client.ask("GET", f"/v1/agents/{main['id']}", include="agent.managed_group")
        assert (state["enable_sleeptime"], state["managed_group"]) == (None, None)
        answer = await client.say(main["id"], "Hello [[say:Hi.]]")
        assert answer.usage.run_ids is None
        on = await client.ask("PATCH", f"/v1/agents/{main['id']}", {"enable_sleeptime": True})
        assert on["managed_group"]["id"] != group["id"]

    async def test_deleting_the_group_leaves_both_agents(self, client: ServedClient) -> None:
        main = await looked_after(client)
        group = main["managed_group"]
        answer = await client.ask("DELETE", f"/v1/groups/{group['id']}")
        assert answer == {"message": f"Group id={group['id']} successfully deleted"}
        await client.refusal(404, "DELETE", f"/v1/groups/{group['id']}")
        await client.ask("GET", f"/v1/agents/{group['agent_ids'][0]}")
        assert await group_of(client, main["id"]) is None
        assert (await client.ask("GET", f"/v1/agents/{main['id']}"))["enable_sleeptime"] is None


class TestTurns:
    async def test_it_runs_after_the_first_turn_and_then_after_every_second(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main, 2)
        counters: list[int] = []
        promised: list[str] = []
        for number in range(5):
            answer = await client.say(main["id"], f"Hello {number} [[say:Hi.]]")
            promised += answer.usage.run_ids or []
            await all_done(client)
            group = await group_of(client, main["id"])
            assert group
            counters.append(group["turns_counter"])
        assert counters == [0, 1, 0, 1, 0]
        made = await runs_of(client, second)
        assert [run.id for run in made] == promised and len(promised) == 3
        assert {run.status for run in made} == {"completed"}
        assert {run.metadata["run_type"] for run in made} == {RUN_TYPE}

    async def test_a_run_that_an_answer_names_can_be_read_and_listed_at_once(self, client: ServedClient) -> None:
        main = await looked_after(client)
        second = await every_turn(client, main)
        await client.say(main["id"], "one [[say:Yes.]]")
        await all_done(client)
        [begun] = [run.id for run in await runs_of(client, second)]
        due = [ids.new("run") for _ in range(2)]

        async def promise(tx: Transaction) -> None:
            """What the end of a turn writes, without the task that takes it up."""
            for shown_by in due:
                await groups.keep_turn(tx, main["managed_group"]["id"], second, begun, shown_by)

        await client.deps.database.write(promise)
        shown = await client.ask("GET", f"/v1/runs/{due[0]}")
        assert (shown["agent_id"], shown["status"], shown["background"]) == (second, "created", True)
        assert shown["metadata"]["run_type"] == RUN_TYPE
        await client.refusal(404, "POST", f"/v1/runs/{due[0]}/stream", {})

        async def walk(limit: int, step: str = "after", **query: Any) -> list[str]:
            found: list[str] = []
            while page := await client.ask("GET", "/v1/runs/", agent_id=second, limit=limit, **query):
                listed = [run["id"] for run in page]
                found = [*found, *listed] if step == "after" else [*listed, *found]
                query[step] = found[-1 if step == "after" else 0]
            return found

        oldest_first = [begun, *due]
        for limit in (1, 2, 7):
            assert await walk(limit, order="asc") == oldest_first
            assert await walk(limit, order="desc") == oldest_first[::-1]
            assert await walk(limit, "before", order="desc", before=begun) == due[::-1]
            assert await walk(limit, "before", order="asc", before=due[-1]) == oldest_first[:-1]
        assert await walk(7, active=True) == await walk(7, statuses=["created"]) == due[::-1]
        assert await walk(7, statuses=["completed"]) == await walk(7, stop_reason="tool_rule") == [begun]
        assert {run["id"] for run in await client.ask("GET", "/v1/runs/", limit=100)} >= {begun}

    async def test_it_is_shown_what_was_said_since_it_last_looked(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main, 2)
        for number in range(3):
            await client.say(main["id"], f"question {number} [[say:answer {number}]] [[no_reasoning]]")
            await all_done(client)
        [first, last] = [await self.shown(client, run.id) for run in await runs_of(client, second)]
        assert first.splitlines()[-2:] == ["user: question 0 [[say:answer 0]] [[no_reasoning]]", "assistant: answer 0"]
        assert first.startswith("<system-reminder>") and "\n\nMessages:\n" in first
        lines = last.split("Messages:\n")[1].splitlines()
        assert [line.split(" [[")[0] for line in lines] == [
            "user: question 1",
            "assistant: answer 1",
            "user: question 2",
            "assistant: answer 2",
        ]
        group = await group_of(client, main["id"])
        [newest] = (await client.agents.messages.list(main["id"], limit=1)).items
        assert group and group["last_processed_message_id"] == newest.id

    @staticmethod
    async def shown(client: ServedClient, run_id: str) -> str:
        rows = await client.ask("GET", f"/v1/runs/{run_id}/messages", order="asc")
        return next(row["content"] for row in rows if row["message_type"] == "user_message")

    async def test_what_it_writes_into_a_shared_block_is_in_the_next_prompt_of_the_main_agent(
        self, client: ServedClient
    ) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent", include_base_tools=False)
        second = await every_turn(client, main, None)
        await client.say(main["id"], f"Hello [[say:Hi.]] {STORE.format('Ada likes tea.')}")
        await all_done(client)
        [run] = await runs_of(client, second)
        assert run.stop_reason == "tool_rule"
        await client.say(main["id"], "And now? [[say:Hi.]]")
        [system] = [
            each
            async for each in client.agents.messages.list(main["id"], order="asc")
            if each.message_type == "system_message"
        ]
        assert "Ada likes tea." in str(system.content)
        await all_done(client)
        group = await group_of(client, main["id"])
        assert group and group["turns_counter"] == -1  # nothing is counted where every turn counts

    async def test_turns_that_fail_are_not_counted_and_are_shown_with_the_next(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main)
        failed = await client.http.post(
            f"/v1/agents/{main['id']}/messages", json={"input": "lost [[error:bad_request]]"}
        )
        assert failed.status_code >= 400
        assert await runs_of(client, second) == []
        await client.say(main["id"], "found [[say:Hi.]]")
        await all_done(client)
        [run] = await runs_of(client, second)
        text = await self.shown(client, run.id)
        assert "user: lost" in text and "user: found" in text

    async def test_an_error_of_the_second_agent_does_not_touch_the_turn(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="memgpt_v2_agent")
        second = await every_turn(client, main)
        says = r'[[call:send_message {"message": "\u005b\u005berror:bad_request]]"}]]'  # which the second one reads
        answer = await client.say(main["id"], says)
        assert answer.stop_reason.stop_reason == "end_turn"
        await all_done(client)
        [run] = await runs_of(client, second)
        assert ([run.id], run.status) == (answer.usage.run_ids, "failed")
        state = await client.ask("GET", f"/v1/agents/{main['id']}")
        assert state["last_stop_reason"] == "end_turn"

    async def test_while_it_waits_for_a_decision_turns_are_kept_for_later(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent", include_base_tools=False)
        second = await every_turn(client, main)
        guard = f"/v1/agents/{second}/tools/approval/memory_insert"
        await client.ask("PATCH", guard, {"requires_approval": True})
        await client.say(main["id"], f"Hello [[say:Hi.]] {STORE.format('x')}")
        await all_done(client)
        await client.say(main["id"], "kept [[say:Hi.]]")
        await all_done(client)
        [waiting] = await runs_of(client, second)
        assert waiting.stop_reason == "requires_approval"
        await client.ask("POST", f"/v1/agents/{second}/messages/cancel")
        await client.say(main["id"], "shown [[say:Hi.]]")
        await all_done(client)
        [_, run] = await runs_of(client, second)
        text = await self.shown(client, run.id)
        assert "user: kept" in text and "user: shown" in text and "likes" not in text

    async def test_streams_background_runs_and_conversations_count_too(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main)
        body = {"messages": [{"role": "user", "content": "Hello [[say:Hi.]]"}], "stream_tokens": True}
        events = await client.events(f"/v1/agents/{main['id']}/messages/stream", body)
        usage = [each for each in events if isinstance(each, dict) and each["message_type"] == "usage_statistics"]
        assert usage[0]["run_ids"] is None
        await client.ask("POST", f"/v1/agents/{main['id']}/messages/async", {"input": "Hello [[say:Hi.]]"})
        await all_done(client)
        talk = await client.ask("POST", "/v1/conversations/", {}, agent_id=main["id"])
        await client.events(f"/v1/conversations/{talk['id']}/messages", {"input": "Hello [[say:Hi.]]"})
        await all_done(client)
        assert len(await runs_of(client, second)) == 3

    @pytest.mark.slow
    async def test_while_it_is_busy_the_next_turns_wait_in_their_order(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main)
        promised: list[str] = []
        stalled = asyncio.create_task(client.say(second, "Hello [[delay:0.1]] [[say:Done at last.]]"))
        await client.model_asked()
        for number in range(2):
            answer = await client.say(main["id"], f"turn {number} [[say:Hi.]]")
            promised += answer.usage.run_ids or []
        await stalled
        await all_done(client)
        assert [run.id for run in await runs_of(client, second)][1:] == promised
        assert ["turn 0" in await self.shown(client, each) for each in promised] == [True, False]

    @pytest.mark.slow
    async def test_switched_off_nothing_is_counted_and_what_waited_is_let_go(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main)
        stalled = asyncio.create_task(client.say(second, "Hello [[delay:0.1]] [[say:Done at last.]]"))
        await client.model_asked()
        await client.say(main["id"], "waits [[say:Hi.]]")
        await client.ask("PATCH", f"/v1/agents/{main['id']}", {"enable_sleeptime": False})
        assert (await client.say(main["id"], "off [[say:Hi.]]")).usage.run_ids is None
        await stalled
        await all_done(client)
        assert len(await runs_of(client, second)) == 1
        await client.ask("PATCH", f"/v1/agents/{main['id']}", {"enable_sleeptime": True})
        await client.say(main["id"], "on [[say:Hi.]]")
        await all_done(client)
        [_, run] = await runs_of(client, second)
        assert "waits" not in await self.shown(client, run.id)

    async def test_the_main_agent_can_be_deleted_while_the_second_one_works(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main)
        stalled = asyncio.create_task(
            client.http.post(f"/v1/agents/{second}/messages", json={"input": "Hello [[stall]]"})
        )
        await client.model_asked()
        await client.say(main["id"], "Hello [[say:Hi.]]")
        await client.ask("DELETE", f"/v1/agents/{main['id']}")
        await stalled
        await all_done(client)
        await client.refusal(404, "GET", f"/v1/agents/{second}")

    async def test_renamed_agents_stay_a_pair(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main)
        for agent_id, name in ((main["id"], "one"), (second, "other")):
            await client.ask("PATCH", f"/v1/agents/{agent_id}", {"name": name})
        await client.say(main["id"], "Hello [[say:Hi.]]")
        await all_done(client)
        assert len(await runs_of(client, second)) == 1

    async def test_a_sleeptime_agent_can_be_talked_to_and_sets_nobody_to_work(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main)
        answer = await client.say(second, STORE.format("Told directly."))
        assert answer.stop_reason.stop_reason == "tool_rule"
        assert await runs_of(client, main["id"]) == []
        block = await client.ask("GET", f"/v1/agents/{main['id']}/core-memory/blocks/human")
        assert "Told directly." in block["value"]

    async def test_one_agent_can_look_after_several_and_keeps_them_apart(self, client: ServedClient) -> None:
        one, two, second = [(await client.agent(name=name)).id for name in ("one", "two", "second")]
        for manager, frequency in ((one, 2), (two, 1)):
            config = {
                "manager_type": "sleeptime",
                "manager_agent_id": manager,
                "sleeptime_agent_frequency": frequency,
            }
            body = {"agent_ids": [second], "description": "", "manager_config": config}
            await client.ask("POST", "/v1/groups/", body)
        for agent_id, text in ((one, "first"), (one, "kept"), (two, "other"), (one, "shown")):
            await client.say(agent_id, f"{text} [[say:Hi.]]")
            await all_done(client)
        texts = [await self.shown(client, run.id) for run in await runs_of(client, second)]
        words = ("first", "kept", "other", "shown")
        assert [[word for word in words if f"user: {word}" in text] for text in texts] == [
            ["first"],
            ["other"],
            ["kept", "shown"],
        ]
        await client.ask("DELETE", f"/v1/agents/{one}")
        assert len(await client.ask("GET", f"/v1/agents/{second}/groups")) == 1

    async def test_an_agent_that_calls_send_message_is_looked_after_too(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="memgpt_v2_agent")
        second = await every_turn(client, main)
        await client.say(main["id"], "Hello [[say:Good day.]]")
        await all_done(client)
        [run] = await runs_of(client, second)
        text = await self.shown(client, run.id)
        assert "assistant: Good day." in text and "send_message" not in text
