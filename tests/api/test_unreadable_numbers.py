"""NaN, Infinity and numbers out of range: JSON has none of them, and nobody is given null in their place."""

from __future__ import annotations

import pytest

from .resources import Served

TAKE = '''
def take(m: float = 0.0) -> str:
    """Take a number.

    Args:
        m (float): What.
    """
    return f"took {m}"
'''
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999")


@pytest.mark.parametrize("asks", [False, True], ids=["free", "guarded"])
@pytest.mark.parametrize("arguments", [*(f'{{"m": {number}}}' for number in NUMBERS), '{"m": [{"x": NaN}]}'])
async def test_a_call_with_an_unreadable_number_is_not_run_and_the_model_is_told(
    served: Served, arguments: str, asks: bool
) -> None:
    tool = await served.create_tool(TAKE, default_requires_approval=asks)
    agent = await served.create(model="holdfast/offline", include_base_tools=False, tool_ids=[tool["id"]])
    path = f"/v1/agents/{agent['id']}/messages"
    answer = await served.ok("POST", path, {"input": f"[[call:take {arguments}]]"})
    (returned,) = [each for each in answer["messages"] if each["message_type"] == "tool_return_message"]
    assert returned["status"] == "error"
    assert "not valid JSON" in returned["tool_return"]
    assert "is not a finite number" in returned["tool_return"]


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_request_with_an_unreadable_number_is_refused(served: Served, number: str) -> None:
    tool = await served.create_tool(TAKE)
    agent = await served.create(tool_ids=[tool["id"]])
    bodies = {
        ("PATCH", f"/v1/agents/{agent['id']}"): '{"tool_rules": [{"type": "run_first", "tool_name": "take", '
        f'"args": {{"m": {number}}}}}]}}',
        ("POST", f"/v1/agents/{agent['id']}/tools/take/run"): f'{{"args": {{"m": {number}}}}}',
        ("POST", "/v1/tools/run"): f'{{"source_code": "def take(m): pass", "args": {{"m": {number}}}}}',
    }
    for (method, path), body in bodies.items():
        answer = await served.http.request(
            method, path, content=body.encode(), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422, (path, answer.text)
