"""Cancellation at the points where the retired server lost messages, approvals or the truth about a run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from letta_client import APIStatusError, AsyncLetta, ConflictError

from tests.conformance.answers import asked_ids
from tests.conformance.checks import (
    check_at_rest,
    check_next_message_works,
    check_told_is_stored,
    history,
    read_agent,
    read_run,
)
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, Mode, Turn, begin, send
from tests.conformance.receiver import Receiver
from tests.conformance.test_acceptance_cancelling import cancel, second_step, thinking
from tests.conformance.vendors import with_every_vendor

pytestmark = with_every_vendor

DENIED = "The user cancelled the request, so the tool call was denied."
THREE_TIMES = "Run bash_tool three times, with operations 'df', 'date' and 'uptime'"


async def run_messages(client: AsyncLetta, run_id: str | None) -> list[Json]:
    assert run_id is not None
    return [message.to_dict() for message in (await client.runs.messages.list(run_id=run_id, limit=1000)).items]


async def check_no_desync(client: AsyncLetta, agent: str, *run_ids: str | None) -> None:
    """What the runs stored is in the window, and the window holds nothing that is not stored."""
    window = (await read_agent(client, agent))["message_ids"]
    stored = {message["id"] for message in await history(client, agent)}
    assert set(window) == stored
    for run_id in run_ids:
        assert {message["id"] for message in await run_messages(client, run_id)} <= set(window)
    await check_at_rest(client, agent)


class TestMessageStateDesync:
    async def test_message_state_consistency_after_cancellation(
        self, client: AsyncLetta, make_agent: MakeAgent
    ) -> None:
        agent = await make_agent("print_tool")
        turn = begin(client, "blocking", agent, "Use print_tool with 'word' [[stall@2]]", max_steps=5)
        await second_step(client, await turn.run_id())
        await cancel(client, agent)
        stopped = await turn.outcome()

        stored = await run_messages(client, stopped.run_id)
        answered = [message for message in stored if message["message_type"] != "user_message"]
        assert [message["otid"] for message in answered] == [message["otid"] for message in stopped.messages]
        assert len(answered) > 0
        assert (await read_agent(client, agent))["last_stop_reason"] == "cancelled"
        await check_no_desync(client, agent, stopped.run_id)

    async def test_agent_can_continue_after_cancellation(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool")
        turn = begin(client, "blocking", agent, "This one is stopped [[stall]]")
        first_run = await turn.run_id()
        await cancel(client, agent, first_run)
        assert (await turn.outcome()).stop_reason == "cancelled"
        before = await read_agent(client, agent)
        assert before["last_stop_reason"] == "cancelled"

        second = await send(client, "blocking", agent, "This one is not")

        assert second.stop_reason == "end_turn"
        assert len((await read_agent(client, agent))["message_ids"]) > len(before["message_ids"])
        await check_no_desync(client, agent, first_run, second.run_id)

    async def test_approval_request_message_ids_desync_with_background_token_streaming(
        self, client: AsyncLetta, make_agent: MakeAgent
    ) -> None:
        agent = await make_agent("print_tool", "bash_tool")
        said = "Trigger bash_tool with operation 'free' [[delay:0.05]]"
        for wanted in ("ping", "reasoning_message", "approval_request_message"):
            turn = begin(client, "background", agent, said, max_steps=5)
            await turn.until_type(wanted)
            run_id = await turn.run_id()

            await cancel(client, agent, run_id)
            await turn.outcome()

            run = await read_run(client, run_id)
            assert (run["status"], run["stop_reason"]) == ("cancelled", "cancelled")
            state = await read_agent(client, agent)
            assert state["last_stop_reason"] == "cancelled"
            assert state["pending_approval"] is None
            await check_no_desync(client, agent, run_id)
        await check_next_message_works(client, agent)


class TestStreamingCancellation:
    async def test_token_streaming_cancellation(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool")
        turn = begin(client, "token", agent, "Hello [[tokens:400]] [[delay:0.05]]")
        await turn.until(lambda _: len(turn.events) > 2)

        await cancel(client, agent)
        stopped = await turn.outcome()

        assert stopped.stop_reason == "cancelled"
        assert 0 < len(stopped.events) < 400
        await check_told_is_stored(client, agent, stopped)
        await check_next_message_works(client, agent)

    async def test_step_streaming_cancellation(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool")
        turn = begin(client, "step", agent, "Use print_tool with 'word' [[stall_after:4@2]]", max_steps=5)
        await turn.until_type("tool_return_message")

        await cancel(client, agent)
        stopped = await turn.outcome()

        assert stopped.types == ["reasoning_message", "tool_call_message", "tool_return_message"]
        assert stopped.stop_reason == "cancelled"
        await check_told_is_stored(client, agent, stopped)
        await check_next_message_works(client, agent)


class TestToolExecutionCancellation:
    async def test_cancellation_during_tool_execution(
        self, client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
    ) -> None:
        agent = await make_agent("ring_bell")
        arguments = json.dumps({"url": receiver.url, "seconds": 60})
        turn = begin(client, "blocking", agent, f"[[call:ring_bell {arguments}]]", max_steps=5)
        await receiver.until(1)

        await cancel(client, agent)
        stopped = await turn.outcome()

        assert stopped.stop_reason == "cancelled"
        stored = await run_messages(client, stopped.run_id)
        assert [message["message_type"] for message in stored].count("tool_return_message") == 1
        await check_no_desync(client, agent, stopped.run_id)
        await check_next_message_works(client, agent)


class TestResourceCleanupAfterCancellation:
    async def test_stop_reason_set_correctly_on_cancellation(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool")
        turn = begin(client, "blocking", agent, "Hello [[stall]]")
        run_id = await turn.run_id()

        await cancel(client, agent, run_id)

        assert (await turn.outcome()).stop_reason == "cancelled"
        run = await read_run(client, run_id)
        assert (run["status"], run["stop_reason"]) == ("cancelled", "cancelled")

    async def test_response_messages_cleared_after_cancellation(
        self, client: AsyncLetta, make_agent: MakeAgent
    ) -> None:
        """The next answer holds its own messages and none of the cancelled run's."""
        agent = await make_agent("print_tool")
        turn = begin(client, "blocking", agent, "Use print_tool with 'word' [[stall@2]]")
        await second_step(client, await turn.run_id())
        await cancel(client, agent)
        stopped = await turn.outcome()

        after = await send(client, "blocking", agent, "Hello")

        assert after.types == ["reasoning_message", "assistant_message"]
        assert not {message["id"] for message in stopped.messages} & {message["id"] for message in after.messages}


