"""The history a vendor is sent: always well-formed, whatever the stored rows went through.

Rules kept here: every call has exactly one return, in the tool turn right after it; a return without its call, and a
second call or return with a known id, are left out; turns of the user, and of the assistant, never stand side by side;
the first turn is the user's. Vendors refuse a request that breaks one of them, and would refuse every later turn of the
thread too. So they are enforced here and not assumed of the rows, which may come from a crash or an import.

What is not the user's own words is carried to a model in JSON texts: tool results, summaries, heartbeats. Their keys
and layout are known to clients and to imported histories, so they are made here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import is_
from typing import Final, Literal

import msgspec

from holdfast.core import heartbeat_loop
from holdfast.core.dates import local_time
from holdfast.core.messages import (
    AnyPart,
    CompactionStats,
    Content,
    Image,
    Message,
    OmittedReasoning,
    Parts,
    Reasoning,
    RedactedReasoning,
    Status,
    Summary,
    Text,
    Thoughts,
    ToolCall,
    ToolReturn,
    Turn,
)
from holdfast.errors import ToolFailed

OUTCOME_UNKNOWN: Final = (
    "The outcome of this call is unknown: it was interrupted before its result was recorded, so it may or may not have "
    "taken effect."
)
EARLIER_NOT_SHOWN: Final = "[Earlier messages are not shown.]"
EMPTY_MESSAGE: Final = "[empty message]"
HIDDEN_FROM_USER: Final = "[This is an automated system message hidden from the user]"
SUMMARY_NOTE: Final = "Note: earlier messages are hidden from view to save space. They are summarised below."
# What an image costs depends on vendor and size; this is near the top of the usual range.
IMAGE_TOKENS: Final = 1_600
BYTES_PER_TOKEN: Final = 4
_ROW_OVERHEAD_BYTES: Final = 16
_LEAST_RETURN_CHARS: Final = 5_000
_RETURN_SHARE: Final = 0.2

_REASONING = (Reasoning, RedactedReasoning, OmittedReasoning)
_NOT_SHOWN: Final = Turn("user", (Text(EARLIER_NOT_SHOWN),))


def history(
    messages: Sequence[Message], *, model_handle: str, context_window: int, timezone: str = "UTC"
) -> tuple[Turn, ...]:
    """The turns made of the rows in context. The prompt's row and approval responses are not among them.

    A trailing approval request that nobody has answered is left out, with the calls made in the same reply.
    """
    key = HistoryKey(model_handle, context_window, timezone)
    return _opened(_extended(_Prefix(), messages[: pending_start(messages)], key)).turns


class HistoryKey(msgspec.Struct, frozen=True):
    """What turns depend on, besides the rows they are made of."""

    model_handle: str
    context_window: int
    timezone: str = "UTC"
    thinking: bool = False  # thoughts are an argument of the call that they came with


class History(msgspec.Struct, frozen=True):
    turns: tuple[Turn, ...]
    size: int  # bytes of the turns, for the estimate of their tokens


class HistoryBuilder:
    """Builds the history of one thread for each step. Turns that were built before are kept, with their size
    (decision 14).

    The kept prefix ends before a message of the user: turns before it can only be changed by a late return, which is
    looked for.
    """

    def __init__(self) -> None:
        self._key: HistoryKey | None = None
        self._rows: list[Message] = []
        self._prefix = _Prefix()

    def build(self, messages: Sequence[Message], key: HistoryKey) -> History:
        """The turns are those of `history`."""
        rows = messages[: pending_start(messages)]
        if not self._is_continued_by(rows, key):
            self._key, self._rows, self._prefix = key, [], _Prefix()
        start = len(self._rows)
        cut = next((at for at in range(len(rows) - 1, start, -1) if rows[at].role == "user"), start)
        prefix = _extended(self._prefix, rows[start:cut], key)
        if _answers_any(rows[cut:], prefix.unanswered):
            return _opened(_extended(self._prefix, rows[start:], key))
        self._prefix = prefix
        self._rows += rows[start:cut]
        return _opened(_extended(prefix, rows[cut:], key))

    def _is_continued_by(self, rows: Sequence[Message], key: HistoryKey) -> bool:
        known = self._rows
        if key != self._key or len(known) > len(rows) or not _are_same(known, rows):
            return False
        new = rows[len(known) :]
        return not (new and new[0].role != "user") and not _answers_any(new, self._prefix.unanswered)


def _opened(built: _Prefix) -> History:
    """The first turn must be the user's."""
    if built.turns and built.turns[0].role == "assistant":
        return History((_NOT_SHOWN, *built.turns), built.size + _parts_size(_NOT_SHOWN.parts))
    return History(tuple(built.turns), built.size)


