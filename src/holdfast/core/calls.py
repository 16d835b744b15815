"""The calls of one step and how far each has come.

A step may have many calls, and each return is a state of its own. So the calls are kept once, and two sets of bits say
which of them have started and returned: a new state costs a few bytes, not a copy of every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from holdfast.core.fingerprint import ToolIdentity
from holdfast.core.messages import ToolCall

CallStatus = Literal["held", "allowed", "started", "refused", "denied", "answered", "returned"]


class OpenCall(msgspec.Struct, frozen=True):
    """A call of the current step. It stays in the list once returned, so that order and siblings are known."""

    call: ToolCall
    status: CallStatus
    note: str | None = None
    ran: bool = False  # returned because a tool was run here, not because it was refused, denied or answered
    approved: ToolIdentity | None = None  # the only tool that it may run
    heartbeat: bool = False  # it asks for another step


class Calls(msgspec.Struct, frozen=True):
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
