"""The base of databases that wrap another one, for tests that watch or disturb its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.core.changes import Change
from holdfast.store.transaction import Database, DatabaseUsage, Job

T = TypeVar("T")


class WrappedDatabase:
    """Passes every call on. A subclass overrides the calls it is about."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner

    def tell_of_commits(self, tell: Callable[[Sequence[Change]], None]) -> None:
        self._inner.tell_of_commits(tell)

    async def write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        return await self._inner.write(job, performed, settled)

    async def read(self, job: Job[T]) -> T:
        return await self._inner.read(job)

    async def read_one(self, job: Job[T]) -> T:
        return await self._inner.read_one(job)

    async def write_lease(self, job: Job[T]) -> T:
        return await self._inner.write_lease(job)

    async def check(self) -> int:
        return await self._inner.check()

    async def read_long(self, job: Job[T]) -> T:
        return await self._inner.read_long(job)

    async def now_us(self) -> int:
        return await self._inner.now_us()

    def usage(self) -> DatabaseUsage:
        return self._inner.usage()

    async def aclose(self) -> None:
        await self._inner.aclose()
