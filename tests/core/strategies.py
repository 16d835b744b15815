"""Rows as crashes, cancels, denials, imports and mistakes may leave them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from holdfast.core.messages import (
    AnyPart,
    Deny,
    Image,
    Message,
    OmittedReasoning,
    Reasoning,
    Role,
    Summary,
    Text,
    ToolCall,
    ToolReturn,
)

from .rows import MODEL, row

CALL_IDS = st.sampled_from(["c1", "c2", "c3", "c4", "c5"])
CALLS = st.builds(ToolCall, CALL_IDS, st.sampled_from(["roll", "print"]), st.just("{}"))
RETURNS = st.builds(ToolReturn, CALL_IDS, st.just("roll"), st.sampled_from(["success", "error"]), st.just("out"))
SPOKEN = st.one_of(
    st.builds(Text, st.sampled_from(["", "words"])), st.just(Reasoning("hm")), st.just(OmittedReasoning())
)
PARTS_OF: dict[Role, st.SearchStrategy[Sequence[AnyPart]]] = {
    "system": st.just([Text("rules")]),
    "user": st.lists(st.one_of(SPOKEN, st.just(Image("image/png", "AA=="))), max_size=2),
    "assistant": st.lists(st.one_of(SPOKEN, CALLS), max_size=4),
    "tool": st.lists(RETURNS, max_size=3),
    "approval": st.one_of(
        st.lists(st.one_of(SPOKEN, CALLS), max_size=3), st.lists(st.builds(Deny, CALL_IDS), min_size=1, max_size=2)
    ),
    "summary": st.just([Summary("before")]),
}


@st.composite
def any_row(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(list(PARTS_OF)))
    return row(
        role,
        *draw(PARTS_OF[role]),
        step=draw(st.sampled_from([None, "s1", "s2"])),
        model=draw(st.sampled_from([MODEL, "other/model"])),
    )
