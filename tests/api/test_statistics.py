"""`/v1/statistics/`: figures about real runs, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.served import ServedClient, served

from .application import client_of

GREET = 'def greet(name: str) -> str:\n    """Greets.\n\n    Args:\n        name: whom\n    """\n    return name\n'
FAIL = 'def fail() -> str:\n    """Fails."""\n    raise ValueError("no")\n'


@pytest.fixture
async def client(tmp_path: Path, database_url: str) -> AsyncGenerator[ServedClient]:
    async with served(tmp_path, database_url=database_url) as opened:
        yield opened


async def statistics(client: ServedClient, **query: Any) -> dict[str, Any]:
    return await client.ask("GET", "/v1/statistics/", **query)


async def test_figures_are_those_of_the_runs_and_steps_that_the_lists_show(client: ServedClient) -> None:
    tools = [await client.tools.upsert(source_code=source) for source in (GREET, FAIL)]
    agent = await client.agent(tool_ids=[tool.id for tool in tools])
    for text in ("Hello", "Call greet with 'Ada'", "Call fail", "[[error:server]]"):
        await client.http.post(f"/v1/agents/{agent.id}/messages", json={"input": text})
    found = await statistics(client)
    runs = await client.ask("GET", "/v1/runs/", agent_id=agent.id)
    steps = await client.ask("GET", "/v1/steps/", agent_id=agent.id)
    assert sum(found["totals"].values()) == len(runs) == 4
    for state, number in found["totals"].items():
        assert number == sum(run["status"] == state for run in runs)
        assert number == sum(bucket["runs"][state] for bucket in found["buckets"])
    for name in ("prompt_tokens", "completion_tokens"):
        total = sum(step[name] for step in steps)
        assert found["usage"][name] == total
        assert sum(day["usage"][name] for day in found["days"]) == total
        assert sum(bucket["usage"][name] for bucket in found["buckets"]) == total
    called = {tool["name"]: tool for tool in found["tools"]}
    assert (called["greet"]["calls"], called["greet"]["failures"], called["greet"]["timed_calls"]) == (1, 0, 1)
    assert (called["fail"]["calls"], called["fail"]["failures"]) == (1, 1)
    assert 0 < called["greet"]["p50_ns"] <= called["greet"]["p95_ns"] <= called["greet"]["max_ns"]
    slowest = [run["total_duration_ns"] for run in found["slowest_runs"]]
    assert slowest == sorted((run["total_duration_ns"] for run in runs), reverse=True)
    [provider] = found["providers"]
    assert (provider["name"], provider["calls"]) == ("holdfast", len(steps))
    assert (provider["status"], provider["failures"]) == ("failing", 1)
    assert [error["runs"] for error in found["errors"]] == [found["totals"]["failed"]] == [1]
    assert found["errors"][0]["error_type"] == provider["last_error_type"]


async def test_a_tool_that_an_approval_let_run_is_timed(client: ServedClient) -> None:
    agent = await client.guarded_agent(GREET)
    await client.say(agent.id, "Call greet with 'Ada'")
    held = await statistics(client)
    assert (held["queue"]["held"], held["tools"]) == (1, [])
    [waiting] = await client.ask("GET", "/v1/approvals/")
    decision = {"type": "approval", "tool_call_id": waiting["tool_calls"][0]["tool_call_id"], "approve": True}
    body = {"messages": [{"type": "approval", "approvals": [decision]}]}
    await client.ask("POST", f"/v1/agents/{agent.id}/messages", body)
    decided = await statistics(client)
    assert decided["queue"]["held"] == 0
    [tool] = decided["tools"]
    assert (tool["name"], tool["calls"], tool["timed_calls"]) == ("greet", 1, 1)


async def test_an_active_run_is_counted_with_its_worker(client: ServedClient) -> None:
    idle = await statistics(client)
    assert idle["workers"] == [{"id": client.deps.worker.owner, "runs": 0}]
    agent = await client.agent()
    stream = await client.agents.messages.create(agent.id, input="[[stall]]", streaming=True)
    await client.model_asked()
    busy = await statistics(client)
    assert busy["workers"] == [{"id": client.deps.worker.owner, "runs": 1}]
    assert (busy["queue"]["active"], busy["queue"]["waiting"], busy["totals"]["running"]) == (1, 0, 1)
    await client.agents.messages.cancel(agent.id)
    await stream.close()


async def test_buckets_are_as_wide_as_asked_for_and_begin_where_since_falls_into(client: ServedClient) -> None:
    since, until = "2026-03-01T09:30:10Z", "2026-03-01T10:30:00Z"
    found = await statistics(client, since=since, until=until, bucket_s=600)
    assert (found["since"], found["until"], found["bucket_s"]) == ("2026-03-01T09:30:00Z", until, 600)
    assert [bucket["at"][11:16] for bucket in found["buckets"]] == [
        "09:30",
        "09:40",
        "09:50",
        "10:00",
        "10:10",
        "10:20",
    ]
    assert found["days"] == []


async def test_what_was_before_since_is_not_counted(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "Hello")
    soon = datetime.now(UTC) + timedelta(hours=2)
    found = await statistics(client, since=soon.isoformat(), until=(soon + timedelta(hours=1)).isoformat())
    assert sum(found["totals"].values()) == 0
    assert found["usage"]["steps"] == 0
    assert (found["tools"], found["slowest_runs"], found["providers"]) == ([], [], [])


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-03-02T00:00:00Z", "until": "2026-03-01T00:00:00Z"}, "since"),
        ({"since": "2020-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "400 days"),
        ({"since": "0001-01-01T00:00:00Z", "until": "0001-01-02T00:00:00Z"}, "1970"),
        ({"until": "9999-12-31T23:59:59Z"}, "2100"),
        ({"bucket_s": "59"}, "bucket_s"),
        ({"bucket_s": "99999999999999999999"}, "bucket_s"),
        ({"bucket_s": "60", "since": "2026-01-01T00:00:00Z", "until": "2026-02-01T00:00:00Z"}, "1000"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(
    client: ServedClient, query: dict[str, str], named: str
) -> None:
    assert named in await client.refusal(422, "GET", "/v1/statistics/", **query)


async def test_they_need_the_key_as_everything_does() -> None:
    async with client_of(api_key="secret") as http:
        assert (await http.get("/v1/statistics/")).status_code == 401
