"""What programs without an SDK send: empty parameters, whole numbers that mean "all", and the like."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.conformance.conftest import MODEL
from tests.serving import ServerProcess

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def http(server: ServerProcess) -> Generator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"User-Agent": "axios/1.7.9"}, timeout=30) as client:
        yield client


@pytest.fixture
def agent(http: httpx.Client) -> str:
    return str(ok(http.post("/v1/agents", json={"model": MODEL}))["id"])


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, (answer.status_code, answer.text[:300])
    return answer.json()


def test_a_list_takes_an_empty_cursor_as_none_and_a_limit_as_high_as_the_program_likes(
    http: httpx.Client, agent: str
) -> None:
    ok(http.post(f"/v1/agents/{agent}/messages", json=HELLO))
    ok(http.post(f"/v1/agents/{agent}/archival-memory", json={"text": "kept"}))
    conversation = ok(http.post(f"/v1/conversations?agent_id={agent}"))["id"]
    run = ok(http.get(f"/v1/runs?agent_id={agent}"))[0]["id"]
    for path in (
        "/v1/agents",
        f"/v1/agents/{agent}/archival-memory",
        f"/v1/agents/{agent}/core-memory/blocks",
        f"/v1/agents/{agent}/messages",
        f"/v1/agents/{agent}/tools",
        "/v1/archives",
        "/v1/blocks",
        "/v1/conversations",
        f"/v1/conversations/{conversation}/messages",
        "/v1/messages",
        "/v1/providers",
        "/v1/runs",
        f"/v1/runs/{run}/messages",
        f"/v1/runs/{run}/steps",
        "/v1/steps",
        "/v1/tools",
    ):
        items = ok(http.get(path, params={"limit": 1000}))
        assert items == ok(http.get(path, params={"limit": 100_000, "after": "", "before": ""})), path
