"""The scope around the work of one run: the one way in which it is interrupted (decision 2)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

from holdfast.errors import RunInterrupted

T = TypeVar("T")
Reason = Literal["user", "shutdown", "lease_lost"]


class Interrupted(RunInterrupted):
    def __init__(self, reason: Reason) -> None:
        super().__init__(f"the run was interrupted: {reason}")
        self.reason: Reason = reason


class CancelScope:
    """Around the work of one run. Only what runs inside `run` can be interrupted; a checkpoint never is.

    The reason decides what interruption means. user: settle and end as cancelled. shutdown: write nothing, hand the run
    over. lease_lost: write nothing, another worker has it.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._inside: asyncio.Task[Any] | None = None
        self._let_go = asyncio.Event()  # the run may not go on here

    def cancel(self, reason: Reason) -> None:
        """A later reason replaces an earlier one only if it is the stronger: losing the lease forbids all writes."""
        if self.reason is None or reason == "lease_lost":
            self.reason = reason
        if reason != "user":
            self._let_go.set()
        if self._inside is not None:
            self._inside.cancel()

    def check(self) -> None:
        if self.reason is not None:
            raise Interrupted(self.reason)

    def clear_user(self) -> None:
        """The cancel has been recorded in the state; what is left to do is to write it down."""
        if self.reason == "user":
            self.reason = None

    async def pause(self, seconds: float) -> None:
        """For a checkpoint that is to be tried again. A user's cancel does not end it: what has been written must be
        known first, and the checkpoint itself finds the cancel on record."""
        try:
            async with asyncio.timeout(seconds):
                await self._let_go.wait()
        except TimeoutError:
            return
        raise Interrupted("lease_lost" if self.reason == "lease_lost" else "shutdown")

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Finishes the work, or raises Interrupted after the work has cleaned up after itself."""
        if self.reason is not None:
            work.close()
            raise Interrupted(self.reason)
        self._inside = asyncio.ensure_future(work)
        try:
            return await self._inside
        except asyncio.CancelledError:
            if self.reason is None:
                raise
            raise Interrupted(self.reason) from None
        finally:
            self._inside = None
