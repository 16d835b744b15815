"""Whether one more run is accepted, or refused with a 503.

Work that has begun goes before new work: what would wait too long, or would slow down everything else, is refused at
once, and its sender told when to try again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from holdfast.engine.worker import Worker
from holdfast.errors import TooManyRuns
from holdfast.store import runs
from holdfast.store.transaction import Database

QUEUE_COUNTED_S: Final = 1.0  # how long a count of the queue is good for
REFUSED_FOR: Final = ("foreground", "queue")  # why a run is refused: there are too many of these
# When to try again, after a refusal.
_AFTER_FOREGROUND_S: Final = 1
_AFTER_QUEUE_S: Final = 2


class Admission:
    def __init__(self, database: Database, worker: Worker, most_foreground: int = 0, most_waiting: int = 0) -> None:
        """`most_foreground`: runs that this process drives while somebody waits for them. `most_waiting`: background
        runs of the whole database that wait for a worker, about. 0: any number."""
        self._database = database
        self._worker = worker
        self._most_foreground = most_foreground
        self._most_waiting = most_waiting
        self._entering = 0  # in the foreground, and perhaps not driven yet
        self._waiting = 0  # in the background, when it was last counted, and accepted here since
        self._count_again_at = 0.0  # by the event loop's clock
        self.refused: Counter[str] = Counter()  # by reason

    async def enter(self, *, background: bool, of_run: bool = False) -> None:
        """Before the acceptance of a run, and `leave` after it. `of_run`: another run waits for its answer, and has
        used what it has used, so that to refuse it would be a waste. Raises TooManyRuns."""
        if background:
            await self._require_short_queue()
            return
        if not of_run:
            self._require_few_in_foreground()
        self._entering += 1

    def leave(self, *, background: bool) -> None:
        self._entering -= not background

    def _require_few_in_foreground(self) -> None:
        most = self._most_foreground
        if not most or self._worker.slots[0] + self._entering < most:  # quick: background runs are counted too
            return
        if self._worker.foreground_runs + self._entering >= most:
            self.refused["foreground"] += 1
            raise TooManyRuns(
                f"The server answers {most} requests at once, and so many wait for their answers. Send it again in a "
                "moment, or with background: true.",
                _AFTER_FOREGROUND_S,
            )

    async def _require_short_queue(self) -> None:
        most = self._most_waiting
        if not most or self._worker.claims(background=True):
            return
        now = asyncio.get_running_loop().time()
        if now >= self._count_again_at:
            self._count_again_at = now + QUEUE_COUNTED_S
            self._waiting = await self._database.read(lambda tx: runs.count_waiting(tx, most))
        if self._waiting >= most:
            self.refused["queue"] += 1
            raise TooManyRuns(
                f"{most} background runs wait for a worker already, and no more are accepted. Send it again later.",
                _AFTER_QUEUE_S,
            )
        self._waiting += 1
