from __future__ import annotations

from letta_client import AsyncLetta

from tests.local_model.conftest import MakeAgent, request_of
from tests.local_model.inference import InferenceProcess

LONG = 700  # tokens: many seconds of talk
SHORT = 20
SOON_S = 10.0
QUESTION = "What is the capital of France?"


async def test_a_cancel_in_the_middle_of_a_reply_stops_the_model_and_leaves_an_agent_that_answers(
    client: AsyncLetta, make_agent: MakeAgent, inference: InferenceProcess
) -> None:
    # Held to a shape that only a long reply has, the model cannot come to an end by itself while we look.
    shape = {"type": "array", "items": {"type": "integer"}, "minItems": LONG}
    agent = await make_agent(most=LONG, response_format={"type": "json_schema", "json_schema": shape})
    before = inference.tokens_said()

    events = await client.agents.messages.create(agent, input="Count.", streaming=True, stream_tokens=True)
    heard: list[str | None] = []
    answered: dict[str, object] = {}
    async for event in events:
        heard.append(event.message_type)
        if heard.count("assistant_message") == 3 and not answered:
            assert inference.is_busy()
            answered = await client.agents.messages.cancel(agent)

    assert list(answered.values()) == ["cancelled"]
    assert heard[-2:] == ["stop_reason", "usage_statistics"]
    inference.check_falls_silent(SOON_S)
    assert inference.tokens_said() - before < LONG // 2
    (run,) = (await client.runs.list(agent_id=agent)).items
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled")

    await client.agents.update(agent, response_format=None, max_tokens=SHORT)
    told = await client.agents.messages.create(agent, input=QUESTION)

    sent = (await request_of(client, agent))["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert [message.message_type for message in told.messages] == ["assistant_message"]
    assert 0 < (told.usage.completion_tokens or 0) <= SHORT
