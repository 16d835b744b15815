"""The interface of both databases: what a store function is given, and which errors it may raise.

A store function is `async def f(tx, …)`, awaits nothing but `tx`, and never commits. A job is a function of a
transaction; `Database.write` runs one job as one transaction (decision 6). On PostgreSQL a job may be run again after a
deadlock, so a job changes nothing outside its transaction and hands its result back by returning it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec

from holdfast.core.changes import Change
from holdfast.errors import BugError, DatabaseError, HoldfastError
from holdfast.store.statements import Statement

T = TypeVar("T")
Dialect = Literal["sqlite", "postgresql"]
Parameters = Mapping[str, Any]
_log = logging.getLogger("holdfast.store")
_A_WAIT_S: Final = 0.001  # less is the price of asking, not a queue


class Row(Protocol):
    """One row, read by column name, or taken apart in the order of its columns.

    SQLite has no booleans: read a flag as `bool(row["flag"])`, or with `flag()`.
    """

    def __getitem__(self, key: str, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class Transaction(Protocol):
    """A list given as a parameter is one value: compare with it by `statements.in_array`."""

    dialect: Dialect  # for what the databases do in ways of their own: full text, vectors
    changes: list[Change]  # to be told of after the commit

    async def execute(self, statement: Statement, parameters: Parameters | None = None) -> int:
        """How many rows were affected."""
        ...

    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        """Nobody learns how many rows were affected, so it may be sent later and together with others that are put off:
        before the next statement of another kind, or before the commit. What is put off together changes no row twice,
        and reads nothing that the others write."""
        ...

    async def execute_one(self, statement: Statement, parameters: Parameters) -> bool:
        """Whether it affects one row. It may be put off as `execute_many`: then the answer is yes, and should it turn
        out to be no, the whole job is undone and run again, and told so. It has no RETURNING."""
        ...

    async def fetch_all(self, statement: Statement, parameters: Parameters | None = None) -> list[Row]: ...

    async def fetch_one(self, statement: Statement, parameters: Parameters | None = None) -> Row | None: ...


Job = Callable[[Transaction], Coroutine[Any, Any, T]]


class Database(Protocol):
    def tell_of_commits(self, tell: Callable[[Sequence[Change]], None]) -> None:
        """From now on `tell` is called on the event loop with what each transaction has changed, after its commit."""
        ...

    async def write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        """Run the job as one transaction. It is carried through even if the caller is cancelled meanwhile.

        `performed` is called with the result on the caller's event loop, before this returns: as soon as nothing but
        the disk can prevent the commit, if the engine can tell (decision 15). Nobody else sees what was written by
        then, and what is written afterwards comes after it.

        `settled` is called there too, with what went wrong or None, once it is known: also if the caller was cancelled.
        """
        ...

    async def read(self, job: Job[T]) -> T:
        """Run the job on one consistent view; it cannot write. It sees every write that was awaited before."""
        ...

    async def read_one(self, job: Job[T]) -> T:
        """As `read`, for a job that fetches once: it needs no transaction around it."""
        ...

    async def write_lease(self, job: Job[T]) -> T:
        """As `write`, for renewing leases: no other work can keep it waiting for a connection."""
        ...

    async def check(self) -> int:
        """What `now_us` is, if the database can be read and written now; raises DatabaseError if not."""
        ...

    async def read_long(self, job: Job[T]) -> T:
        """As `read`, for what may take long: it delays no other caller, and ends early when its own is cancelled."""
        ...

    async def now_us(self) -> int:
        """The clock that leases are measured by."""
        ...

    def usage(self) -> DatabaseUsage:
        """Since it was opened."""
        ...

    async def aclose(self) -> None:
        """Finish what was asked for, then close."""
        ...


class CommitUnknown(DatabaseError):
    """The connection was lost during the commit, which may have happened."""


class TookTooLong(DatabaseError):
    """The transaction passed its time limit and was cut off: undone, unless it was being committed. A read of much may
    pass it each time it is tried."""


class IntegrityError(BugError):
    """A constraint refused a row that the code thought possible. `constraint` is its name, or SQLite's column list."""

    def __init__(self, constraint: str) -> None:
        super().__init__(f"The database refused a row: {constraint}")
        self.constraint = constraint


def flag(value: Any) -> bool | None:
    """A nullable boolean column as Python sees it, whichever engine it came from."""
    return None if value is None else bool(value)


def report_unseen(error: BaseException) -> None:
    """A job has failed, and its caller, cancelled meanwhile, will not hear of it. What callers expect is a line in the
    log, and so is IntegrityError, which most of them turn into a 409. Anything else is a bug, and logged whole."""
    is_bug = not isinstance(error, HoldfastError) or (
        isinstance(error, BugError) and not isinstance(error, IntegrityError)
    )
    _log.warning("a database job failed after its caller had left: %s", error, exc_info=error if is_bug else None)


class Timing:
    """How long one kind of transaction kept its callers: numbers that only grow. Only one thread may add to them."""

    __slots__ = ("count", "seconds", "waited_s", "waits")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.waits = 0
        self.waited_s = 0.0

    def add(self, waited_s: float, seconds: float) -> None:
        """`waited_s`: for a connection, or for the writer."""
        self.count += 1
        self.seconds += seconds
        self.waited_s += waited_s
        if waited_s > _A_WAIT_S:
            self.waits += 1


class Connections(msgspec.Struct, frozen=True):
    open: int
    used: int
    most: int


class DatabaseUsage(msgspec.Struct, frozen=True, kw_only=True):
    reads: Timing
    writes: Timing
    connections: Connections | None = None  # None: there is no pool
