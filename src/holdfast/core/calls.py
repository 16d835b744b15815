"""The calls of one step: what the rules say of them before any runs, and how far each has come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from holdfast.core import heartbeat_loop, tool_rules
from holdfast.core.arguments import arguments_of, merge_prefilled
from holdfast.core.events import JudgedCall
from holdfast.core.hold import Hold, ToolIdentity
from holdfast.core.messages import Approve, Decision, Deny, ToolCall
from holdfast.core.spec import RunSpec
from holdfast.core.tool_rules import Called, Choice
from holdfast.errors import ToolFailed

CallStatus = Literal["held", "allowed", "started", "refused", "denied", "answered", "returned"]


def judge(
    spec: RunSpec,
    choice: Choice,
    calls: Sequence[ToolCall],
    *,
    parallel: bool,
    history: Sequence[Called] = (),
    is_last_step: bool = False,
) -> tuple[JudgedCall, ...]:
    """Calls as they will be stored: arguments cleaned, prefilled ones merged in.

    Without parallel calls only the first is kept, and of calls with one id: their returns could not be told apart.
    `history`: the calls before these, which decide with them whether a run with heartbeats goes on. It does not after
    its last step.
    """
    distinct: dict[str, ToolCall] = {}
    for call in calls if parallel else calls[:1]:
        distinct.setdefault(call.id, call)
    allowed, approval = frozenset(choice.allowed), tool_rules.approval_names(spec.rules)
    judged = (_judge_one(spec, choice, call, allowed, approval) for call in distinct.values())
    if spec.heartbeats is None:
        return tuple(judged)
    return tuple(
        _with_heartbeat(spec, call, one, history, is_last_step)
        for call, one in zip(distinct.values(), judged, strict=True)
    )


def _judge_one(
    spec: RunSpec, choice: Choice, call: ToolCall, allowed: frozenset[str], approval: frozenset[str]
) -> JudgedCall:
    tool = spec.tool(call.name)
    if tool is None or call.name not in allowed:
        return JudgedCall(call, "refused", _violation(spec, choice, call.name))
    try:
        arguments = arguments_of(call.arguments)
    except ToolFailed as failed:
        return JudgedCall(call, "refused", failed.message)
    try:
        merged = merge_prefilled(tool.parameters, arguments, choice.prefilled.get(call.name, {}))
    except ToolFailed as failed:
        return JudgedCall(call, "fatal", failed.message)
    cleaned = msgspec.structs.replace(call, arguments=msgspec.json.encode(merged).decode())
    asks = tool.effect == "client" or call.name in approval
    return JudgedCall(cleaned, "held" if asks else "allowed")


def _with_heartbeat(
    spec: RunSpec, made: ToolCall, judged: JudgedCall, history: Sequence[Called], is_last_step: bool
) -> JudgedCall:
    """The call as a run with heartbeats keeps it. A call that waits for a decision keeps what the model asked for: what
    the loop makes of it is not known yet."""
    try:
        requested = heartbeat_loop.heartbeat_arguments(made.arguments).heartbeat
        arguments = arguments_of(judged.call.arguments)
    except ToolFailed:  # it was refused for that
        return judged
    goes_on = requested
    if judged.verdict != "held":
        following = heartbeat_loop.after_call(
            spec.rules,
            spec.tool_names,
            (*history, Called(made.name, "")),
            made.name,
            heartbeat=requested,
            outcome="ran" if judged.verdict == "allowed" else "refused",
        )
        goes_on = following.reason is not None and not is_last_step
    stored = msgspec.structs.replace(
        judged.call, arguments=heartbeat_loop.stored_arguments(arguments, heartbeat=goes_on)
    )
    return msgspec.structs.replace(judged, call=stored, heartbeat=requested)


def _violation(spec: RunSpec, choice: Choice, name: str) -> str:
    refusal = f"[ToolConstraintError] Cannot call {name}, valid tools include: {list(choice.allowed)}."
    hints = tool_rules.explain(spec.rules)
    return f"{refusal}\n** Hint: the rules for your tools are **\n{hints}" if hints else refusal


def resume(hold: Hold, decisions: Sequence[Decision]) -> tuple[JudgedCall, ...]:
    """The calls of a hold, once it is decided, as the successor run begins with them."""
    by_id = {decision.call_id: decision for decision in decisions}

    def judged(held_index: int) -> JudgedCall:
        held = hold.calls[held_index]
        match by_id.get(held.call.id):
            case None:
                return JudgedCall(held.call, "refused" if held.note else "allowed", held.note)
            case Approve():
                loop_arguments = heartbeat_loop.heartbeat_arguments(held.call.arguments)
                return JudgedCall(held.call, "allowed", approved=held.tool, heartbeat=loop_arguments.heartbeat)
            case Deny(_, reason):
                return JudgedCall(held.call, "denied", reason)
            case _:
                loop_arguments = heartbeat_loop.heartbeat_arguments(held.call.arguments)
                return JudgedCall(held.call, "answered", heartbeat=loop_arguments.heartbeat)

    return tuple(judged(index) for index in range(len(hold.calls)))


class OpenCall(msgspec.Struct, frozen=True):
    """A call of the current step. It stays in the list once returned, so that order and siblings are known."""

    call: ToolCall
    status: CallStatus
    note: str | None = None
    ran: bool = False  # returned because a tool was run here, not because it was refused, denied or answered
    approved: ToolIdentity | None = None  # the only tool that it may run
    heartbeat: bool = False  # it asks for another step


class Calls(msgspec.Struct, frozen=True):
    """How far the calls of one step have come.

    A step may have many, and each return is a state of its own. So the calls are kept once, and sets of bits say which
    of them have started and returned: a new state costs a few bytes, not a copy of every call.
    """

    made: tuple[OpenCall, ...] = ()  # with the status that each began with
    places: dict[str, int] = {}  # of each call in `made`, by its id; shared by all states of the step
    started: int = 0  # bit n: the n-th call
    returned: int = 0
    ran: int = 0

    @classmethod
    def of(cls, made: Iterable[OpenCall]) -> Calls:
        """Ids must be unique; the caller checks that. Of several calls with one id, `places` has the last."""
        kept = tuple(made)
        return cls(kept, {call.call.id: place for place, call in enumerate(kept)})

    def __len__(self) -> int:
        return len(self.made)

    def __iter__(self) -> Iterator[OpenCall]:
        return map(self._now, range(len(self.made)))

    @property
    def still_open(self) -> tuple[OpenCall, ...]:
        return tuple(self._now(place) for place in range(len(self.made)) if not self.returned >> place & 1)

    @property
    def all_returned(self) -> bool:
        return self.returned == (1 << len(self.made)) - 1

    @property
    def any_running(self) -> bool:
        return self.started & ~self.returned != 0

    def find_open(self, call_id: str) -> OpenCall | None:
        place = self.places.get(call_id)
        return None if place is None or self.returned >> place & 1 else self._now(place)

    def start(self, call_ids: Iterable[str]) -> Calls:
        bits = 0
        for call_id in call_ids:
            bits |= 1 << self.places[call_id]
        return msgspec.structs.replace(self, started=self.started | bits)

    def take_return(self, call_id: str, *, ran: bool) -> Calls:
        bit = 1 << self.places[call_id]
        return msgspec.structs.replace(self, returned=self.returned | bit, ran=self.ran | bit if ran else self.ran)

    def _now(self, place: int) -> OpenCall:
        call = self.made[place]
        if self.returned >> place & 1:
            ran = bool(self.ran >> place & 1)
            return OpenCall(call.call, "returned", call.note, ran, call.approved, call.heartbeat)
        if self.started >> place & 1:
            return OpenCall(call.call, "started", call.note, False, call.approved, call.heartbeat)
        return call
