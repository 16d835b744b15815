"""What is wrong is refused with the documented status and a sentence that says what to do. Nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta

from tests.clients import AS_1X
from tests.conformance.answers import approve, asked_ids
from tests.conformance.checks import check_next_message_works, history
from tests.conformance.conftest import MODEL, MakeAgent
from tests.conformance.modes import begin, send
from tests.serving import ServerProcess

NOBODY = "agent-00000000-0000-4000-8000-000000000000"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def http(server: ServerProcess) -> Generator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=AS_1X, timeout=30) as client:
        yield client


def check_refusal(answer: httpx.Response, *statuses: int) -> str:
    """The sentence of the refusal."""
    assert answer.status_code in statuses, (answer.status_code, answer.text[:300])
    detail = answer.json()["detail"]
    said = detail if isinstance(detail, str) else detail["message"]
    assert len(said.split()) > 2, said
    assert "Traceback" not in answer.text
    return said


BAD_IDS = [
    ("GET", "/v1/agents/{}", "agent"),
    ("PATCH", "/v1/agents/{}", "agent"),
    ("DELETE", "/v1/agents/{}", "agent"),
    ("GET", "/v1/agents/{}/messages", "agent"),
    ("POST", "/v1/agents/{}/messages", "agent"),
    ("POST", "/v1/agents/{}/messages/stream", "agent"),
    ("POST", "/v1/agents/{}/messages/async", "agent"),
    ("POST", "/v1/agents/{}/messages/cancel", "agent"),
    ("GET", "/v1/agents/{}/context", "agent"),
    ("GET", "/v1/blocks/{}", "block"),
    ("GET", "/v1/tools/{}", "tool"),
    ("GET", "/v1/steps/{}", "step"),
    ("GET", "/v1/conversations/{}", "conv"),
    ("POST", "/v1/conversations/{}/messages", "conv"),
    ("POST", "/v1/conversations/{}/cancel", "conv"),
]
BODIES: dict[str, Any] = {"POST": {"messages": HELLO}, "PATCH": {"name": "x"}}


@pytest.mark.parametrize(("method", "path", "prefix"), BAD_IDS)
def test_a_malformed_id_is_unprocessable_and_an_unknown_one_not_found(
    http: httpx.Client, method: str, path: str, prefix: str
) -> None:
    body = BODIES.get(method)
    for wrong in ("nonsense", f"{prefix}-1", "run-00000000-0000-4000-8000-000000000000", "%00", "a" * 3000):
        check_refusal(http.request(method, path.format(wrong), json=body), 422)
    unknown = f"{prefix}-00000000-0000-4000-8000-000000000000"
    assert "not found" in check_refusal(http.request(method, path.format(unknown), json=body), 404).lower()


SENSELESS: list[tuple[Any, int]] = [
    ({}, 422),
    ({"messages": []}, 422),
    ({"messages": HELLO, "input": "both"}, 422),
    ({"messages": "Hello"}, 422),
    ({"messages": [{"role": "wizard", "content": "x"}]}, 422),
    ({"messages": [{"role": "user"}]}, 422),
    ({"messages": [{"role": "user", "content": ""}]}, 400),
    ({"messages": [{"role": "user", "content": []}]}, 400),
    ({"messages": [{"type": "no such type", "role": "user", "content": "x"}]}, 422),
    ({"messages": HELLO, "max_steps": "many"}, 422),
    ({"messages": HELLO, "max_steps": 0}, 422),
    ({"messages": HELLO, "stream_tokens": True}, 422),
    ({"messages": HELLO, "background": True}, 422),
    ({"messages": HELLO, "include_pings": False}, 422),
    ({"messages": HELLO, "client_tools": [{"name": ""}]}, 422),
    ({"messages": HELLO, "client_tools": [{"description": "no name"}]}, 422),
    ({"messages": HELLO, "include_return_message_types": ["no_such_message"]}, 422),
    ({"messages": HELLO, "override_model": "no/such-model"}, 404),
    ({"messages": [{"type": "approval", "approvals": []}]}, 400),
    ({"messages": [{"type": "approval", "approvals": [{"type": "approval", "tool_call_id": "x"}]}]}, 422),
    ({"messages": [{"type": "tool_return", "tool_returns": []}]}, 400),
    ([], 422),
    ("text", 422),
    (None, 422),
]


@pytest.mark.parametrize(
    ("body", "status"),
    SENSELESS,
    ids=lambda value: json.dumps(value)[:60] if not isinstance(value, int) else str(value),
)
async def test_a_message_that_makes_no_sense_is_refused_and_leaves_no_run(
    client: AsyncLetta, make_agent: MakeAgent, http: httpx.Client, body: Any, status: int
) -> None:
    agent = await make_agent()
    before = await history(client, agent)

    answer = await asyncio.to_thread(http.post, f"/v1/agents/{agent}/messages", json=body)

    check_refusal(answer, status)
    assert await history(client, agent) == before
    assert (await client.runs.list(agent_id=agent)).items == []
    await check_next_message_works(client, agent)


async def test_what_is_no_json_is_refused(client: AsyncLetta, make_agent: MakeAgent, http: httpx.Client) -> None:
    agent = await make_agent()

    for content in (b"{", b"\xff\xfe", b'{"messages": [', b'{"input": NaN}', b"[" * 100_000, b'{"input": "\\ud800"}'):
        answer = await asyncio.to_thread(
            http.post,
            f"/v1/agents/{agent}/messages",
            content=content,
            headers={"content-type": "application/json"},
        )
        check_refusal(answer, 400, 422)
    await check_next_message_works(client, agent)


async def test_a_body_that_is_too_large_is_refused(
    client: AsyncLetta, make_agent: MakeAgent, http: httpx.Client
) -> None:
    agent = await make_agent()
    huge = b'{"input": "' + b"x" * (33 * 1024 * 1024) + b'"}'

    answer = await asyncio.to_thread(http.post, f"/v1/agents/{agent}/messages", content=huge)

    check_refusal(answer, 413)
    await check_next_message_works(client, agent)


@pytest.mark.parametrize(
    "source",
    [
        "def f(:",
        "x = 1",
        "",
        "class F:\n    pass",
        "def f(x: NoSuchType) -> str:\n    '''F.\n\n    Args:\n        x (NoSuchType): What.\n    '''\n    return ''",
        "\x00",
    ],
)
def test_tool_source_that_makes_no_tool_is_refused(http: httpx.Client, source: str) -> None:
    before = len(http.get("/v1/tools/?limit=1000").json())

    for method in ("POST", "PUT"):
        check_refusal(http.request(method, "/v1/tools/", json={"source_code": source}), 400, 422)

    assert len(http.get("/v1/tools/?limit=1000").json()) == before


IMPOSSIBLE: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"model": "no/such-model"}, (400, 404)),
    ({"model": "nonsense"}, (400, 404, 422)),
    ({"agent_type": "no_such_agent"}, (422,)),
    ({"tool_ids": ["tool-00000000-0000-4000-8000-000000000000"]}, (400, 404)),
    ({"tools": ["no_such_tool"]}, (400, 404)),
    ({"block_ids": ["block-00000000-0000-4000-8000-000000000000"]}, (400, 404)),
    ({"tool_rules": [{"type": "no_such_rule", "tool_name": "x"}]}, (422,)),
    ({"tool_rules": [{"type": "conditional", "tool_name": "x", "child_output_mapping": {}}]}, (400, 422)),
    ({"context_window_limit": 10**9}, (400, 422)),
    ({"memory_blocks": [{"label": "a", "value": "x" * 50, "limit": 10}]}, (400, 422)),
    ({"memory_blocks": [{"label": "a", "value": ""}, {"label": "a", "value": ""}]}, (400, 409, 422)),
]


@pytest.mark.parametrize(
    ("fields", "statuses"),
    IMPOSSIBLE,
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_an_agent_that_cannot_be_is_not_made(
    http: httpx.Client, fields: dict[str, Any], statuses: tuple[int, ...]
) -> None:
    name = f"never-{abs(hash(json.dumps(fields)))}"
    blocks = len(http.get("/v1/blocks/?limit=1000").json())

    answer = http.post("/v1/agents/", json={"name": name, "model": MODEL, **fields})

    check_refusal(answer, *statuses)
    assert http.get("/v1/agents/", params={"name": name}).json() == []
    assert len(http.get("/v1/blocks/?limit=1000").json()) == blocks


async def test_approvals_that_match_nothing_are_refused_in_every_mode(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("bash_tool")
    for mode in ("blocking", "step", "token", "background", "async"):
        refused = await send(client, mode, agent, approve("call_none"))
        assert refused.status == 400
        assert "Please send a regular message" in refused.error["detail"]
    paused = await send(client, "blocking", agent, "Call bash_tool with 'ls'")
    for mode in ("blocking", "step", "token", "background", "async"):
        refused = await send(client, mode, agent, approve("call_none"))
        assert refused.status == 400
        assert "Expected '['" in refused.error["detail"]
    assert len((await client.runs.list(agent_id=agent)).items) == 1
    assert (await send(client, "blocking", agent, approve(*asked_ids(paused.last)))).stop_reason == "end_turn"
    await check_next_message_works(client, agent)


async def test_a_cursor_that_is_nowhere_is_not_found(
    client: AsyncLetta, make_agent: MakeAgent, http: httpx.Client
) -> None:
    agent = await make_agent()
    conversation = (await client.conversations.create(agent_id=agent)).id
    nowhere = "message-00000000-0000-4000-8000-000000000000"
    done = await send(client, "blocking", agent, "Hello")

    for path in (
        f"/v1/agents/{agent}/messages",
        f"/v1/conversations/{conversation}/messages",
        f"/v1/conversations/default/messages?agent_id={agent}",
        f"/v1/runs/{done.run_id}/messages",
    ):
        for cursor in ("before", "after"):
            answer = await asyncio.to_thread(http.get, path + ("&" if "?" in path else "?") + f"{cursor}={nowhere}")
            check_refusal(answer, 404)


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=many", "limit=100000", "order=sideways"])
def test_a_page_that_cannot_be_is_refused(http: httpx.Client, query: str) -> None:
    for path in ("/v1/agents/", "/v1/runs/", "/v1/tools/", "/v1/blocks/", "/v1/steps/"):
        answer = http.get(f"{path}?{query}")
        if answer.status_code != 200:
            check_refusal(answer, 422)
        else:
            assert query == "limit=100000"


def test_what_does_not_exist_says_so(http: httpx.Client) -> None:
    check_refusal(http.get("/v1/no-such-thing"), 404)
    check_refusal(http.put("/v1/agents/"), 405)
    check_refusal(
        http.patch(f"/v1/agents/{NOBODY}/messages/message-00000000-0000-4000-8000-000000000000", json={}), 405
    )


async def test_a_conversation_that_is_deleted_takes_no_more_messages(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    conversation = (await client.conversations.create(agent_id=agent)).id
    turn = begin(client, "token", conversation, "Hello")
    assert (await turn.outcome()).stop_reason == "end_turn"

    await client.conversations.delete(conversation_id=conversation)

    refused = await send(client, "step", conversation, "Hello again")
    assert refused.status == 404
    await check_next_message_works(client, agent)
