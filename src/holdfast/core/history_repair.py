"""Makes a history that comes from elsewhere one that could have been written here, and says what it changed.

The history that a vendor is sent is well-formed whatever the rows are (`model_history`). But rows that come with an
agent file are kept, listed and exported again, and an approval request that nobody can answer would stand at their end
for ever. So they are put in order once, when they are imported: each call has an id of its own and exactly one return,
each return and each decision belongs to a call, and no row says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from holdfast import ids
from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    Decision,
    Deny,
    Message,
    Parts,
    Role,
    Text,
    ToolCall,
    ToolReturn,
)
from holdfast.core.model_history import OUTCOME_UNKNOWN, are_one_reply, first_returns
from holdfast.core.transitions import denial_text

NEVER_ANSWERED: Final = "Nobody had answered this request when the history was exported."
_DECISIONS = (Approve, Deny, ClientReturn)


class Repair(msgspec.Struct, frozen=True):
    index: int  # of the row, in what was given
    what: str


class Repaired(msgspec.Struct, frozen=True):
    rows: tuple[Message, ...]
    repairs: tuple[Repair, ...] = ()


def repaired(rows: Sequence[Message]) -> Repaired:
    """A history that is in order comes back as it is. Nothing that somebody said is left out.

    Ids of rows must be unique: those of added rows follow from them.
    """
    repairs: list[Repair] = []
    draft = _Draft(_with_own_ids(rows, repairs), repairs)
    return Repaired(draft.rows(), tuple(sorted(repairs, key=lambda repair: repair.index)))


def _with_own_ids(rows: Sequence[Message], repairs: list[Repair]) -> list[Message]:
    """Some models begin to count their calls anew with each turn. A call whose id was used before gets another one, and
    so do the decisions and the return that follow it."""
    used: set[str] = set()
    latest: dict[str, list[str]] = {}  # by the id in the file: the calls of the last row that has it, still open
    renamed: list[Message] = []
    for index, row in enumerate(rows):
        parts: list[AnyPart] = []
        opened: dict[str, list[str]] = {}
        for place, part in enumerate(row.parts):
            if isinstance(part, ToolCall):
                own = part.id if part.id not in used else ids.derive("call", row.id, place)
                if own != part.id:
                    repairs.append(Repair(index, f"the call {part.id} of {part.name} has an id that was used before"))
                used.add(own)
                opened.setdefault(part.id, []).append(own)
                parts.append(part if own == part.id else msgspec.structs.replace(part, id=own))
            elif isinstance(part, (ToolReturn, *_DECISIONS)):
                parts.append(_addressed(part, latest))
            else:
                parts.append(part)
        latest |= opened
        same = all(new is old for new, old in zip(parts, row.parts, strict=True))
        renamed.append(row if same else msgspec.structs.replace(row, parts=tuple(parts)))
    return renamed


def _addressed(part: ToolReturn | Decision, latest: dict[str, list[str]]) -> ToolReturn | Decision:
    waiting = latest.get(part.call_id)
    if not waiting:
        return part
    own = waiting.pop(0) if isinstance(part, ToolReturn) else waiting[0]
    return part if own == part.call_id else msgspec.structs.replace(part, call_id=own)


class _Unanswered(msgspec.Struct, frozen=True):
    call: ToolCall
    index: int
    was_asked: bool


class _Draft:
    """Takes the rows in turn. Returns that are missing are put after the reply that made the calls, and after the
    decisions about them."""

    def __init__(self, rows: Sequence[Message], repairs: list[Repair]) -> None:
        self._given = rows
        self._repairs = repairs
        self._returned = first_returns(rows)
        self._asked = {call.id for row in rows if row.role == "approval" for call in row.calls}
        self._seen: set[str] = set()  # calls that were made so far
        self._decided: dict[str, Decision] = {}
        self._unanswered: list[_Unanswered] = []
        self._rows: list[Message] = []

    def rows(self) -> tuple[Message, ...]:
        for index, row in enumerate(self._given):
            is_sibling = index > 0 and are_one_reply(self._given[index - 1], row)
            is_decision = row.role == "approval" and not row.calls
            if not is_sibling and not is_decision:
                self._add_missing_returns()
            self._take(index, row)
        self._add_missing_returns()
        return tuple(self._rows)

    def _take(self, index: int, row: Message) -> None:
        kept = tuple(part for part in row.parts if self._belongs(index, part))
        self._seen.update(call.id for call in row.calls)
        self._unanswered += [
            _Unanswered(call, index, row.role == "approval") for call in row.calls if call.id not in self._returned
        ]
        if not _says_something(kept) and not (index == 0 and row.role == "system"):
            if len(kept) == len(row.parts):  # otherwise what was left out of it is told already
                self._tell(index, f"the {row.role} message is empty and is left out")
            return
        self._rows.append(row if len(kept) == len(row.parts) else msgspec.structs.replace(row, parts=kept))

    def _belongs(self, index: int, part: AnyPart) -> bool:
        if isinstance(part, ToolReturn):
            first = self._returned.get(part.call_id)
            if part.call_id not in self._seen:
                self._tell(index, f"the return {part.call_id} of {part.name} has no call before it and is left out")
            elif first is not None and first[0] is not part:
                self._tell(index, f"the call {part.call_id} of {part.name} returns again, which is left out")
            else:
                return True
            return False
        if isinstance(part, _DECISIONS):
            if part.call_id not in self._seen or part.call_id not in self._asked:
                self._tell(index, f"the decision about {part.call_id} belongs to no request and is left out")
                return False
            if part.call_id in self._decided:
                self._tell(index, f"the call {part.call_id} was decided before; the second decision is left out")
                return False
            self._decided[part.call_id] = part
        return True

    def _add_missing_returns(self) -> None:
        missing, self._unanswered = self._unanswered, []
        if not missing:
            return
        ignored = [each.call for each in missing if each.was_asked and each.call.id not in self._decided]
        # What was not asked was not run either, as long as the request beside it was open.
        returns = tuple(self._return_of(each, withdrawn=bool(ignored)) for each in missing)
        if ignored:
            denials = tuple(Deny(call.id, NEVER_ANSWERED) for call in ignored)
            self._decided |= {denial.call_id: denial for denial in denials}
            self._add("approval", denials, "denial")
        self._add("tool", returns, "returns")

    def _return_of(self, each: _Unanswered, *, withdrawn: bool) -> ToolReturn:
        call, decision = each.call, self._decided.get(each.call.id)
        told = f"the call {call.id} of {call.name} never returned; the model is told that its outcome is unknown"
        status, content, stdout, stderr = "error", OUTCOME_UNKNOWN, None, None
        match decision:
            case ClientReturn():
                told = f"the answer of the client to {call.id} of {call.name} was not taken over as its return; it is"
                status, content, stdout, stderr = decision.status, decision.content, decision.stdout, decision.stderr
            case Deny():
                told = f"the call {call.id} of {call.name} was denied and never returned; its return says so"
                content = denial_text(decision.reason)
            case None if withdrawn:
                told = f"nobody answered whether {call.name} may be called ({call.id}); it counts as denied"
                content = denial_text(NEVER_ANSWERED)
            case _:
                pass
        self._tell(each.index, told)
        return ToolReturn(call.id, call.name, status, content, stdout, stderr, was_asked=each.was_asked)

    def _add(self, role: Role, parts: Parts, purpose: str) -> None:
        before = self._rows[-1]
        name = next((part.name for part in parts if isinstance(part, ToolReturn)), None)
        self._rows.append(
            Message(
                id=ids.derive("message", before.id, purpose),
                role=role,
                parts=parts,
                created_us=before.created_us,
                name=name,
                model=before.model,
            )
        )

    def _tell(self, index: int, what: str) -> None:
        self._repairs.append(Repair(index, what))


def _says_something(parts: Iterable[AnyPart]) -> bool:
    return any(not isinstance(part, Text) or part.text for part in parts)