class TestApprovalFlowCancellation:
    async def test_cancellation_while_waiting_for_approval(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool", "bash_tool")
        paused = await send(client, "blocking", agent, "Trigger bash_tool with operation 'free'", max_steps=5)
        assert paused.stop_reason == "requires_approval"
        assert paused.run_id is not None

        await cancel(client, agent, paused.run_id)

        assert (await read_run(client, paused.run_id))["status"] == "cancelled"
        stored = await run_messages(client, paused.run_id)
        assert all(back["status"] == "error" for message in stored for back in message.get("tool_returns") or ())
        assert await cancel(client, agent, paused.run_id) == {paused.run_id: "cancelled"}

    async def test_agent_state_after_cancelled_approval(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool", "bash_tool")
        paused = await send(client, "blocking", agent, "Trigger bash_tool with operation 'free'")
        await cancel(client, agent)

        told = await send(client, "blocking", agent, "Use print_tool with message 'ahoy'")

        assert told.stop_reason == "end_turn"
        assert told.only("tool_return_message")["tool_return"] == "ahoy"
        await check_no_desync(client, agent, paused.run_id, told.run_id)

    async def test_approval_state_persisted_correctly_after_cancel(
        self, client: AsyncLetta, make_agent: MakeAgent
    ) -> None:
        agent = await make_agent("print_tool", "bash_tool")
        paused = await send(client, "blocking", agent, "Trigger bash_tool with 'free'")
        await cancel(client, agent)

        assert (await read_run(client, paused.run_id))["status"] == "cancelled"
        waiting: Any = await client.get(f"/v1/approvals/?agent_id={agent}", cast_to=list[Any])
        assert waiting == []
        told = await send(client, "blocking", agent, "Use print_tool with 'word'")
        assert told.stop_reason == "end_turn"

    async def test_approval_request_message_ids_desync(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool", "bash_tool")
        paused = await send(client, "blocking", agent, "Trigger bash_tool with 'free'")
        await check_no_desync(client, agent, paused.run_id)

        await cancel(client, agent)

        await check_no_desync(client, agent, paused.run_id)

    async def test_parallel_tool_calling_cancellation_with_denials(
        self, client: AsyncLetta, make_agent: MakeAgent
    ) -> None:
        agent = await make_agent("bash_tool")
        paused = await send(client, "blocking", agent, THREE_TIMES, max_steps=5)
        calls = asked_ids(paused.last)
        assert len(calls) == 3
        with pytest.raises(ConflictError, match="Please approve or deny the pending request"):
            await client.agents.messages.create(agent_id=agent, input="How do you do?")

        await cancel(client, agent)

        stored = await run_messages(client, paused.run_id)
        denials = [back for message in stored for back in message.get("tool_returns") or ()]
        assert [back["tool_call_id"] for back in denials] == calls
        assert all(DENIED in back["tool_return"] for back in denials)
        assert (await read_run(client, paused.run_id))["status"] == "cancelled"
        after = await send(client, "blocking", agent, "How do you do?")
        assert after.stop_reason == "end_turn"
        assert len(await run_messages(client, after.run_id)) > 0


class TestEdgeCases:
    async def test_cancellation_with_max_steps_reached(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool")
        turn = begin(client, "blocking", agent, "Use print_tool with 'word' [[repeat]] [[ttft:30@2]]", max_steps=2)
        await second_step(client, await turn.run_id())

        result = await cancel(client, agent)

        stopped = await turn.outcome()
        assert stopped.run_id is not None
        assert result == {stopped.run_id: "cancelled"}
        assert stopped.stop_reason == "cancelled", "a cancel that was recorded first wins"
        await check_next_message_works(client, agent)

    async def test_double_cancellation(self, client: AsyncLetta, make_agent: MakeAgent) -> None:
        agent = await make_agent("print_tool")
        turn = begin(client, "blocking", agent, "Hello [[stall]]")
        run_id = await turn.run_id()

        assert await cancel(client, agent, run_id) == {run_id: "cancelled"}
        first = await read_run(client, run_id)
        assert await cancel(client, agent, run_id) == {run_id: "cancelled"}

        assert await read_run(client, run_id) == first
        assert (await turn.outcome()).stop_reason == "cancelled"
        await check_next_message_works(client, agent)


ERROR_MODES: list[Mode] = ["token", "background"]


@pytest.mark.parametrize("mode", ERROR_MODES)
class TestErrorDataPersistence:
    async def test_error_data_stored_in_run_metadata_on_background_streaming_llm_error(
        self, client: AsyncLetta, make_agent: MakeAgent, mode: Mode
    ) -> None:
        await check_error_data(client, await make_agent("print_tool"), mode, "server", "llm_error")

    async def test_error_data_stored_on_streaming_timeout_error(
        self, client: AsyncLetta, make_agent: MakeAgent, mode: Mode
    ) -> None:
        await check_error_data(client, await make_agent("print_tool"), mode, "timeout", "llm_timeout")

    async def test_error_data_stored_on_streaming_rate_limit_error(
        self, client: AsyncLetta, make_agent: MakeAgent, mode: Mode
    ) -> None:
        await check_error_data(client, await make_agent("print_tool"), mode, "rate_limit", "llm_rate_limit")

    async def test_error_data_stored_on_streaming_auth_error(
        self, client: AsyncLetta, make_agent: MakeAgent, mode: Mode
    ) -> None:
        await check_error_data(client, await make_agent("print_tool"), mode, "auth", "llm_authentication")

    async def test_error_data_stored_on_generic_exception(
        self, client: AsyncLetta, make_agent: MakeAgent, mode: Mode
    ) -> None:
        await check_error_data(client, await make_agent("print_tool"), mode, "runtime", "internal_error")


async def check_error_data(client: AsyncLetta, agent: str, mode: Mode, kind: str, error_type: str) -> None:
    failed = await send(client, mode, agent, f"Hello [[error:{kind}]]", max_steps=1)

    run = await read_run(client, failed.run_id)
    assert run["status"] == "failed"
    assert run["metadata"]["error"]["error_type"] == error_type
    assert run["metadata"]["run_type"] == "send_message_streaming"


async def test_a_cancel_is_heard_while_a_blocking_request_waits_for_the_model(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    """The defect behind most of the above: a cancel that answered 200, and a run that then completed."""
    agent = await make_agent()
    turn: Turn = begin(client, "blocking", agent, "Hello [[ttft:30]]")
    run_id = await turn.run_id()
    await thinking(client, run_id)

    assert await cancel(client, agent) == {run_id: "cancelled"}

    assert (await turn.outcome()).stop_reason == "cancelled"
    with pytest.raises(APIStatusError):
        await cancel(client, agent)
    assert (await read_run(client, run_id))["status"] == "cancelled"
