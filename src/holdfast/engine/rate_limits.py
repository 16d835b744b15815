"""Holds model calls back so that no provider is asked for more than its limits allow, by all processes together.

Each process takes a share of a limit's bucket from the database (`core/rate_limits.py`): as much as its calls need that
wait just then, and a little more. A provider without a limit costs a look into a dictionary.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from holdfast.core import rate_limits
from holdfast.core.rate_limits import Limit, Share, Taken
from holdfast.core.usage import Usage
from holdfast.engine.clock import Clock
from holdfast.errors import DatabaseError, LimitReached
from holdfast.store import rate_limits as buckets
from holdfast.store.transaction import Database, IntegrityError

SHOWN_S: Final = 1.0  # a shorter wait is not put on record
_NOTHING: Final = Taken(0, 0, 0)  # where nothing had to be taken, because earlier calls used less than they had
log = logging.getLogger(__name__)


class ProviderLimits:
    """All limits of one provider. The counts are for metrics."""

    def __init__(
        self, database: Database, clock: Clock, provider: str, limits: Sequence[Limit], longest_wait_s: float
    ) -> None:
        self.provider = provider
        self._database = database
        self._clock = clock
        self._buckets = [_Bucket(database, limit, longest_wait_s) for limit in limits if limit.provider == provider]
        self.waiting = 0  # calls, now
        self.waits = 0
        self.waited_s = 0.0
        self.refused = 0

    async def admit(self, tokens: int, run_id: str | None) -> None:
        """Returns when a call of about so many tokens may be made. Raises LimitReached if that would take too long.

        Whoever is cancelled meanwhile leaves its place to the next call.
        """
        turns: list[tuple[_Bucket, int, float]] = []
        admitted = False
        self.waiting += 1
        try:
            for bucket in self._buckets:
                amount = tokens if bucket.limit.unit == "tokens" else 1
                turns.append((bucket, amount, await bucket.turn(amount)))
            await self._wait_until(max(at for _, _, at in turns), run_id)
            admitted = True
        except LimitReached:
            self.refused += 1
            raise
        finally:
            self.waiting -= 1
            if not admitted:
                for bucket, amount, at in turns:
                    bucket.give_back(amount, at)

    def used(self, guessed: int, usage: Usage | None) -> None:
        """What a call has really used, where its vendor has said so."""
        if usage is not None and not usage.estimated:
            for bucket in self._buckets:
                if bucket.limit.unit == "tokens":
                    bucket.correct(usage.total_tokens - guessed)

    async def _wait_until(self, at: float, run_id: str | None) -> None:
        now = asyncio.get_running_loop().time
        wait_s = at - now()
        if wait_s <= 0:
            return
        self.waits += 1
        began = now()
        try:
            if wait_s >= SHOWN_S and run_id is not None:
                await self._record(run_id, wait_s)
            await asyncio.sleep(at - now())
        finally:
            self.waited_s += now() - began

    async def _record(self, run_id: str, wait_s: float) -> None:
        until_us = self._clock.now_us() + int(wait_s * 1_000_000)
        try:
            await self._database.write(lambda tx: buckets.record_wait(tx, run_id, self.provider, until_us))
        except (DatabaseError, IntegrityError) as error:  # the second: its acceptance has come to nothing
            log.warning("nobody can be told that run %s waits for %s: %s", run_id, self.provider, error)


class RateLimits:
    def __init__(self, database: Database, clock: Clock, limits: Sequence[Limit], longest_wait_s: float) -> None:
        names = dict.fromkeys(limit.provider for limit in limits)
        self._providers = {name: ProviderLimits(database, clock, name, limits, longest_wait_s) for name in names}

    def of(self, provider: str) -> ProviderLimits | None:
        return self._providers.get(provider)

    @property
    def providers(self) -> Sequence[ProviderLimits]:
        return list(self._providers.values())


class _Bucket:
    """What this process has of one bucket."""

    def __init__(self, database: Database, limit: Limit, longest_wait_s: float) -> None:
        self.limit = limit
        self._database = database
        self._longest_wait_s = longest_wait_s
        self._share = Share()
        self._wanted = 0  # by calls that wait for a larger share
        self._taking: asyncio.Task[Taken] | None = None

    async def turn(self, amount: int) -> float:
        """When so much may be used, by the event loop's clock. More than the bucket can hold is owed."""
        now = asyncio.get_running_loop().time
        needed = min(amount, self.limit.amount)
        while True:
            self._share = rate_limits.fresh(self._share, self.limit, now())
            found = rate_limits.use(self._share, self.limit, needed)
            if found is not None:
                self._share = rate_limits.corrected(found[0], amount - needed)
                return found[1]
            taken = await self._take(needed)
            if not taken.amount and taken is not _NOTHING:
                raise self._refusal(taken.wait_us / 1_000_000 + needed * self.limit.each_s)

    def give_back(self, amount: int, at: float) -> None:
        needed, now = min(amount, self.limit.amount), asyncio.get_running_loop().time()
        self._share = rate_limits.unused(self._share, self.limit, needed, at, now)
        self.correct(needed - amount)

    def correct(self, difference: int) -> None:
        self._share = rate_limits.corrected(self._share, difference)

    async def _take(self, needed: int) -> Taken:
        """One at a time for all calls that wait, in a task of its own: one of them may leave."""
        self._wanted += needed
        try:
            if self._taking is None or self._taking.done():
                self._taking = asyncio.create_task(self._take_missing())
                self._taking.add_done_callback(_seen)
            return await asyncio.shield(self._taking)
        finally:
            self._wanted -= needed

    async def _take_missing(self) -> Taken:
        missing = rate_limits.missing(self._share, self.limit, self._wanted)
        taken = _NOTHING
        if missing:
            taken = await self._database.write(lambda tx: buckets.take(tx, self.limit, missing, self._longest_wait_s))
        now = asyncio.get_running_loop().time()
        self._share = rate_limits.granted(self._share, self.limit, taken, now)
        return taken

    def _refusal(self, wait_s: float) -> LimitReached:
        return LimitReached(
            f"The limit of {self.limit.amount} {self.limit.unit} in {self.limit.period_s:g} s for the provider "
            f"{self.limit.provider}, which HOLDFAST_PROVIDER_LIMITS sets, is used up for the next {wait_s:.0f} s.",
            retry_after=wait_s,
        )


def _seen(task: asyncio.Task[Taken]) -> None:
    """Whoever waited for it may have left, and then nobody asks for its exception."""
    if not task.cancelled():
        task.exception()
