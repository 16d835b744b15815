"""Tasks are rows: none is lost, none is done twice, and whoever has lost one writes nothing for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sqlalchemy import select, update

from holdfast.core.records import Task
from holdfast.engine.bus import Bus
from holdfast.engine.tasks import MOST_ATTEMPTS, HeldTask, TaskSettings, TaskWorker, TryAgain
from holdfast.errors import Invalid, LeaseLost, ShuttingDown
from holdfast.store import kv, tasks
from holdfast.store.database import open_database
from holdfast.store.tables import tasks as table
from holdfast.store.transaction import Database, Transaction

from ..scenario import FragileDatabase
from ..store.world import until_somebody_waits

KIND = "count"
LONG = TaskSettings(lease_ttl_s=600, drain_s=0.0)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await open_database(database_url)
    yield opened
    await opened.aclose()


class Counting:
    """A kind of task that records with its end how often it was done. `work` is what it does before."""

    def __init__(self, work: Callable[[HeldTask], Awaitable[object]] | None = None) -> None:
        self.work = work
        self.begun = asyncio.Event()
        self.given_up: list[Exception] = []

    async def perform(self, held: HeldTask) -> None:
        self.begun.set()
        if self.work is not None:
            await self.work(held)
        await held.finish(lambda tx: _count(tx, held.task))

    async def give_up(self, held: HeldTask, error: Exception) -> None:
        await held.finish(_nothing)
        self.given_up.append(error)


async def _count(tx: Transaction, task: Task) -> None:
    await kv.set_number(tx, task.subject_id, (await kv.number(tx, task.subject_id) or 0) + 1)


async def _nothing(tx: Transaction) -> None:
    pass


async def _stall(held: HeldTask) -> None:
    await asyncio.Event().wait()


def a_worker(database: Database, kind: Counting, settings: TaskSettings = LONG) -> TaskWorker:
    worker = TaskWorker(database, Bus(), settings)
    worker.kinds[KIND] = kind
    return worker


async def add(database: Database, subject: str = "file-1") -> None:
    await database.write(lambda tx: tasks.add(tx, KIND, subject, {"a": 1}))


async def done(database: Database, subject: str = "file-1") -> int:
    return int(await database.read(lambda tx: kv.number(tx, subject)) or 0)


async def left(database: Database) -> int:
    return len(await database.read(lambda tx: tx.fetch_all(select(table.c.id))))


async def make_all_due(database: Database) -> None:
    await database.write(lambda tx: tx.execute(update(table).values(due_us=0)))


async def expire_leases(database: Database) -> None:
    await database.write(lambda tx: tx.execute(update(table).values(lease_expires_us=0)))


async def test_a_task_is_performed_and_gone_with_its_result(database: Database) -> None:
    seen: list[Task] = []
    kind = Counting()

    async def look(held: HeldTask) -> None:
        seen.append(held.task)

    kind.work = look
    worker = a_worker(database, kind)
    await add(database)
    assert await worker.sweep() == 1
    await worker.settled()
    assert (await done(database), await left(database)) == (1, 0)
    assert (seen[0].subject_id, seen[0].payload, seen[0].attempts) == ("file-1", {"a": 1}, 1)


async def test_a_subject_has_one_task_of_a_kind(database: Database) -> None:
    for _ in range(2):
        await add(database)
    assert await left(database) == 1


@pytest.mark.postgres
async def test_a_task_that_is_added_while_it_ends_is_not_lost(postgres_url: str) -> None:
    """Its last write waits for the transaction that adds it again, and then sees what made it due. SQLite has one
    writer, so there it cannot happen."""
    database = await open_database(postgres_url)
    added, commit = asyncio.Event(), asyncio.Event()

    async def add_again(tx: Transaction) -> None:
        await kv.set_number(tx, "more", 1)
        await tasks.add(tx, KIND, "file-1")
        added.set()
        await commit.wait()

    async def looks_for_more(tx: Transaction) -> bool:
        return await kv.number(tx, "more") is not None

    await add(database)
    [task] = await database.write(lambda tx: tasks.claim(tx, [KIND], "worker-1", 600_000_000, 1))
    adding = asyncio.create_task(database.write(add_again))
    await added.wait()
    ending = asyncio.create_task(HeldTask(task, database).finish(looks_for_more))
    await until_somebody_waits(postgres_url, ending)
    commit.set()
    await adding
    assert await ending
    await database.aclose()


async def test_a_worker_wakes_itself_for_what_was_added(database: Database) -> None:
    kind = Counting()
    worker = a_worker(database, kind, TaskSettings(lease_ttl_s=600, sweep_s=3_600))
    forever = asyncio.create_task(worker.run_forever())
    await asyncio.sleep(0)
    await add(database)
    worker.wake()
    await kind.begun.wait()
    await worker.settled()
    forever.cancel()
    assert await done(database) == 1


async def test_two_workers_do_not_perform_the_same_task(database: Database) -> None:
    first, second = Counting(_stall), Counting(_stall)
    workers = a_worker(database, first), a_worker(database, second)
    for number in range(6):
        await add(database, f"file-{number}")
    claimed = await asyncio.gather(*(worker.sweep() for worker in workers))
    assert sum(claimed) == 6
    for worker in workers:
        await worker.drain()


async def test_a_worker_performs_no_more_than_it_has_room_for(database: Database) -> None:
    worker = a_worker(database, Counting(_stall), TaskSettings(at_once=2, drain_s=0.0))
    for number in range(3):
        await add(database, f"file-{number}")
    assert [await worker.sweep(), await worker.sweep(), worker.performing] == [2, 0, 2]
    await worker.drain()


async def test_whoever_lost_its_lease_writes_nothing(database: Database) -> None:
    go_on, lost = asyncio.Event(), asyncio.Event()

    async def wait_and_write(held: HeldTask) -> None:
        await go_on.wait()
        try:
            await held.write(lambda tx: _count(tx, held.task))
        except LeaseLost:
            lost.set()
            raise

    slow = a_worker(database, Counting(wait_and_write))
    await add(database)
    await slow.sweep()
    await expire_leases(database)
    quick = a_worker(database, Counting())
    assert await quick.sweep() == 1
    await quick.settled()
    go_on.set()
    await slow.settled()
    assert lost.is_set()
    assert await done(database) == 1


async def test_a_renewal_stops_what_was_withdrawn(database: Database) -> None:
    kind = Counting(_stall)
    worker = a_worker(database, kind)
    await add(database)
    await worker.sweep()
    await kind.begun.wait()
    await database.write(lambda tx: tasks.withdraw(tx, KIND, ["file-1"]))
    await worker._renew()
    await worker.settled()
    assert (await done(database), kind.given_up, await left(database)) == (0, [], 0)


async def test_a_renewal_keeps_a_task_from_others(database: Database) -> None:
    kind = Counting(_stall)
    worker, other = a_worker(database, kind), a_worker(database, Counting())
    await add(database)
    await worker.sweep()
    await expire_leases(database)
    await worker._renew()
    assert await other.sweep() == 0
    await worker.drain()


async def test_what_may_help_later_is_tried_later(database: Database) -> None:
    async def unavailable(held: HeldTask) -> None:
        raise TryAgain("no embedding model answers", after_s=60)

    kind = Counting(unavailable)
    worker = a_worker(database, kind)
    await add(database)
    await worker.sweep()
    await worker.settled()
    assert (await worker.sweep(), await left(database)) == (0, 1)  # not before a minute is over
    await make_all_due(database)
    kind.work = None
    await worker.sweep()
    await worker.settled()
    assert await done(database) == 1


async def test_an_error_of_the_work_itself_is_recorded_at_once(database: Database) -> None:
    async def refuse(held: HeldTask) -> None:
        raise Invalid("This is no PDF.")

    kind = Counting(refuse)
    worker = a_worker(database, kind)
    await add(database)
    await worker.sweep()
    await worker.settled()
    assert [str(error) for error in kind.given_up] == ["This is no PDF."]
    assert (await done(database), await left(database)) == (0, 0)


async def test_an_unknown_error_is_loud_tried_again_and_recorded_in_the_end(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def stumble(held: HeldTask) -> None:
        raise ZeroDivisionError("oops")

    kind = Counting(stumble)
    worker = a_worker(database, kind)
    await add(database)
    for _ in range(MOST_ATTEMPTS):
        assert not kind.given_up
        await make_all_due(database)
        assert await worker.sweep() == 1
        await worker.settled()
    assert [type(error) for error in kind.given_up] == [ZeroDivisionError]
    assert caplog.text.count("Traceback") == MOST_ATTEMPTS
    assert await left(database) == 0


async def test_a_task_that_ends_its_process_each_time_is_given_up(database: Database) -> None:
    await add(database)
    for _ in range(MOST_ATTEMPTS):
        dead = a_worker(database, Counting(_stall))
        await dead.sweep()
        for _, running in list(dead._held.values()):
            running.cancel()  # a process that is killed releases nothing
        await dead.settled()
        await expire_leases(database)
    kind = Counting()
    worker = a_worker(database, kind)
    await worker.sweep()
    await worker.settled()
    assert ["unexpectedly" in str(error) for error in kind.given_up] == [True]
    assert await done(database) == 0


async def test_a_server_that_stops_hands_its_tasks_over_at_once(database: Database) -> None:
    kind = Counting(_stall)
    worker = a_worker(database, kind)
    await add(database)
    await worker.sweep()
    await kind.begun.wait()
    await worker.drain()
    other = a_worker(database, Counting())
    assert await other.sweep() == 1
    await other.settled()
    assert (await done(database), await worker.sweep()) == (1, 0)


async def test_a_task_that_meets_a_stopping_server_is_handed_over_too(database: Database) -> None:
    async def refused(held: HeldTask) -> None:
        raise ShuttingDown("The server is shutting down.")

    kind = Counting(refused)
    worker = a_worker(database, kind)
    await add(database)
    await worker.sweep()
    await worker.settled()
    row = await database.read(lambda tx: tx.fetch_one(select(table.c.attempts, table.c.lease_owner)))
    assert row is not None
    assert (row["attempts"], row["lease_owner"], kind.given_up) == (0, None, [])


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_connection_at_the_end_neither_loses_nor_repeats_it(database: Database, when: str) -> None:
    fragile = FragileDatabase(database)
    worker = a_worker(fragile, Counting())
    await add(database)
    fragile.lose_write(2, "before" if when == "before" else "after")  # the claim is the first
    await worker.sweep()
    await worker.settled()
    await make_all_due(database)
    await expire_leases(database)
    await worker.sweep()
    await worker.settled()
    assert (await done(database), await left(database)) == (1, 0)


async def test_a_server_that_is_alone_takes_over_what_an_earlier_process_held(database: Database) -> None:
    kind = Counting(_stall)
    dead = a_worker(database, kind)
    await add(database)
    await dead.sweep()
    heir = a_worker(database, Counting())
    assert await heir.sweep() == 0
    await heir.expire_other_leases()
    assert await heir.sweep() == 1
    await heir.settled()
    assert await done(database) == 1
    await dead.drain()


async def test_only_kinds_that_this_server_knows_are_taken(database: Database) -> None:
    await database.write(lambda tx: tasks.add(tx, "of a later version", "file-1"))
    worker = a_worker(database, Counting())
    assert (await worker.sweep(), await left(database)) == (0, 1)


async def test_a_task_added_by_another_process_is_heard_of(database: Database) -> None:
    class Line:
        connected = True

        def send(self, signal: str) -> None:
            pass

        async def run_forever(self, heard: Callable[[str], None], missed: Callable[[], None]) -> None:
            heard("task")

    bus = Bus(Line())
    kind = Counting()
    worker = TaskWorker(database, bus, TaskSettings(lease_ttl_s=600, sweep_s=3_600))
    worker.kinds[KIND] = kind
    forever = asyncio.create_task(worker.run_forever())
    await asyncio.sleep(0)
    await add(database)
    await bus.listen(lambda run_id: None, lambda: None)
    await kind.begun.wait()
    await worker.settled()
    forever.cancel()
    assert await done(database) == 1


async def test_waiting_for_what_will_come_is_no_attempt(database: Database) -> None:
    left = 2 * MOST_ATTEMPTS

    async def wait(held: HeldTask) -> None:
        nonlocal left
        left -= 1
        if left:
            raise TryAgain("the agent is busy", after_s=0, counts=False)

    kind = Counting(wait)
    worker = a_worker(database, kind)
    await add(database)
    while await worker.sweep():
        await worker.settled()
    assert (left, kind.given_up) == (0, [])
    assert await database.read(lambda tx: kv.number(tx, "file-1")) == 1
