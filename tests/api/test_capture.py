"""Captured turns: what a program said to a model of its own, kept in an agent's history, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ids
from tests.api.test_sleeptime import all_done, every_turn, looked_after, runs_of
from tests.invariants import assert_invariants
from tests.served import ServedClient, served

ROLL = '''
def roll_dice() -> int:
    """Roll a die."""
    return 4
'''


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url, queue_wait_s=5) as client:
        yield client
        await assert_invariants(client.deps.database)


def turn(asked: Any, answered: Any = "Noted.", **fields: Any) -> dict[str, Any]:
    """As agentic-learning sends it."""
    return {
        "provider": "openai",
        "model": "gpt-5",
        "request_messages": [{"role": "user", "content": asked}],
        "response_dict": {"role": "assistant", "content": answered},
    } | fields


async def capture(client: ServedClient, agent_id: str, body: dict[str, Any]) -> dict[str, Any]:
    return await client.ask("POST", f"/v1/agents/{agent_id}/messages/capture", body)


async def said(client: ServedClient, agent_id: str, **options: Any) -> list[tuple[str, Any]]:
    options.setdefault("order", "asc")
    rows = await client.ask("GET", f"/v1/agents/{agent_id}/messages", **options)
    return [(row["message_type"], row["content"]) for row in rows if row["message_type"] != "system_message"]


class TestHistory:
    async def test_a_turn_is_listed_in_its_order_and_belongs_to_no_run(self, client: ServedClient) -> None:
        agent = await client.agent()
        answer = await capture(client, agent.id, turn("My name is Ada.", "Hello Ada."))
        assert answer == {"success": True, "messages_created": 2, "run_ids": []}
        await capture(client, agent.id, turn("And I like tea."))
        told = [
            ("user_message", "My name is Ada."),
            ("assistant_message", "Hello Ada."),
            ("user_message", "And I like tea."),
            ("assistant_message", "Noted."),
        ]
        assert await said(client, agent.id) == told
        assert await said(client, agent.id, conversation_id="default") == told
        rows = await client.ask("GET", f"/v1/agents/{agent.id}/messages", order="asc")
        assert {row["run_id"] for row in rows} == {None}
        assert len({row["otid"] for row in rows}) == 5
        assert await client.ask("GET", "/v1/runs/", agent_id=agent.id) == []

    async def test_lists_yield_each_message_once_while_more_are_captured(self, client: ServedClient) -> None:
        agent = await client.agent()
        for number in range(3):
            await capture(client, agent.id, turn(f"question {number}", f"answer {number}"))
        for limit in (1, 2, 7):
            seen: list[str] = []
            after: dict[str, str] = {}
            while rows := await client.ask("GET", f"/v1/agents/{agent.id}/messages", order="asc", limit=limit, **after):
                seen += [row["id"] for row in rows]
                after = {"after": rows[-1]["id"]}
                if len(seen) < 5:
                    await capture(client, agent.id, turn("more"))
            assert len(seen) == len(set(seen))
            assert len(seen) == len(await client.ask("GET", f"/v1/agents/{agent.id}/messages", limit=1000))

    async def test_it_is_found_by_its_words_and_by_the_agents_own_tool(self, client: ServedClient) -> None:
        agent = await client.agent(tools=["conversation_search"])
        await capture(client, agent.id, turn("The code word is marmalade."))
        [found] = await client.ask("POST", "/v1/messages/search", {"query": "marmalade", "agent_id": agent.id})
        assert found["content"] == "The code word is marmalade."
        answer = await client.say(agent.id, '[[call:conversation_search {"query": "marmalade"}]] [[say:Done.]]')
        [returned] = [each for each in answer.messages if each.message_type == "tool_return_message"]
        assert "The code word is marmalade." in returned.tool_return

    async def test_it_is_not_in_the_context_window(self, client: ServedClient) -> None:
        agent = await client.agent()
        await capture(client, agent.id, turn("The code word is marmalade."))
        state = await client.agents.retrieve(agent.id)
        assert len(state.message_ids or []) == 1
        preview = await client.ask(
            "POST", f"/v1/agents/{agent.id}/messages/preview-raw-payload", {"input": "What is it?"}
        )
        assert "marmalade" not in str(preview)
        context = await client.ask("GET", f"/v1/agents/{agent.id}/context")
        assert (context["num_messages"], context["num_recall_memory"]) == (1, 3)

    async def test_it_is_deleted_with_the_agent_and_is_not_in_the_agent_file(self, client: ServedClient) -> None:
        agent = await client.agent()
        await capture(client, agent.id, turn("My name is Ada."))
        exported = await client.ask("GET", f"/v1/agents/{agent.id}/export")
        assert "My name is Ada." not in str(exported)  # which has what is in the context window
        await client.agents.delete(agent.id)
        assert await client.ask("POST", "/v1/messages/search", {"query": "Ada"}) == []
        assert await client.refusal(404, "POST", f"/v1/agents/{agent.id}/messages/capture", turn("Hello"))


class TestWhatIsKept:
    async def test_parts_that_are_text_are_kept_and_other_parts_are_not(self, client: ServedClient) -> None:
        agent = await client.agent()
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        asked = [{"type": "text", "text": "What is"}, picture, {"type": "input_text", "text": "this?"}]
        answered = [{"type": "output_text", "text": "A dog."}, {"type": "tool_use", "id": "1", "input": {}}]
        await capture(client, agent.id, turn(asked, answered))
        assert await said(client, agent.id) == [("user_message", "What is\nthis?"), ("assistant_message", "A dog.")]

    async def test_only_what_the_user_asked_is_kept_of_the_request(self, client: ServedClient) -> None:
        agent = await client.agent()
        roles = ("system", "developer", "assistant", "tool", "user")
        sent = [{"role": role, "content": f"by {role}"} for role in roles]
        answer = await capture(client, agent.id, turn("", request_messages=sent))
        assert answer["messages_created"] == 2
        assert await said(client, agent.id) == [("user_message", "by user"), ("assistant_message", "Noted.")]

    @pytest.mark.parametrize("nothing", ["", "  \n", None, [], [{"type": "tool_use", "id": "1"}]])
    async def test_what_is_empty_is_no_message(self, client: ServedClient, nothing: Any) -> None:
        agent = await client.agent()
        assert (await capture(client, agent.id, turn("Call a tool.", nothing)))["messages_created"] == 1
        assert (await capture(client, agent.id, turn(nothing, "Done.")))["messages_created"] == 1
        assert (await capture(client, agent.id, turn(nothing, nothing)))["messages_created"] == 0
        assert (await capture(client, agent.id, turn("Hi", response_dict={})))["messages_created"] == 1
        kinds = [kind for kind, _ in await said(client, agent.id)]
        assert kinds == ["user_message", "assistant_message", "user_message"]

    async def test_every_character_survives(self, client: ServedClient) -> None:
        agent = await client.agent()
        text = 'a\x01b "q" \\ \u2028 \U0001f600 %s <b> ß'
        await capture(client, agent.id, turn(text, text))
        assert [content for _, content in await said(client, agent.id)] == [text, text]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"request_messages": None},
            {"request_messages": [{"content": "no role"}]},
            {"request_messages": ["text"]},
            {"request_messages": [{"role": "user", "content": 7}]},
            {"request_messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]},
            {"request_messages": [{"role": "user", "content": "x"}] * 1_001},
            {"response_dict": None},
            {"response_dict": "text"},
            {"response_dict": {"content": {"text": "x"}}},
            {"model": None},
            {"model": "m" * 513},
            {"provider": None},
        ],
        ids=lambda wrong: str(wrong)[:40],
    )
    async def test_what_is_malformed_is_refused_and_leaves_nothing(
        self, client: ServedClient, wrong: dict[str, Any]
    ) -> None:
        agent = await client.agent()
        await client.refusal(422, "POST", f"/v1/agents/{agent.id}/messages/capture", turn("Hello", **wrong))
        assert await said(client, agent.id) == []

    async def test_an_agent_that_is_unknown_or_no_agent_is_refused(self, client: ServedClient) -> None:
        await client.refusal(404, "POST", f"/v1/agents/{ids.new('agent')}/messages/capture", turn("Hello"))
        await client.refusal(422, "POST", f"/v1/agents/{ids.new('conv')}/messages/capture", turn("Hello"))

    async def test_other_agents_see_nothing_of_it(self, client: ServedClient) -> None:
        one, other = await client.agent(), await client.agent()
        await capture(client, one.id, turn("My name is Ada."))
        assert await said(client, other.id) == []


class TestInFlight:
    async def test_a_run_goes_on_beside_it_and_the_next_turn_works(self, client: ServedClient) -> None:
        agent = await client.agent()
        sending = asyncio.create_task(client.say(agent.id, "Wait [[stall]] [[no_reasoning]]"))
        await client.model_asked()
        await capture(client, agent.id, turn("captured"))
        await client.ask("POST", f"/v1/agents/{agent.id}/messages/cancel")
        assert (await sending).stop_reason.stop_reason == "cancelled"
        answer = await client.say(agent.id, "And now? [[say:Fine.]] [[no_reasoning]]")
        assert answer.messages[-1].content == "Fine."
        told = await said(client, agent.id)
        assert ("user_message", "captured") in told and told[-1] == ("assistant_message", "Fine.")

    async def test_turns_and_captures_at_once_are_all_kept(self, client: ServedClient) -> None:
        agent = await client.agent()
        captures = [capture(client, agent.id, turn(f"captured {number}")) for number in range(10)]
        turns = [client.say(agent.id, f"spoken {number} [[say:Hi.]] [[no_reasoning]]") for number in range(3)]
        await asyncio.gather(*captures, *turns)
        asked = {str(content).split(" [[")[0] for kind, content in await said(client, agent.id) if "user" in kind}
        assert asked == {f"captured {number}" for number in range(10)} | {f"spoken {number}" for number in range(3)}

    async def test_a_pending_approval_stays_pending_and_can_be_answered(self, client: ServedClient) -> None:
        agent = await client.guarded_agent(ROLL)
        held = await client.say(agent.id, "[[call:roll_dice {}]] [[say:Rolled.]] [[no_reasoning]]")
        assert held.stop_reason.stop_reason == "requires_approval"
        await capture(client, agent.id, turn("captured"))
        call_id = held.messages[-1].tool_call.tool_call_id
        approvals = [{"type": "approval", "approve": True, "tool_call_id": call_id}]
        body = {"messages": [{"type": "approval", "approvals": approvals}]}
        answer = await client.ask("POST", f"/v1/agents/{agent.id}/messages", body)
        assert answer["stop_reason"]["stop_reason"] == "end_turn"
        assert answer["messages"][-1]["content"] == "Rolled."


class TestSleeptime:
    async def test_captured_turns_are_counted_and_shown_to_whoever_looks_after_the_agent(
        self, client: ServedClient
    ) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main, 2)
        promised: list[str] = []
        for number in range(3):
            answer = await capture(client, main["id"], turn(f"question {number}", f"answer {number}"))
            promised += answer["run_ids"]
            await all_done(client)
        made = await runs_of(client, second)
        assert [run.id for run in made] == promised and len(promised) == 2
        first, last = [await self.shown(client, run.id) for run in made]
        assert first == ["user: question 0", "assistant: answer 0"]
        assert last == ["user: question 1", "assistant: answer 1", "user: question 2", "assistant: answer 2"]
        group = await client.ask("GET", f"/v1/groups/{main['managed_group']['id']}")
        [newest] = (await client.agents.messages.list(main["id"], limit=1)).items
        assert group["last_processed_message_id"] == newest.id

    async def test_captured_and_spoken_turns_are_shown_together_in_their_order(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main, 3)
        await capture(client, main["id"], turn("one"))
        await all_done(client)
        await client.say(main["id"], "two [[say:Hi.]] [[no_reasoning]]")
        await capture(client, main["id"], turn("three"))
        await client.say(main["id"], "four [[say:Hi.]] [[no_reasoning]]")
        await all_done(client)
        lines = await self.shown(client, (await runs_of(client, second))[-1].id)
        asked = [line.split(" [[")[0] for line in lines if line.startswith("user")]
        assert asked == ["user: two", "user: three", "user: four"]

    async def test_what_it_learns_is_in_the_block_that_both_share(self, client: ServedClient) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        await every_turn(client, main, None)
        learn = '[[call:memory_insert {"label": "human", "new_string": "Likes tea."}]] [[call:memory_finish_edits {}]]'
        await capture(client, main["id"], turn(f"I like tea. {learn}"))
        await all_done(client)
        block = await client.agents.blocks.retrieve("human", agent_id=main["id"])
        assert block.value == "Ada.\nLikes tea."

    async def test_nothing_is_counted_when_nothing_was_kept_or_nobody_looks_after_it(
        self, client: ServedClient
    ) -> None:
        main = await looked_after(client, agent_type="letta_v1_agent")
        second = await every_turn(client, main)
        assert (await capture(client, main["id"], turn("", "")))["run_ids"] == []
        await client.ask("PATCH", f"/v1/agents/{main['id']}", {"enable_sleeptime": False})
        assert (await capture(client, main["id"], turn("Hello")))["run_ids"] == []
        await all_done(client)
        assert await runs_of(client, second) == []

    @staticmethod
    async def shown(client: ServedClient, run_id: str) -> list[str]:
        rows = await client.ask("GET", f"/v1/runs/{run_id}/messages", order="asc")
        text = next(row["content"] for row in rows if row["message_type"] == "user_message")
        return text.split("Messages:\n")[1].splitlines()
