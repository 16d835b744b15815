"""The history a vendor is sent: always well-formed, whatever the stored rows went through.

Rules kept here: every call has exactly one return, in the tool turn right after it; a return without its call, and a
second call or return with a known id, are left out; turns of the user, and of the assistant, never stand side by side;
the first turn is the user's. A crash, a cancelled run or an odd import can break none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from holdfast.core import envelopes
from holdfast.core.messages import (
    AnyPart,
    Content,
    Image,
    Message,
    OmittedReasoning,
    Parts,
    Reasoning,
    RedactedReasoning,
    Summary,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)

OUTCOME_UNKNOWN: Final = (
    "The outcome of this call is unknown: it was interrupted before its result was recorded, so it may or may not have "
    "taken effect."
)
EARLIER_NOT_SHOWN: Final = "[Earlier messages are not shown.]"
EMPTY_MESSAGE: Final = "[empty message]"
# What an image costs depends on vendor and size; this is near the top of the usual range.
IMAGE_TOKENS: Final = 1_600
BYTES_PER_TOKEN: Final = 4
_ROW_OVERHEAD_BYTES: Final = 16
_LEAST_RETURN_CHARS: Final = 5_000
_RETURN_SHARE: Final = 0.2

_REASONING = (Reasoning, RedactedReasoning, OmittedReasoning)


def history(
    messages: Sequence[Message], *, model_handle: str, context_window: int, timezone: str = "UTC"
) -> tuple[Turn, ...]:
    """The turns made of the rows in context. The prompt's row and approval responses are not among them.

    A trailing approval request that nobody has answered is left out, with the calls made in the same reply.
    """
    rows = messages[: pending_start(messages)]
    draft = _Draft(_first_returns(rows), model_handle, return_char_limit(context_window), timezone)
    for index, row in enumerate(rows):
        role = row.role
        if role == "user" or role == "summary" or (role == "system" and (index or row.run_id)):
            # A system row that is not the first was sent like a user's message, by an operator or another agent.
            draft.user(row)
        elif role == "assistant":
            paired = index + 1 < len(rows) and _are_one_reply(row, rows[index + 1])
            draft.assistant((row, rows[index + 1]) if paired else (row,))
        elif role == "approval" and not (index and _are_one_reply(rows[index - 1], row)):
            draft.assistant((row,))
    return draft.turns()


def pending_start(messages: Sequence[Message]) -> int:
    """Where the trailing unanswered approval request begins, its sibling row included; the end when there is none."""
    end = len(messages)
    if not end or not messages[-1].is_approval_request:
        return end
    return end - 2 if end > 1 and _are_one_reply(messages[-2], messages[-1]) else end - 1


def return_char_limit(context_window: int) -> int:
    """How much of one tool return a model is shown."""
    return max(_LEAST_RETURN_CHARS, int(context_window * _RETURN_SHARE) * BYTES_PER_TOKEN)


def cut_text(text: str, limit: int) -> str:
    over = len(text) - limit
    return text if over <= 0 else f"{text[:limit]}... [truncated {over} chars]"


def cut_content(content: Content, limit: int) -> Content:
    if isinstance(content, str):
        return cut_text(content, limit)
    return tuple(Text(cut_text(part.text, limit)) if isinstance(part, Text) else part for part in content)


def estimate_context(system: str, turns: Iterable[Turn], tools: Sequence[object] = ()) -> int:
    """Tokens of a whole request, by a cheap guess. `tools` is whatever encodes to the JSON that would be sent."""
    said = sum([_parts_size(turn.parts) for turn in turns])
    return _tokens(_text_size(system) + said) + estimate_tools(tools)


def estimate_tools(tools: Sequence[object]) -> int:
    return _tokens(len(msgspec.json.encode(tools))) if tools else 0


def estimate_message(message: Message) -> int:
    """Tokens of one stored row. Depends on nothing but its parts, so callers may remember it."""
    return _tokens(_parts_size(message.parts))


class _Draft:
    """Gathers turns in order; neighbours of one role become one turn."""

    def __init__(
        self, returned: dict[str, tuple[ToolReturn, int]], model_handle: str, limit: int, timezone: str
    ) -> None:
        self._returned = returned
        self._model_handle = model_handle
        self._limit = limit
        self._timezone = timezone
        self._called: set[str] = set()
        self._turns: list[Turn] = []

    def user(self, row: Message) -> None:
        parts = row.parts
        if len(parts) != 1 or not isinstance(parts[0], Text) or not parts[0].text:
            parts = tuple(self._shown(row)) or (Text(EMPTY_MESSAGE),)
        self._add("user", parts, None)

    def assistant(self, rows: tuple[Message, ...]) -> None:
        said: list[AnyPart] = []
        calls: list[ToolCall] = []
        for row in rows:
            same_model = row.model == self._model_handle
            for part in row.parts:
                if isinstance(part, Text):
                    if part.text:
                        said.append(part)
                elif isinstance(part, ToolCall):
                    if part.id not in self._called:
                        self._called.add(part.id)
                        calls.append(part)
                elif isinstance(part, Image) or (same_model and isinstance(part, _REASONING)):
                    said.append(part)
        if said or calls:
            self._add("assistant", (*said, *calls), rows[-1].model)
        if calls:
            self._turns.append(Turn("tool", tuple([self._return_of(call, rows[-1].created_us) for call in calls])))

    def turns(self) -> tuple[Turn, ...]:
        if self._turns and self._turns[0].role == "assistant":
            self._turns.insert(0, Turn("user", (Text(EARLIER_NOT_SHOWN),)))
        return tuple(self._turns)

    def _shown(self, row: Message) -> Iterator[AnyPart]:
        for part in row.parts:
            if isinstance(part, Summary):
                yield Text(envelopes.summary(part.text, part.stats, row.created_us, self._timezone))
            elif isinstance(part, Image) or (isinstance(part, Text) and part.text):
                yield part

    def _add(self, role: Literal["user", "assistant"], parts: Parts, model: str | None) -> None:
        last = self._turns[-1] if self._turns else None
        if last is None or last.role != role:
            self._turns.append(Turn(role, parts, model))
            return
        # Reasoning was kept only from the model that is asked now: the joint turn must stay attributed to it.
        joint_model = self._model_handle if self._model_handle in (last.model, model) else model
        self._turns[-1] = Turn(role, last.parts + parts, joint_model)

    def _return_of(self, call: ToolCall, called_us: int) -> ToolReturn:
        found, at_us = self._returned.get(call.id) or (
            ToolReturn(call.id, call.name, "error", OUTCOME_UNKNOWN),
            called_us,
        )
        content = cut_content(found.content, self._limit)
        if isinstance(content, str):
            content = envelopes.tool_return(content, found.status, at_us, self._timezone)
        return ToolReturn(call.id, call.name, found.status, content)


def _first_returns(rows: Iterable[Message]) -> dict[str, tuple[ToolReturn, int]]:
    """By call id, the first return that comes after its call, and when it came."""
    called: set[str] = set()
    returned: dict[str, tuple[ToolReturn, int]] = {}
    for row in rows:
        if row.role == "tool":
            for part in row.parts:
                if isinstance(part, ToolReturn) and part.call_id in called and part.call_id not in returned:
                    returned[part.call_id] = (part, row.created_us)
        elif row.role in ("assistant", "approval"):
            for part in row.parts:
                if isinstance(part, ToolCall):
                    called.add(part.id)
    return returned


def _are_one_reply(first: Message, second: Message) -> bool:
    """Whether an assistant row and the approval request after it came from one reply of the model."""
    return (
        second.role == "approval"
        and first.role == "assistant"
        and first.step_id is not None
        and first.step_id == second.step_id
        and second.is_approval_request
    )


def _parts_size(parts: Iterable[AnyPart]) -> int:
    """Asked of every row before every model call; most parts are text."""
    size = _ROW_OVERHEAD_BYTES
    for part in parts:
        if type(part) is Text:
            text = part.text
            size += len(text) if text.isascii() else len(text.encode())
        else:
            size += _part_size(part)
    return size


def _part_size(part: AnyPart) -> int:
    match part:
        case Text() | Reasoning() | Summary():
            return _text_size(part.text)
        case ToolCall():
            return len(part.id) + len(part.name) + _text_size(part.arguments)
        case ToolReturn():
            return len(part.call_id) + _content_size(part.content)
        case Image():
            return IMAGE_TOKENS * BYTES_PER_TOKEN
        case RedactedReasoning():
            return len(part.data)
        case _:
            return 0  # decisions and omitted reasoning are not sent as text


def _content_size(content: Content) -> int:
    return _text_size(content) if isinstance(content, str) else sum(_part_size(part) for part in content)


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)
