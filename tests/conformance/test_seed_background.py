"""A background stream that is cancelled, and read again."""

from __future__ import annotations

from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.conformance.checks import check_next_message_works
from tests.conformance.conftest import MakeAgent
from tests.conformance.receiver import Receiver
from tests.conformance.vendors import with_every_vendor

pytestmark = with_every_vendor

ROLL = "Use roll_dice, with 16 sides please, and say what came up."


@pytest.mark.parametrize("moment", ["silence", "tokens", "after the tool"])
async def test_background_streaming_cancellation(client: AsyncLetta, make_agent: MakeAgent, moment: str) -> None:
    agent = await make_agent("roll_dice")
    directive = {"silence": "[[stall]]", "tokens": "[[delay:0.5]]", "after the tool": "[[stall@2]]"}[moment]
    until = {"silence": "ping", "tokens": "reasoning_message", "after the tool": "tool_return_message"}[moment]
    messages: Any = client.agents.messages
    stream = await messages.stream(
        agent_id=agent,
        messages=[{"role": "user", "content": f"{ROLL} {directive}"}],
        stream_tokens=True,
        background=True,
    )
    heard: list[Any] = []
    async for event in stream:
        heard.append(event)
        if event.message_type == until and len(heard) == [each.message_type for each in heard].index(until) + 1:
            await client.agents.messages.cancel(agent_id=agent)

    assert [event.stop_reason for event in heard if event.message_type == "stop_reason"] == ["cancelled"]
    run_id = heard[0].run_id
    assert (await client.runs.retrieve(run_id=run_id)).status == "cancelled"
    by_reason = await client.runs.list(agent_id=agent, stop_reason="cancelled", limit=1)
    assert [run.id for run in by_reason.items] == [run_id]

    again = [event async for event in await client.runs.messages.stream(run_id, starting_after=0)]
    assert len(again) > 0
    assert [event.stop_reason for event in again if event.message_type == "stop_reason"] == ["cancelled"]
    assert [event.to_dict() for event in again[1:]] == [event.to_dict() for event in heard[1:]]
    await check_next_message_works(client, agent)


async def test_background_streaming_cancellation_of_a_tool_that_takes_long(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent("ring_bell")
    messages: Any = client.agents.messages
    stream = await messages.stream(
        agent_id=agent,
        messages=[
            {"role": "user", "content": f'[[call:ring_bell {{"url": "{receiver.url}", "seconds": 60}}]]'},
        ],
        stream_tokens=True,
        background=True,
    )
    heard: list[Any] = []
    async for event in stream:
        heard.append(event)
        if event.message_type == "tool_call_message" and "}" in event.tool_call.arguments:
            await receiver.until(1)
            await client.agents.messages.cancel(agent_id=agent)

    assert [event.message_type for event in heard][-3:] == [
        "tool_return_message",
        "stop_reason",
        "usage_statistics",
    ]
    await check_next_message_works(client, agent)
