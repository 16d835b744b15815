"""Agents that clear their buffer: each turn is shown to the model by itself, and whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..served import served
from .resources import Served

SECRET = 'def secret() -> str:\n    """Tells the word."""\n    return "sesame"\n'


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["workflow_agent", "letta_v1_agent"])
async def test_after_an_approval_the_model_is_shown_the_whole_turn_and_no_other(tmp_path: Path, kind: str) -> None:
    async with served(tmp_path, trace_provider=True) as client:
        tools, arguments = (["send_message"], '{"request_heartbeat": true}') if kind == "workflow_agent" else ([], "{}")
        agent: Any = await client.guarded_agent(SECRET, agent_type=kind, message_buffer_autoclear=True, tools=tools)
        send = f"/v1/agents/{agent.id}/messages"
        for place in ("the first door", "the second door"):
            text = f"[[call:secret {arguments}@1]] at {place}"
            asked = await client.ask("POST", send, {"messages": [{"role": "user", "content": text}]})
            request_id = asked["messages"][-1]["id"]
            answer = {"type": "approval", "approve": True, "approval_request_id": request_id}
            await client.ask("POST", send, {"messages": [answer], "max_steps": 2})
        step = (await client.ask("GET", "/v1/steps/", agent_id=agent.id, limit=1))[0]
        sent = (await client.ask("GET", f"/v1/steps/{step['id']}/trace"))["request_json"]["messages"]
        assert [message["role"] for message in sent[:4]] == ["system", "user", "assistant", "tool"]
        assert "the second door" in str(sent[1])
        assert "sesame" in str(sent[3])
        assert "the first door" not in str(sent)


async def test_what_was_said_is_listed_and_not_in_the_window(served: Served) -> None:
    agent = await served.create(agent_type="workflow_agent", tools=["send_message"], message_buffer_autoclear=True)
    path = f"/v1/agents/{agent['id']}"
    await served.ok("POST", f"{path}/messages", {"messages": [{"role": "user", "content": "the anchor"}]})
    assert (await served.ok("GET", path))["message_ids"] == agent["message_ids"]
    overview = await served.ok("GET", f"{path}/context")
    assert overview["num_messages"] == len(agent["message_ids"])
    assert "anchor" not in str(overview["messages"])
    listed = await served.ok("GET", f"{path}/messages")
    assert "user_message" in [message["message_type"] for message in listed]
