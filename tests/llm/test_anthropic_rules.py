"""The fake is worth something only if it refuses what the vendor refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.llm.fakes.anthropic import AnthropicProtocol, signature_of

TEXT = {"type": "text", "text": "hi"}
USE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "t", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
TOOL: dict[str, Any] = {"name": "t", "input_schema": {"type": "object"}}
MARK = {"cache_control": {"type": "ephemeral"}}
THINKING = {"type": "enabled", "budget_tokens": 1024}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def body(*messages: dict[str, Any], **more: Any) -> dict[str, object]:
    return {"model": "m", "max_tokens": 2000, "messages": list(messages), "tools": [TOOL], **more}


GOOD = body(user(TEXT), assistant(THOUGHT, TEXT, USE), user(RESULT, TEXT), thinking=THINKING)
BAD: dict[str, dict[str, object]] = {
    "at least one message": body(),
    "first message must use the `user`": body(assistant(TEXT), user(TEXT)),
    "roles must alternate": body(user(TEXT), user(TEXT)),
    "non-empty content": body(user()),
    "non-whitespace": body(user({"type": "text", "text": " "})),
    "system": body(user(TEXT), system=[{"type": "text", "text": ""}]),
    "not allowed for the role `user`": body(user(USE)),
    "not allowed for the role `assistant`": body(user(TEXT), assistant(RESULT)),
    "without `tool_result`": body(user(TEXT), assistant(USE), user(TEXT)),
    "immediately after": body(user(TEXT), assistant(USE), user(TEXT, RESULT)),
    "unexpected `tool_use_id`": body(user(TEXT), assistant(TEXT), user(RESULT)),
    "ids must be unique": body(user(TEXT), assistant(USE), user(RESULT), assistant(USE), user(RESULT)),
    "should match pattern '^[a-zA-Z0-9_-]+$'": body(user(TEXT), assistant(USE | {"id": "c.1"}), user(RESULT)),
    "tool_use.name": body(user(TEXT), assistant(USE | {"name": "t.t"}), user(RESULT)),
    "single result": body(user(TEXT), assistant(USE), user(RESULT, RESULT)),
    "cannot be empty if `is_error`": body(user(TEXT), assistant(USE), user(RESULT | {"content": "", "is_error": True})),
    "{1,128}": body(user(TEXT), tools=[TOOL | {"name": "t.t"}]),
    "input_schema.type": body(user(TEXT), tools=[TOOL | {"input_schema": {}}]),
    "must define tools": body(user(TEXT), assistant(USE), user(RESULT), tools=[]),
    "forces tool use": body(user(TEXT), thinking=THINKING, tool_choice={"type": "any"}),
    "while providing tools": body(user(TEXT), tools=[], tool_choice={"type": "any"}),
    "not found in provided tools": body(user(TEXT), tool_choice={"type": "tool", "name": "other"}),
    "maximum of 4": body(user(*[TEXT | MARK] * 5)),
    "on thinking blocks": body(user(TEXT), assistant(THOUGHT | MARK, TEXT), user(TEXT)),
    "may only be set to 1": body(user(TEXT), thinking=THINKING, temperature=0.5),
    "range: 0..1": body(user(TEXT), temperature=1.5),
    "greater than or equal to 1024": body(user(TEXT), thinking={"type": "enabled", "budget_tokens": 5}),
    "greater than `thinking.budget_tokens`": body(user(TEXT), thinking=THINKING, max_tokens=1024),
    "prefill": body(user(TEXT), assistant(TEXT), thinking=THINKING),
    "in the final position": body(user(TEXT), assistant(THOUGHT, TEXT)),
    "trailing whitespace": body(user(TEXT), assistant({"type": "text", "text": "so "})),
    "signature: Field required": body(user(TEXT), assistant(THOUGHT | {"signature": ""}, TEXT), user(TEXT)),
    "final block in an assistant": body(user(TEXT), assistant(TEXT, THOUGHT), user(TEXT)),
    "must start with a thinking block": body(user(TEXT), assistant(USE), user(RESULT), thinking=THINKING),
    "Invalid `signature`": body(
        user(TEXT), assistant(THOUGHT | {"signature": signature_of("something else")}, TEXT), user(TEXT)
    ),
    "unknown field": body(user(TEXT), invented=True),
    "explicitly set to false": body(
        user(TEXT), output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}
    ),
}


def test_a_request_in_order_is_not_complained_about() -> None:
    assert AnthropicProtocol().complaint("/v1/messages", GOOD) is None


@pytest.mark.parametrize("complaint", BAD)
def test_what_the_vendor_refuses_is_refused(complaint: str) -> None:
    assert complaint in (AnthropicProtocol().complaint("/v1/messages", BAD[complaint]) or "")
