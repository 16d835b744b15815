"""Generations of Claude refuse each other's requests; whatever is asked of one, none of this is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages import Message
from holdfast.core.model_history import history
from holdfast.llm.anthropic.payload import messages_payload
from holdfast.llm.base import ModelRequest, NamedTool
from tests.core.rows import MODEL
from tests.effort import examples
from tests.llm.claude import ADAPTIVE, BOUND, BUDGETED, OLD, claude
from tests.llm.conversations import DICE, PRINT
from tests.llm.fakes.anthropic import AnthropicProtocol
from tests.llm.test_pairing import odd_row

MODELS = [BUDGETED, ADAPTIVE, BOUND, OLD, "claude-opus-4-6", "claude-haiku-5-5", "claude-sonnet-5-5", "another"]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"thinking": {"type": "enabled", "budget_tokens": 5_000}},
    {"thinking": {"type": "disabled"}},
    {"strict": True, "effort": "low"},
]


@pytest.mark.slow
@examples(200)
@given(
    rows=st.lists(odd_row(), max_size=8),
    model=st.sampled_from(MODELS),
    settings=st.sampled_from(SETTINGS),
    choice=st.sampled_from(["auto", "required", "none", NamedTool("print_tool")]),
    temperature=st.sampled_from([None, 0.3, 1.5]),
    limit=st.sampled_from([None, 10, 9_000]),
    shape=st.sampled_from([None, {"type": "json_object"}]),
)
def test_no_wish_makes_a_request_that_is_refused(
    rows: list[Message], model: str, settings: dict[str, Any], choice: Any, temperature: Any, limit: Any, shape: Any
) -> None:
    asked = ModelRequest(
        handle=MODEL,
        system="Be kind.",
        turns=history(rows, model_handle=MODEL, context_window=128_000),
        tools=(DICE, PRINT),
        tool_choice=choice,
        max_output_tokens=limit,
        temperature=temperature,
        response_format=shape,
        settings=settings,
    )
    sent = msgspec.json.decode(msgspec.json.encode(messages_payload(asked, claude(model))))
    assert AnthropicProtocol().complaint("/v1/messages", sent) is None
