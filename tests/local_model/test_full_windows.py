"""What becomes of more words than the model can be sent: the server knows its window, or is believed to have more."""

from __future__ import annotations

import pytest
from letta_client import AsyncLetta, BadRequestError

from tests.local_model.conftest import MODEL, OVERRATED, MakeAgent
from tests.local_model.inference import WINDOW

WORDS = "The sea is wide and the ship is small. " * 32  # nearly half a window


@pytest.mark.parametrize("model", [MODEL, OVERRATED])
async def test_a_thread_that_outgrows_the_window_is_summed_up_by_the_model_and_goes_on(
    client: AsyncLetta, make_agent: MakeAgent, model: str
) -> None:
    agent = await make_agent(model=model, most=20)
    await client.agents.messages.create(agent, input=WORDS)

    told = await client.agents.messages.create(agent, input=WORDS, include_compaction_messages=True)

    assert [message.message_type for message in told.messages] == [
        "event_message",
        "summary_message",
        "assistant_message",
    ]
    assert told.messages[1].message_type == "summary_message"
    assert told.messages[1].summary
    assert 0 < (told.usage.prompt_tokens or 0) < WINDOW


async def test_a_message_that_no_summary_makes_short_enough_is_refused_with_the_words_of_the_server(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent(model=OVERRATED)
    with pytest.raises(BadRequestError) as refused:
        await client.agents.messages.create(agent, input=WORDS * 3)
    assert "CONTEXT_WINDOW_EXCEEDED" in str(refused.value)
    assert f"({WINDOW} tokens)" in str(refused.value)
