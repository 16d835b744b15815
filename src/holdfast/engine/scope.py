"""A cancel scope around the work of one run. Only what runs inside `run` can be interrupted; a checkpoint never is.

The reason decides what interruption means. user: settle and end as cancelled. shutdown: write nothing, hand the run
over. lease_lost: write nothing, another worker has it.
"""

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
    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._inside: asyncio.Task[Any] | None = None

    def cancel(self, reason: Reason) -> None:
        """A later reason replaces an earlier one only if it is the stronger: losing the lease forbids all writes."""
        if self.reason is None or reason == "lease_lost":
            self.reason = reason
        if self._inside is not None:
            self._inside.cancel()

    def check(self) -> None:
        if self.reason is not None:
            raise Interrupted(self.reason)

    def clear_user(self) -> None:
        """The cancel has been recorded in the state; what is left to do is to write it down."""
        if self.reason == "user":
            self.reason = None

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
