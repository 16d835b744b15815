"""What must hold whenever an agent is at rest, asked through the API alone."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Sequence

from letta_client import AsyncLetta

from tests.conformance.modes import Json, Outcome, send

STATUS_OF = {
    "end_turn": "completed",
    "tool_rule": "completed",
    "max_steps": "completed",
    "requires_approval": "completed",
    "cancelled": "cancelled",
    "error": "failed",
    "llm_api_error": "failed",
    "invalid_llm_response": "failed",
    "invalid_tool_call": "failed",
    "max_tokens_exceeded": "failed",
    "no_tool_call": "failed",
    "context_window_overflow_in_system_prompt": "failed",
}
_SHOWN = ("content", "reasoning", "tool_return", "tool_returns", "status", "hidden_reasoning", "state")


async def check_at_rest(client: AsyncLetta, agent_id: str, *, compacted: bool = False) -> None:
    """`compacted`: some of what is listed has left the context."""
    agent = await read_agent(client, agent_id)
    listed = await history(client, agent_id, use_assistant_message=False)
    check_window(agent["message_ids"], listed, compacted=compacted)
    check_calls(listed, agent["pending_approval"])
    check_otids(listed)
    for run in (await client.runs.list(agent_id=agent_id, limit=1000)).items:
        await check_run(client, run.to_dict())


async def check_next_message_works(client: AsyncLetta, agent_id: str) -> None:
    after = await send(client, "blocking", agent_id, "Are you still there?")
    assert after.stop_reason == "end_turn", after
    assert after.text == "You said: Are you still there?"
    await check_at_rest(client, agent_id)


def check_window(message_ids: Sequence[str], listed: Sequence[Json], *, compacted: bool) -> None:
    stored = list(dict.fromkeys(message["id"] for message in listed))
    assert message_ids[0] == stored[0], "the system message comes first"
    if compacted:
        assert set(message_ids) <= set(stored)
    else:
        assert list(message_ids) == stored


def check_calls(listed: Sequence[Json], pending: Json | None) -> None:
    """Every call has exactly one return, but for those of a reply that waits for an answer."""
    calls = Counter(call["tool_call_id"] for message in listed for call in calls_of(message))
    returns = Counter(back["tool_call_id"] for message in listed for back in message.get("tool_returns") or ())
    assert set(calls.values()) | set(returns.values()) <= {1}
    waiting = {call["tool_call_id"] for message in listed if is_pending(message, pending) for call in calls_of(message)}
    assert calls.keys() - returns.keys() == waiting
    assert returns.keys() <= calls.keys()


def is_pending(message: Json, pending: Json | None) -> bool:
    return pending is not None and message["step_id"] == pending["step_id"]


def calls_of(message: Json) -> list[Json]:
    if message["message_type"] not in ("tool_call_message", "approval_request_message"):
        return []
    return message["tool_calls"]


def check_otids(listed: Sequence[Json]) -> None:
    """An output message's otid is its row's uuid with the number of the part in the low seven bits."""
    parts = Counter[str]()
    for message in listed:
        kind, number = message["message_type"], parts[message["id"]]
        parts[message["id"]] += 1
        if kind == "approval_request_message":
            assert message["otid"] == message["id"]
        elif kind not in ("user_message", "approval_response_message", "system_message"):
            row = uuid.UUID(message["id"].removeprefix("message-")).int
            assert uuid.UUID(message["otid"]).int == (row >> 7 << 7) | number


async def check_run(client: AsyncLetta, run: Json) -> None:
    assert run["stop_reason"] is not None, run
    assert run["status"] == STATUS_OF[run["stop_reason"]]
    assert run["completed_at"] is not None
    assert run["total_duration_ns"] > 0
    assert run["metadata"]["run_type"].startswith("send_")
    if run["status"] == "failed":
        assert {"error_type", "message"} <= run["metadata"]["error"].keys()
    else:
        assert "error" not in run["metadata"]
    steps = [step.to_dict() for step in (await client.runs.steps.list(run_id=run["id"], limit=1000, order="asc")).items]
    assert all(step["status"] in ("success", "failed", "cancelled") for step in steps)
    assert all(step["stop_reason"] is None for step in steps[:-1])


async def check_told_is_stored(client: AsyncLetta, agent_id: str, outcome: Outcome) -> None:
    """Whatever a client was shown is in the history, under the same ids and with the same content."""
    stored = {
        (message["id"], message["otid"], message["message_type"]): message
        for message in await history(client, agent_id)
    }
    for message in outcome.messages:
        key = (message["id"], message["otid"], message["message_type"])
        assert key in stored, f"{key} was told and is not stored"
        assert shown(message) == shown(stored[key])
        assert message["step_id"] == stored[key]["step_id"]
        assert message["run_id"] == stored[key]["run_id"]


def shown(message: Json) -> Json:
    """What a reader cares for. Arguments are compared as what they mean: a model may space them as it likes."""
    kept = {name: message[name] for name in _SHOWN if name in message}
    calls = [(call["tool_call_id"], call["name"], json.loads(call["arguments"] or "{}")) for call in calls_of(message)]
    return kept | {"calls": calls}


async def history(client: AsyncLetta, agent_id: str, *, use_assistant_message: bool = True) -> list[Json]:
    """The agent's own thread, oldest first."""
    page = await client.agents.messages.list(
        agent_id=agent_id,
        limit=1000,
        order="asc",
        conversation_id="default",
        use_assistant_message=use_assistant_message,
    )
    return [message.to_dict() for message in page.items]


async def rows(client: AsyncLetta, agent_id: str) -> list[str]:
    """The message types of the history, without the system message."""
    return [message["message_type"] for message in await history(client, agent_id)][1:]


async def read_agent(client: AsyncLetta, agent_id: str) -> Json:
    agent = await client.agents.retrieve(agent_id=agent_id, include=["agent.pending_approval"])
    return agent.to_dict()


async def read_run(client: AsyncLetta, run_id: str | None) -> Json:
    assert run_id is not None
    return (await client.runs.retrieve(run_id=run_id)).to_dict()


async def steps_of(client: AsyncLetta, run_id: str | None) -> list[Json]:
    """Oldest first."""
    assert run_id is not None
    return [step.to_dict() for step in (await client.runs.steps.list(run_id=run_id, limit=1000, order="asc")).items]
