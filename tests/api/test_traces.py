"""What vendors were sent and said, over HTTP; and the trace that a caller names."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec

from holdfast import ids
from holdfast.core.redaction import HIDDEN

from ..served import ServedClient, served

HELLO = 'def greet() -> str:\n    """Say hello."""\n    return "hello"\n'
TRACE = "0af7651916cd43dd8448eb211c80319c"
PIXEL = base64.b64encode(b"\x89PNG" + bytes(400)).decode()


async def newest_step(client: ServedClient, agent_id: str) -> Any:
    return (await client.ask("GET", "/v1/steps/", agent_id=agent_id, limit=1))[0]


async def test_the_client_reads_a_steps_trace_and_those_of_a_run(tmp_path: Path) -> None:
    async with served(tmp_path, trace_provider=True) as client:
        tool = await client.tools.upsert(source_code=HELLO)
        agent = await client.agent(tool_ids=[tool.id], tags=["blue", "red"])
        await client.say(agent.id, "Call greet [[usage:100,10]]")
        step = await newest_step(client, agent.id)
        shown = await client.steps.trace.retrieve(step["id"])
        assert shown is not None
        assert (shown.step_id, shown.run_id, shown.agent_id) == (step["id"], step["run_id"], agent.id)
        assert shown.agent_tags == ["blue", "red"]
        assert shown.id is not None
        assert ids.is_id("provider_trace", shown.id)
        assert shown.request_json["model"] == "offline"
        assert shown.response_json["finish"] == "stop"
        of_run = await client.runs.trace.retrieve(step["run_id"])
        assert [trace["response_json"]["finish"] for trace in msgspec.convert(of_run, list[dict[str, Any]])] == [
            "tool_calls",
            "stop",
        ]
        assert len(await client.runs.trace.retrieve(step["run_id"], limit=1)) == 1
        old_address = await client.ask("GET", f"/v1/telemetry/{step['id']}")
        assert old_address == await client.ask("GET", f"/v1/steps/{step['id']}/trace")


async def test_tracing_is_off_by_default_and_what_is_not_there_is_null(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent = await client.agent()
        await client.say(agent.id, "hello")
        step = await newest_step(client, agent.id)
        assert await client.steps.trace.retrieve(step["id"]) is None
        assert await client.ask("GET", f"/v1/telemetry/{step['id']}") is None
        assert await client.ask("GET", f"/v1/steps/{ids.new('step')}/trace") is None
        assert await client.runs.trace.retrieve(step["run_id"]) == []
        await client.refusal(404, "GET", f"/v1/runs/{ids.new('run')}/trace")
        for path in ("/v1/telemetry/nonsense", "/v1/steps/nonsense/trace"):
            await client.refusal(422, "GET", path)


async def test_keys_secrets_and_pictures_are_not_kept(tmp_path: Path) -> None:
    key = "sk-" + "proj-abcdefghijklmnop1234"
    async with served(tmp_path, trace_provider=True, encryption_key="the server's own") as client:
        agent = await client.agent(secrets={"CODE": "open sesame"})
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        text = {"type": "text", "text": f"open sesame, {key}, the server's own [[say:open sesame]]"}
        body = {"messages": [{"role": "user", "content": [text, picture]}]}
        await client.ask("POST", f"/v1/agents/{agent.id}/messages", body)
        shown = await client.ask("GET", f"/v1/steps/{(await newest_step(client, agent.id))['id']}/trace")
        kept = msgspec.json.encode(shown).decode()
        assert not [gone for gone in ("open sesame", key, "the server's own", PIXEL) if gone in kept]
        assert f"{HIDDEN}, {HIDDEN}, {HIDDEN}" in kept
        assert "data:image/png;base64,[404 bytes]" in kept


async def test_old_traces_are_forgotten_and_the_steps_stay(tmp_path: Path) -> None:
    async with served(tmp_path, trace_provider=True, trace_retention_s=0) as client:
        agent = await client.agent()
        await client.say(agent.id, "hello")
        step = await newest_step(client, agent.id)
        assert await client.steps.trace.retrieve(step["id"]) is not None
        await client.deps.retention.forget_old_traces()
        assert await client.steps.trace.retrieve(step["id"]) is None
        assert (await client.steps.retrieve(step["id"])).status == "success"


async def test_a_step_can_be_found_by_the_trace_that_its_caller_named(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent = await client.agent()
        await client.say(agent.id, "hello")
        await client.say(agent.id, "again", extra_headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
        (found,) = [step async for step in client.steps.list(trace_ids=[TRACE])]
        assert found.trace_id == TRACE
        traces = [step.trace_id async for step in client.steps.list(agent_id=agent.id)]
        assert traces == [TRACE, None]


async def test_a_traceparent_that_makes_no_sense_is_not_followed(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent = await client.agent()
        for nonsense in (b"00-nonsense", b"\xff\xe9", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01"):
            headers = {b"traceparent": nonsense}
            answer = await client.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "hi"}, headers=headers)
            assert answer.status_code == 200
            assert (await newest_step(client, agent.id))["trace_id"] is None


async def test_what_a_run_cost_and_whether_it_was_guessed_is_shown(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent = await client.agent()
        await client.say(agent.id, "hello [[usage:100,10,5]]")
        step = await newest_step(client, agent.id)
        usage = await client.ask("GET", f"/v1/runs/{step['run_id']}/usage")
        assert (usage["cost_usd"], usage["estimated"]) == (None, False), "the offline model has no price"
        assert (step["cost_usd"], step["usage_estimated"]) == (None, False)
        metrics = await client.ask("GET", f"/v1/steps/{step['id']}/metrics")
        assert 0 < metrics["ttft_ns"] <= metrics["llm_request_ns"] <= metrics["step_ns"]
