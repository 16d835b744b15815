"""Secrets in clear need a key of their own: whoever has none, or the API key alone, reads them masked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients import AS_0X

from .resources import Served, serving

MASKED = "********"
SECRETS = "agent.secrets"
ALL_READS = (
    "/v1/agents/",
    "/v1/agents/{agent}",
    "/v1/agents/?include=agent.secrets",
    "/v1/agents/?include_relationships=tool_exec_environment_variables",
    "/v1/agents/{agent}?include=agent.secrets",
    "/v1/agents/{agent}?include_relationships=secrets",
    "/v1/blocks/{block}/agents?include=agent.secrets",
)
TELL = 'import os\ndef tell() -> str:\n    """Tell the secret."""\n    return os.environ.get("KEY", "none")\n'


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def password(key: str) -> dict[str, str]:
    return {"x-bare-password": f"password {key}"}


@pytest.fixture
async def keyed(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A server with a secrets key and no API key."""
    async with serving(database_url, tmp_path, secrets_key="read-it") as opened:
        yield opened


@pytest.fixture
async def closed(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A server with both keys."""
    async with serving(database_url, tmp_path, api_key="come-in", secrets_key="read-it") as opened:
        opened.http.headers.update(bearer("come-in"))
        yield opened


async def shown(served: Served, agent: dict[str, Any], headers: dict[str, str] | None = None) -> set[str]:
    """The values that every read of the agent shows, to a client of 0.x, which need not ask for them."""
    values: set[str] = set()
    for path in ALL_READS:
        address = path.format(agent=agent["id"], block=agent["blocks"][0]["id"])
        answer = await served.http.get(address, headers=AS_0X | (headers or {}))
        assert answer.status_code == 200, answer.text
        found: Any = answer.json()
        states: list[dict[str, Any]] = [found] if "{agent}" in path else found
        for state in states:
            assert state["secrets"] == state["tool_exec_environment_variables"]
            values |= {secret["value"] for secret in state["secrets"]}
    return values


async def make(served: Served) -> dict[str, Any]:
    return await served.create(secrets={"KEY": "hush"}, memory_blocks=[{"label": "human", "value": ""}])


async def test_without_a_secrets_key_nobody_reads_secrets_in_clear(served: Served) -> None:
    agent = await make(served)
    assert await shown(served, agent) == {MASKED}
    assert await shown(served, agent, bearer("")) == {MASKED}
    assert await shown(served, agent, bearer("None")) == {MASKED}


@pytest.mark.parametrize("header", [bearer, password])
async def test_the_secrets_key_reads_secrets_in_clear_on_a_server_without_an_api_key(
    keyed: Served, header: Any
) -> None:
    agent = await make(keyed)
    assert await shown(keyed, agent, header("read-it")) == {"hush"}
    assert await shown(keyed, agent, header("read-it-not")) == {MASKED}
    assert await shown(keyed, agent) == {MASKED}


async def test_the_api_key_reads_secrets_masked_and_the_secrets_key_does_all_that_it_does(closed: Served) -> None:
    agent = await make(closed)
    assert await shown(closed, agent) == {MASKED}
    assert await shown(closed, agent, bearer("read-it")) == {"hush"}
    closed.http.headers.update(bearer("read-it"))
    assert (await closed.create(secrets={"A": "1"}))["secrets"][0]["value"] == "1"
    await closed.ok("DELETE", f"/v1/agents/{agent['id']}")


async def test_with_both_keys_set_neither_a_wrong_key_nor_none_comes_in(closed: Served) -> None:
    app = closed.http._transport
    async with httpx.AsyncClient(transport=app, base_url="http://holdfast") as stranger:
        for headers in ({}, bearer("read"), bearer("come-in2"), {"authorization": "read-it"}):
            assert (await stranger.get("/v1/agents/", headers=headers)).status_code == 401


async def test_the_client_library_reads_secrets_with_the_secrets_key(keyed: Served) -> None:
    agent = await make(keyed)
    for key, value in (("none", MASKED), ("read-it", "hush")):
        client = keyed.client.with_options(api_key=key)
        found = await client.agents.retrieve(agent["id"], include=[SECRETS])
        assert [secret.value for secret in found.secrets or ()] == [value]


async def test_a_secret_that_comes_back_masked_keeps_its_value(keyed: Served) -> None:
    tool = await keyed.create_tool(TELL)
    agent = await keyed.create(tool_ids=[tool["id"]], secrets={"KEY": "hush", "OTHER": "1"})
    path = f"/v1/agents/{agent['id']}"
    read = await keyed.ok("GET", path, include=SECRETS)
    back = {secret["key"]: secret["value"] for secret in read["secrets"]}
    changed = await keyed.ok("PATCH", path, {"secrets": back | {"OTHER": "2"}})
    assert {secret["key"]: secret["value"] for secret in changed["secrets"]} == {"KEY": MASKED, "OTHER": "2"}
    assert (await keyed.ok("POST", f"{path}/tools/tell/run", {"args": {}}))["func_return"] == "hush"


async def test_the_mask_is_refused_as_the_value_of_a_secret_that_there_is_not(served: Served) -> None:
    agent = await make(served)
    sentence = await served.refused(400, "PATCH", f"/v1/agents/{agent['id']}", {"secrets": {"NEW": MASKED}})
    assert "NEW" in sentence
    assert "NEW" in await served.refused(400, "POST", "/v1/agents/", {"secrets": {"NEW": MASKED}})
    assert await shown(served, agent) == {MASKED}


async def test_answers_to_changes_show_no_more_than_what_the_change_has_sent(served: Served) -> None:
    tool = await served.create_tool(TELL)
    agent = await make(served)
    path = f"/v1/agents/{agent['id']}"
    served.http.headers.update(AS_0X)
    answers = [
        await served.ok("PATCH", path, {"name": "Ada"}),
        await served.ok("PATCH", f"{path}/tools/attach/{tool['id']}"),
        await served.ok("PATCH", f"{path}/tools/detach/{tool['id']}"),
        await served.ok("PATCH", f"{path}/core-memory/blocks/detach/{agent['blocks'][0]['id']}"),
        await served.ok("PATCH", f"{path}/reset-messages"),
    ]
    assert [answer["id"] for answer in answers] == [agent["id"]] * len(answers)
    assert "hush" not in str(answers)
