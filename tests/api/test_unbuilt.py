from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.routing import Match, Route

from holdfast.api.framework.routing import RouteIndex
from holdfast.api.middleware import canonical_path
from holdfast.api.not_implemented import UNBUILT, unbuilt_routes
from holdfast.api.server import ROUTERS

from .application import AGENT, client_of

OPERATIONS = [operation for family in UNBUILT for operation in family.operations]


def every_operation() -> list[str]:
    """What the retired server served, of which nothing may be unknown here: a 404 says that a record is missing."""
    lines = Path(__file__).with_name("operations-0.16.8.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_every_operation_of_the_old_server_is_served_or_said_to_be_missing() -> None:
    index = RouteIndex([*_routes(), *unbuilt_routes()])
    operations = every_operation()
    assert len(operations) > 250
    assert [operation for operation in operations if _match(index, operation) is not Match.FULL] == []


def test_what_is_missing_was_there() -> None:
    """Or was in the hosted service. A path that nobody ever served would be a slip of the pen."""
    known = {bare(operation) for operation in every_operation()}
    listed = {bare(operation) for family in UNBUILT if not family.cloud_only for operation in family.operations}
    assert listed - known == set()


def test_no_operation_is_listed_twice() -> None:
    assert len(OPERATIONS) == len(set(OPERATIONS))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """One for all operations: none of them changes anything."""
    async with client_of() as opened:
        yield opened


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_operation_on_the_list_answers_501_with_a_sentence(client: httpx.AsyncClient, operation: str) -> None:
    """Fails once the operation is built: then take it off the list in holdfast.api.not_implemented."""
    method, template = operation.split(" ")
    path = re.sub(r"\{(\w+?)(_id)?\}", _well_formed, template)
    answer = await client.request(method, path, json={} if method != "GET" else None)
    assert answer.status_code == 501, answer.text
    assert operation in answer.json()["detail"]
    assert answer.headers["x-should-retry"] == "false"


async def test_a_stored_message_cannot_be_changed() -> None:
    async with client_of() as client:
        answer = await client.patch(f"/v1/agents/{AGENT}/messages/{AGENT.replace('agent', 'message')}", json={})
    assert answer.status_code == 405
    assert "cannot be changed" in answer.json()["detail"]


def _match(index: RouteIndex, operation: str) -> Match:
    method, template = operation.split(" ")
    path = re.sub(r"\{(\w+?)(_id)?\}", _well_formed, template)
    slashed = {route.path for route in (*unbuilt_routes(), *_routes()) if route.path.endswith("/")}
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": canonical_path(path, slashed),
        "path_params": {},
        "root_path": "",
    }
    return index.matches(scope)[0]


def _routes() -> list[Route]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]


def bare(operation: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", operation).rstrip("/")


def _well_formed(match: re.Match[str]) -> str:
    prefix = {"folder": "source", "conversation": "conv"}.get(match[1], match[1])
    return AGENT.replace("agent", prefix) if match[2] else "some-name"
