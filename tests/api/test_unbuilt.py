from __future__ import annotations

import re

import pytest

from holdfast.api.unbuilt import UNBUILT

from .application import AGENT, client_of

OPERATIONS = [operation for family in UNBUILT for operation in family.operations]


def test_no_operation_is_listed_twice() -> None:
    assert len(OPERATIONS) == len(set(OPERATIONS))


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_operation_on_the_list_answers_501_with_a_sentence(operation: str) -> None:
    """Fails once the operation is built: then take it off the list in holdfast.api.unbuilt."""
    method, template = operation.split(" ")
    path = re.sub(r"\{(\w+?)(_id)?\}", _well_formed, template)
    async with client_of() as client:
        answer = await client.request(method, path, json={} if method != "GET" else None)
    assert answer.status_code == 501, answer.text
    assert operation in answer.json()["detail"]
    assert answer.headers["x-should-retry"] == "false"


async def test_a_stored_message_cannot_be_changed() -> None:
    async with client_of() as client:
        answer = await client.patch(f"/v1/agents/{AGENT}/messages/{AGENT.replace('agent', 'message')}", json={})
    assert answer.status_code == 405
    assert "cannot be changed" in answer.json()["detail"]


def _well_formed(match: re.Match[str]) -> str:
    prefix = {"folder": "source", "conversation": "conv"}.get(match[1], match[1])
    return AGENT.replace("agent", prefix) if match[2] else "some-name"