def _are_same(known: Sequence[Message], rows: Sequence[Message]) -> bool:
    """The prompt may be another: it is not part of the history."""
    if known and known[0] is not rows[0] and not (_is_prompt(known[0]) and _is_prompt(rows[0])):
        return False
    return all(map(is_, islice(known, 1, None), islice(rows, 1, None)))


def _is_prompt(first: Message) -> bool:
    return first.role == "system" and not first.run_id


def _answers_any(rows: Iterable[Message], calls: frozenset[str]) -> bool:
    return bool(calls) and any(part.call_id in calls for row in rows for part in row.returns)


def pending_start(messages: Sequence[Message]) -> int:
    """Where the trailing unanswered approval request begins, its sibling row included; the end when there is none."""
    end = len(messages)
    if not end or not messages[-1].is_approval_request:
        return end
    return end - 2 if end > 1 and are_one_reply(messages[-2], messages[-1]) else end - 1


def rows_of_turn(messages: Sequence[Message], run_id: str) -> list[Message]:
    """Those of the run, and of the runs that it carries on: whose calls it answers.

    Ids of calls are the model's, and may come again: the last call before the answer is the one that is meant.
    """
    turn, answered = {run_id}, set[str]()
    for row in reversed(messages):
        if row.run_id in turn:
            answered.update(part.call_id for part in (*row.returns, *row.decisions))
        made = answered.intersection([call.id for call in row.calls])
        if made and row.run_id is not None:
            turn.add(row.run_id)
        answered -= made
    return [row for row in messages if row.run_id in turn]


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


def estimate_context(system: str, turns_size: int, tools: Sequence[object] = ()) -> int:
    """Tokens of a whole request, by a cheap guess. `tools` is whatever encodes to the JSON that would be sent."""
    return _tokens(_text_size(system) + turns_size) + estimate_tools(tools)


def size_of_turns(turns: Iterable[Turn]) -> int:
    """Bytes. Takes time with the number of turns: a history knows its own size."""
    return sum([_parts_size(turn.parts) for turn in turns])


def estimate_tools(tools: Sequence[object]) -> int:
    return _tokens(len(msgspec.json.encode(tools))) if tools else 0


def estimate_message(message: Message) -> int:
    """Tokens of one stored row. Depends on nothing but its parts, so callers may remember it."""
    return _tokens(_parts_size(message.parts))


def estimate_shown(message: Message, context_window: int) -> int:
    """Tokens of one stored row as a model with this window is shown it: a long return is stored whole and sent cut."""
    if message.role != "tool":
        return estimate_message(message)
    limit = return_char_limit(context_window)
    shown = [
        msgspec.structs.replace(part, content=cut_content(part.content, limit))
        if isinstance(part, ToolReturn)
        else part
        for part in message.parts
    ]
    return _tokens(_parts_size(shown))


class _Prefix(msgspec.Struct, frozen=True):
    turns: list[Turn] = []
    size: int = 0
    called: frozenset[str] = frozenset()
    unanswered: frozenset[str] = frozenset()


def _extended(prefix: _Prefix, rows: Sequence[Message], key: HistoryKey) -> _Prefix:
    draft = _Draft(prefix, first_returns(rows), key)
    for index, row in enumerate(rows):
        role = row.role
        if role == "user" or role == "summary" or (role == "system" and (index or not _is_prompt(row))):
            # A system row that is not the first was sent like a user's message, by an operator or another agent.
            draft.user(row)
        elif role == "assistant":
            paired = index + 1 < len(rows) and are_one_reply(row, rows[index + 1])
            draft.assistant((row, rows[index + 1]) if paired else (row,))
        elif role == "approval" and not (index and are_one_reply(rows[index - 1], row)):
            draft.assistant((row,))
    return draft.result()


