"""Whatever a thread went through, no vendor refuses its history. Adapters whose requests can only be seen when they are
sent are held to the same in their own test file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.core.messages import (
    AnyPart,
    Image,
    Message,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Role,
    Text,
    ToolCall,
    ToolReturn,
)
from holdfast.core.model_history import history
from holdfast.llm.base import ModelRequest
from holdfast.llm.http import Http

from ..core.rows import MODEL, row
from ..core.strategies import any_row
from ..effort import examples
from .adapters import Adapter, info
from .conversations import DICE, PRINT
from .test_adapters import those_with

# Ids as vendors, imports and mistakes make them; some differ only far from their beginning.
IDS = st.sampled_from(["c1", "c2", "", "toolu_01ABC", "x" * 64 + "1", "x" * 64 + "2", "call|fc_1", "ключ", "a b"])
NAMES = st.sampled_from(["roll_dice_tool", "print_tool", "functions.roll", "имя", "", "n" * 80, "a b"])
ARGUMENTS = st.sampled_from(
    ["{}", "", '{"num_sides": 6}', '{"half', "null", "[1]", '"{}"', '{"a": 1}{"a": 2}', "\ud7ff"]
)
TEXTS = st.sampled_from(["words", "\n", " ", "<think>", "", "ж🐚"])
PICTURE = Image("image/png", "iVBORw0KGgo=")
CALLS = st.builds(ToolCall, IDS, NAMES, ARGUMENTS, st.sampled_from([None, "c2lnbmVk"]))
CONTENT = st.one_of(
    TEXTS, st.lists(st.one_of(st.builds(Text, TEXTS), st.just(PICTURE)), min_size=1, max_size=3).map(tuple)
)
RETURNS = st.builds(ToolReturn, IDS, NAMES, st.sampled_from(["success", "error"]), CONTENT)
THOUGHTS = st.one_of(
    st.builds(Reasoning, TEXTS, st.sampled_from([None, "c2lnbmVk"])),
    st.just(RedactedReasoning("c2VjcmV0")),
    st.builds(OmittedReasoning, st.sampled_from([None, "c2lnbmVk"])),
)
SPOKEN = st.one_of(st.builds(Text, TEXTS), THOUGHTS, st.just(PICTURE))
PARTS_OF: dict[Role, st.SearchStrategy[Sequence[AnyPart]]] = {
    "user": st.lists(st.one_of(st.builds(Text, TEXTS), st.just(PICTURE)), max_size=3),
    "assistant": st.lists(st.one_of(SPOKEN, CALLS), max_size=4),
    "approval": st.lists(CALLS, max_size=3),
    "tool": st.lists(RETURNS, max_size=4),
}


@st.composite
def odd_row(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(list(PARTS_OF)))
    step, model = draw(st.sampled_from([None, "s1", "s2"])), draw(st.sampled_from([MODEL, "other/model"]))
    return row(role, *draw(PARTS_OF[role]), step=step, model=model)


ROWS = st.lists(st.one_of(any_row(), odd_row()), min_size=1, max_size=10)


def asked_of(adapter: Adapter, rows: Sequence[Message], with_tools: bool) -> ModelRequest:
    handle = info(adapter.name).handle
    own = [msgspec.structs.replace(one, model=handle) if one.model == MODEL else one for one in rows]
    turns = history(own, model_handle=handle, context_window=128_000)
    assume(turns)
    return ModelRequest(handle=handle, system="Be kind.", turns=turns, tools=(DICE, PRINT) if with_tools else ())


@pytest.mark.slow
@those_with(lambda one: one.shows_payload)
@examples(200)
@given(rows=ROWS, with_tools=st.booleans())
def test_no_history_that_the_core_gives_is_refused(adapter: Adapter, rows: list[Message], with_tools: bool) -> None:
    asked = asked_of(adapter, rows, with_tools)
    model = adapter.open("http://127.0.0.1:9", info(adapter.name), Http())
    sent = msgspec.json.decode(msgspec.json.encode(model.payload(asked)))
    assert adapter.protocol().complaint(adapter.path, sent) is None
