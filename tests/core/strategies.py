"""Rows as crashes, cancels, denials, imports and mistakes may leave them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    CompactionStats,
    Decision,
    Deny,
    Image,
    Message,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Role,
    Status,
    Summary,
    Text,
    Thoughts,
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


# --- histories as the server itself writes them ----------------------------------------------------------------------

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12) | st.sampled_from(
    ['{"status": "OK", "message": "packed", "time": "now"}', '{"type": "user_message", "message": "packed"}', "{"]
)
MAYBE = st.none() | WORDS
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGES = st.builds(Image, st.just("image/png"), st.just(PIXEL), st.sampled_from([None, "high"]))
TEXTS = st.builds(Text, WORDS, MAYBE)
CONTENT = WORDS | st.lists(TEXTS | IMAGES, min_size=1, max_size=2).map(tuple)
LINES = st.none() | st.lists(WORDS, max_size=2).map(tuple)
SPEECH = st.lists(
    TEXTS
    | st.builds(Reasoning, WORDS, MAYBE)
    | st.builds(Thoughts, WORDS)
    | st.builds(RedactedReasoning, WORDS)
    | st.builds(OmittedReasoning, MAYBE),
    max_size=3,
)
SUMMARIES = st.builds(
    Summary, WORDS, st.none() | st.builds(CompactionStats, WORDS, *[st.integers(0, 9)] * 5), st.booleans()
)
MICROSECONDS = st.integers(1_000_000_000_000_000, 3_000_000_000_000_000)
STATUSES: st.SearchStrategy[Status] = st.sampled_from(("success", "error"))


@st.composite
def orderly_histories(draw: st.DrawFn) -> list[Message]:
    """Speech of all kinds, calls with their returns, approvals that were decided, summaries."""
    rows = [row("system", draw(WORDS), at=draw(MICROSECONDS))]
    for turn in range(draw(st.integers(0, 5))):
        match draw(st.sampled_from(["speech", "calls", "asked", "both", "summary", "users"])):
            case "speech":
                said = draw(SPEECH) or [Text("hello")]
                rows.append(_drawn(draw, "assistant", said))
            case "users":
                parts = draw(st.lists(TEXTS | IMAGES, min_size=1, max_size=2))
                rows.append(_drawn(draw, "user", parts, otid=draw(MAYBE), name=draw(MAYBE), sender_id=draw(MAYBE)))
            case "summary":
                rows.append(_drawn(draw, "summary", [draw(SUMMARIES)]))
            case kind:
                rows += _calling(draw, turn, kind)
    return [replace(each, id=f"message-{number}") for number, each in enumerate(rows)]


def _calling(draw: st.DrawFn, turn: int, kind: str) -> list[Message]:
    calls = [
        ToolCall(f"c{turn}-{number}", draw(st.sampled_from(["roll", "flip"])), draw(WORDS), draw(MAYBE))
        for number in range(draw(st.integers(1, 3)))
    ]
    returns = [
        ToolReturn(
            each.id, each.name, draw(STATUSES), draw(CONTENT), draw(LINES), draw(LINES), was_asked=kind != "calls"
        )
        for each in calls
    ]
    answer = _drawn(draw, "tool", returns, name=calls[0].name)
    if kind == "calls":
        return [_drawn(draw, "assistant", [*draw(SPEECH), *calls]), answer]
    step = f"step-{turn}" if kind == "both" and len(calls) > 1 else None
    beside, asked = (calls[:1], calls[1:]) if step else ([], calls)
    request = _drawn(draw, "approval", [*([] if step else draw(SPEECH)), *asked], step_id=step)
    before = [_drawn(draw, "assistant", [*draw(SPEECH), *beside], step_id=step)] if step else []
    return [*before, request, _drawn(draw, "approval", [_decision(draw, each) for each in asked]), answer]


def _decision(draw: st.DrawFn, asked: ToolCall) -> Decision:
    match draw(st.sampled_from(["approve", "deny", "return"])):
        case "approve":
            return Approve(asked.id, draw(MAYBE))
        case "deny":
            return Deny(asked.id, draw(MAYBE))
        case _:
            return ClientReturn(asked.id, draw(CONTENT), draw(STATUSES), draw(LINES), draw(LINES))


def _drawn(draw: st.DrawFn, role: Role, parts: Sequence[AnyPart], **fields: str | None) -> Message:
    model = None if role in ("user", "summary") else draw(st.sampled_from([MODEL, "other/model"]))
    return replace(row(role, *parts, at=draw(MICROSECONDS)), model=model, **fields)