class _Draft:
    """Gathers turns in order; neighbours of one role become one turn."""

    def __init__(self, prefix: _Prefix, returned: dict[str, tuple[ToolReturn, int]], key: HistoryKey) -> None:
        self._returned = returned
        self._model_handle = key.model_handle
        self._limit = return_char_limit(key.context_window)
        self._timezone = key.timezone
        self._thinking = key.thinking
        self._prefix = prefix
        self._called: set[str] = set()
        self._turns = list(prefix.turns)
        self._size = prefix.size

    def user(self, row: Message) -> None:
        parts = row.parts
        if len(parts) != 1 or not isinstance(parts[0], Text) or not parts[0].text:
            parts = tuple(self._shown(row)) or (Text(EMPTY_MESSAGE),)
        self._add("user", parts, None)

    def assistant(self, rows: tuple[Message, ...]) -> None:
        content: list[AnyPart] = []
        calls: list[ToolCall] = []
        for row in rows:
            same_model = row.model == self._model_handle
            for part in self._with_thoughts_placed(row):
                if isinstance(part, Text):
                    if part.text:
                        content.append(part)
                elif isinstance(part, ToolCall):
                    if part.id not in self._called and part.id not in self._prefix.called:
                        self._called.add(part.id)
                        calls.append(part)
                elif isinstance(part, Image) or (same_model and isinstance(part, _REASONING)):
                    content.append(part)
        if content or calls:
            self._add("assistant", (*content, *calls), rows[-1].model)
        if calls:
            self._append(Turn("tool", tuple([self._return_of(call, rows[-1].created_us) for call in calls])))

    def _with_thoughts_placed(self, row: Message) -> Parts:
        """As the model is shown them: in its first call, or as text where calls have no argument for them."""
        thoughts = "".join([part.text for part in row.parts if isinstance(part, Thoughts)])
        if not thoughts:
            return row.parts
        others = tuple(part for part in row.parts if not isinstance(part, Thoughts))
        if not self._thinking or not row.calls:
            return (Text(thoughts), *others)
        first = row.calls[0]
        try:
            thoughtful = msgspec.structs.replace(
                first, arguments=heartbeat_loop.arguments_with_thoughts(first.arguments, thoughts)
            )
        except ToolFailed:  # arguments that nobody can read, from an imported history
            return (Text(thoughts), *others)
        return tuple(thoughtful if part is first else part for part in others)

    def result(self) -> _Prefix:
        known = self._prefix
        if not self._called:
            return _Prefix(self._turns, self._size, known.called, known.unanswered)
        unanswered = self._called - self._returned.keys()
        return _Prefix(self._turns, self._size, known.called | self._called, known.unanswered | unanswered)

    def _shown(self, row: Message) -> Iterator[AnyPart]:
        for part in row.parts:
            if isinstance(part, Summary):
                yield Text(summary_text(part.text, part.stats, row.created_us, self._timezone))
            elif isinstance(part, Image) or (isinstance(part, Text) and part.text):
                yield part

    def _add(self, role: Literal["user", "assistant"], parts: Parts, model: str | None) -> None:
        last = self._turns[-1] if self._turns else None
        if last is None or last.role != role:
            self._append(Turn(role, parts, model))
            return
        # Reasoning was kept only from the model that is asked now: the joint turn must stay attributed to it.
        joint_model = self._model_handle if self._model_handle in (last.model, model) else model
        self._turns[-1] = Turn(role, last.parts + parts, joint_model)
        self._size += _parts_size(parts) - _ROW_OVERHEAD_BYTES

    def _append(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._size += _parts_size(turn.parts)

    def _return_of(self, call: ToolCall, called_us: int) -> ToolReturn:
        found, at_us = self._returned.get(call.id) or (
            ToolReturn(call.id, call.name, "error", OUTCOME_UNKNOWN),
            called_us,
        )
        content = cut_content(found.content, self._limit)
        if isinstance(content, str):
            content = tool_return_text(content, found.status, at_us, self._timezone)
        return ToolReturn(call.id, call.name, found.status, content)


def first_returns(rows: Iterable[Message]) -> dict[str, tuple[ToolReturn, int]]:
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


def are_one_reply(first: Message, second: Message) -> bool:
    """Whether an assistant row and the approval request after it came from one reply of the model."""
    return (
        second.role == "approval"
        and first.role == "assistant"
        and first.step_id is not None
        and first.step_id == second.step_id
        and second.is_approval_request
    )


def _parts_size(parts: Iterable[AnyPart]) -> int:
    """Most parts are text."""
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
        case Text() | Reasoning() | Thoughts() | Summary():
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


def tool_return_text(message: str, status: Status, at_us: int, timezone: str) -> str:
    word = "OK" if status == "success" else "Failed"
    time = _quoted(local_time(at_us, timezone))
    # Written by hand because it is made anew for every return of every request.
    return f'{{\n  "status": "{word}",\n  "message": {_quoted(message)},\n  "time": {time}\n}}'


def summary_text(text: str, stats: CompactionStats | None, at_us: int, timezone: str) -> str:
    packed: dict[str, object] = {
        "type": "system_alert",
        "message": f"{SUMMARY_NOTE}\n\n{text}",
        "time": local_time(at_us, timezone),
    }
    if stats is not None:
        packed["compaction_stats"] = stats
    return msgspec.json.encode(packed).decode()


def heartbeat_text(reason: str, at_us: int, timezone: str) -> str:
    packed = {"type": "heartbeat", "reason": f"{HIDDEN_FROM_USER} {reason}", "time": local_time(at_us, timezone)}
    return msgspec.json.encode(packed).decode()


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
