"""A model that nobody scripted. It is not clever, so nothing here depends on what it says, only on that it speaks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from letta_client import AsyncLetta, NotFoundError

from tests.local_model.conftest import MODEL, OVERRATED, MakeAgent, request_of
from tests.local_model.inference import WINDOW, InferenceProcess
from tests.serving import ServerProcess

QUESTION = "What is the capital of France?"


async def streamed(client: AsyncLetta, agent: str, text: str) -> list[Any]:
    events = await client.agents.messages.create(agent, input=text, streaming=True, stream_tokens=True)
    return [event async for event in events]


async def test_the_model_is_listed_with_the_window_that_its_server_has(client: AsyncLetta) -> None:
    windows = {model.handle: model.max_context_window for model in await client.models.list()}
    assert windows[MODEL] == WINDOW
    assert windows[OVERRATED] > WINDOW


def test_the_command_line_lists_it_as_the_documentation_says(server: ServerProcess) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "holdfast", "models", "--url", server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith(MODEL)]
    assert f"{WINDOW:,}" in line


async def test_an_agent_answers_and_the_tokens_are_counted_as_the_server_counts_them(
    client: AsyncLetta, make_agent: MakeAgent, inference: InferenceProcess
) -> None:
    agent = await make_agent()
    before = inference.tokens_said()

    told = await client.agents.messages.create(agent, input=QUESTION)

    (reply,) = told.messages
    assert reply.message_type == "assistant_message"
    assert reply.content
    assert told.stop_reason.stop_reason == "end_turn"
    assert told.usage.step_count == 1
    assert told.usage.completion_tokens == inference.tokens_said() - before > 0
    assert 0 < (told.usage.prompt_tokens or 0) < WINDOW


async def test_a_streamed_answer_arrives_in_pieces_that_make_up_what_is_stored(
    client: AsyncLetta, make_agent: MakeAgent, inference: InferenceProcess
) -> None:
    agent = await make_agent()
    before = inference.tokens_said()

    events = await streamed(client, agent, QUESTION)

    pieces = [event.content for event in events if event.message_type == "assistant_message"]
    (stop,) = [event.stop_reason for event in events if event.message_type == "stop_reason"]
    (usage,) = [event for event in events if event.message_type == "usage_statistics"]
    stored = [message async for message in client.agents.messages.list(agent, order="asc")]
    assert len(pieces) > 2
    assert stop == "end_turn"
    assert stored[-1].message_type == "assistant_message"
    assert stored[-1].content == "".join(pieces)
    assert usage.completion_tokens == inference.tokens_said() - before > 0


async def test_the_second_turn_sends_the_first_along_and_the_server_need_not_read_it_again(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    first = await client.agents.messages.create(agent, input=QUESTION)

    second = await client.agents.messages.create(agent, input="And of Italy?")

    (answered,) = [message.content for message in first.messages if message.message_type == "assistant_message"]
    sent = await request_of(client, agent)
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in sent["messages"][1:]] == [QUESTION, answered, "And of Italy?"]
    assert (second.usage.cached_input_tokens or 0) >= (first.usage.prompt_tokens or 0)


async def test_an_agent_with_tools_is_answered_by_a_model_that_was_never_taught_to_call_any(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    tool = await client.tools.upsert(source_code='def roll_dice() -> str:\n    """Rolls a die."""\n    return "4"\n')
    agent = await make_agent(tool_ids=[tool.id])

    told = await client.agents.messages.create(agent, input=QUESTION)

    assert [offered["function"]["name"] for offered in (await request_of(client, agent))["tools"]] == ["roll_dice"]
    assert [message.message_type for message in told.messages] == ["assistant_message"]
    assert told.stop_reason.stop_reason == "end_turn"


async def test_a_server_that_is_known_as_openai_answers_as_well(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent(model=OVERRATED)
    told = await client.agents.messages.create(agent, input=QUESTION)
    assert told.stop_reason.stop_reason == "end_turn"
    assert (told.usage.completion_tokens or 0) > 0


async def test_an_answer_that_reached_its_limit_says_so(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent(most=8)
    told = await client.agents.messages.create(agent, input="Tell me a long story about a ship.")
    assert told.stop_reason.stop_reason == "max_tokens_exceeded"
    assert told.usage.completion_tokens == 8


async def test_a_model_that_the_server_does_not_have_is_refused_by_name(make_agent: MakeAgent) -> None:
    with pytest.raises(NotFoundError) as refused:
        await make_agent(model="llamacpp/smollm2-360m")
    assert "llamacpp/smollm2-360m not found" in str(refused.value)
    assert MODEL in str(refused.value)
