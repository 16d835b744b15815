"""How much a provider may be asked for: token buckets. Pure: the time is an argument.

A bucket of 500 per minute holds 500 and is refilled evenly. What is in it is kept as one moment: when it will be full
again. To take from it moves that moment on. What was taken may be used as soon as the moment is no further away than an
empty bucket takes to fill. So one may take more than there is, and knows at once for how long to wait; whoever takes
next stands behind (the generic cell rate algorithm). There is nothing to give back: a process that dies with what it
took has used it, and the bucket fills all the same.

A process takes a little more than it needs, so that not every call asks the database: its `Share`. What is not used
within a second after it could be is forgotten.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal

import msgspec

LONGEST_WAIT_S: Final = 3600.0  # that can be configured
UNUSED_S: Final = 1.0  # how long what may be used is kept
AHEAD_S: Final = 0.2  # what is taken beyond what is needed: as much as comes in this time

_SECOND: Final = 1_000_000
_PERIODS_S: Final = {"s": 1.0, "min": 60.0, "hour": 3600.0, "day": 86_400.0}
_ENTRY: Final = re.compile(r"([^=,\s]+)\s*=\s*([0-9]{1,12})\s*(requests|tokens)?\s*/\s*([a-z]+)")

Unit = Literal["requests", "tokens"]


class Limit(msgspec.Struct, frozen=True):
    provider: str
    amount: int
    unit: Unit
    period_s: float

    @property
    def key(self) -> str:
        """Of its bucket. A limit that was changed has another one."""
        return f"{self.provider} {self.amount} {self.unit} in {self.period_s:g} s"

    @property
    def each_s(self) -> float:
        return self.period_s / self.amount

    @property
    def ahead(self) -> int:
        return int(AHEAD_S / self.each_s)


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Raises ValueError, with what the setting must be."""
    return tuple(_parse(entry.strip()) for entry in text.split(",") if entry.strip())


def _parse(entry: str) -> Limit:
    found = _ENTRY.fullmatch(entry)
    if found is None or found[4] not in _PERIODS_S or not int(found[2]):
        raise ValueError(
            "must list providers with requests or tokens per s, min, hour or day, such as "
            f"openai=500/min,openai=200000 tokens/min,anthropic=50/s, and not {entry!r}"
        )
    unit: Unit = "tokens" if found[3] == "tokens" else "requests"
    return Limit(found[1], int(found[2]), unit, _PERIODS_S[found[4]])


class Taken(msgspec.Struct, frozen=True):
    """`amount` may be less than was wanted, or nothing: the rest could not be used soon enough."""

    amount: int
    full_at_us: int  # of the bucket, now
    wait_us: int  # until the first of it may be used; less than 0: it could have been used before


def take(limit: Limit, full_at_us: int | None, now_us: int, wanted: int, longest_wait_s: float) -> Taken:
    """From a bucket that is full at `full_at_us`; None: it has never been used."""
    period_us = round(limit.period_s * _SECOND)
    begin_us = now_us if full_at_us is None else max(full_at_us, now_us)
    if begin_us > now_us + period_us + LONGEST_WAIT_S * _SECOND:
        begin_us = now_us + period_us  # a clock was set back: nobody can have taken so much
    latest_us = now_us + period_us + round(longest_wait_s * _SECOND)
    amount = max(0, min(wanted, (latest_us - begin_us) * limit.amount // period_us))
    cost_us = -(-amount * period_us // limit.amount)
    return Taken(amount, begin_us + cost_us, begin_us - period_us - now_us)


class Grant(msgspec.Struct, frozen=True):
    """What a process has taken and not used yet. Times are seconds of its own clock."""

    amount: int
    begins: float  # so much later than this each of it may be used: the first after `each_s`, the last after all
    since: float

    def usable_at(self, limit: Limit, amount: int) -> float:
        return max(self.since, self.begins + amount * limit.each_s)

    def without(self, limit: Limit, amount: int) -> Grant:
        return Grant(self.amount - amount, self.begins + amount * limit.each_s, self.since)


class Share(msgspec.Struct, frozen=True):
    """What one process has of one bucket."""

    grants: tuple[Grant, ...] = ()
    owed: int = 0  # used without having been taken; less than 0: taken for nothing


def fresh(share: Share, limit: Limit, now: float) -> Share:
    """Without what nobody has used for too long."""
    kept = tuple(each for each in share.grants if each.usable_at(limit, each.amount) + UNUSED_S > now)
    return share if len(kept) == len(share.grants) else msgspec.structs.replace(share, grants=kept)


def missing(share: Share, limit: Limit, wanted: int) -> int:
    """How much is to be taken from the bucket, so that `wanted` can be used, and a little more."""
    held = sum(each.amount for each in share.grants)
    return 0 if held >= wanted else max(0, wanted + share.owed + limit.ahead - held)


def granted(share: Share, limit: Limit, taken: Taken, now: float) -> Share:
    """What is owed is paid first; what was taken for nothing is used now."""
    amount = taken.amount - share.owed
    if amount <= 0:
        return Share(share.grants, share.owed - taken.amount)
    begins = now + taken.wait_us / _SECOND + share.owed * limit.each_s
    return Share((*share.grants, Grant(amount, begins, now)))


def use(share: Share, limit: Limit, amount: int) -> tuple[Share, float] | None:
    """The share afterwards, and when the amount may be used. None: there is not so much of it."""
    left, usable_at = amount, -math.inf
    kept: list[Grant] = []
    for grant in share.grants:
        part = min(left, grant.amount)
        if part:
            usable_at = max(usable_at, grant.usable_at(limit, part))
            left -= part
        if grant.amount > part:
            kept.append(grant.without(limit, part))
    return None if left else (Share(tuple(kept), share.owed), usable_at)


def unused(share: Share, limit: Limit, amount: int, usable_at: float, now: float) -> Share:
    """Whoever was to use it has left before its time came."""
    back = Grant(amount, usable_at - amount * limit.each_s, min(now, usable_at))
    return Share((back, *share.grants), share.owed)


def corrected(share: Share, difference: int) -> Share:
    """A call has used so much more than was thought, or less."""
    return Share(share.grants, share.owed + difference)
