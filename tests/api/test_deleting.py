"""Deleting something that an agent is at work on stops the work first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ..served import ServedClient, served


async def stalled_run(client: ServedClient, path: str) -> asyncio.Task[Any]:
    """A run that waits for a model which never answers."""
    body = {"messages": [{"role": "user", "content": "[[stall]] hello"}], "streaming": True}
    task = asyncio.create_task(client.http.post(path, json=body))
    await client.model_asked()
    return task


async def test_deleting_an_agent_stops_its_run_and_ends_its_stream(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent = await client.agent()
        stream = await stalled_run(client, f"/v1/agents/{agent.id}/messages")

        await client.agents.delete(agent.id)

        answer = await asyncio.wait_for(stream, 60)
        assert '"stop_reason":"cancelled"' in answer.text and answer.text.endswith("data: [DONE]\n\n")
        assert client.open_model_streams == 0
        assert await client.refusal(404, "GET", f"/v1/agents/{agent.id}") == "Agent not found"


async def test_deleting_a_conversation_stops_its_run(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent = await client.agent()
        conversation = await client.conversations.create(agent_id=agent.id)
        stream = await stalled_run(client, f"/v1/conversations/{conversation.id}/messages")

        await client.conversations.delete(conversation.id)

        answer = await asyncio.wait_for(stream, 60)
        assert '"stop_reason":"cancelled"' in answer.text
        assert client.open_model_streams == 0
