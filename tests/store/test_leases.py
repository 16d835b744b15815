"""Leases: one owner at a time, fair to all agents, by the database's clock."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast import ids
from holdfast.core.records import Run, Thread
from holdfast.store import leases, runs, threads
from holdfast.store.transaction import Database, Transaction

from .world import NOW, a_run, add_agent, add_conversation, add_run, call, end_run, look

SECOND = 1_000_000


async def stored(database: Database, run: Run) -> Run:
    return await look(database, runs.get, run.id)


async def test_a_claim_raises_the_lease_and_keeps_others_out_until_it_expires(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    mine = await call(database, leases.claim, run.id, "me", NOW, 10 * SECOND)
    assert (mine.lease, mine.lease_owner, mine.lease_expires_us) == (1, "me", NOW + 10 * SECOND)
    assert await call(database, leases.claim, run.id, "you", NOW + 9 * SECOND, SECOND) is None
    again = await call(database, leases.claim, run.id, "me", NOW, 10 * SECOND)
    assert again.lease == 2
    yours = await call(database, leases.claim, run.id, "you", NOW + 10 * SECOND, SECOND)
    assert (yours.lease, yours.lease_owner) == (3, "you")


async def test_a_run_runs_from_its_first_claim_on(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    await call(database, leases.claim_many, [run.id], "me", NOW, SECOND)
    first = await stored(database, run)
    assert (first.status, first.started_us) == ("running", NOW)
    await call(database, leases.claim, run.id, "you", NOW + SECOND, SECOND)
    assert (await stored(database, run)).started_us == NOW, "however often it changes hands"


async def test_of_twenty_claims_at_once_one_wins(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    claimed = await asyncio.gather(*(call(database, leases.claim, run.id, f"w{n}", NOW, SECOND) for n in range(20)))
    assert sum(each is not None for each in claimed) == 1
    assert (await stored(database, run)).lease == 1


async def test_an_ended_run_cannot_be_claimed(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    await end_run(database, run)
    assert await call(database, leases.claim, run.id, "me", NOW, SECOND) is None


async def test_runs_without_a_live_owner_are_waiting(database: Database) -> None:
    names = ("orphan", "dead", "alive", "ended")
    made = {
        name: await add_run(database, await add_agent(database), created_us=NOW + n) for n, name in enumerate(names)
    }
    await call(database, leases.claim, made["dead"].id, "gone", NOW, SECOND)
    await call(database, leases.claim, made["alive"].id, "here", NOW, 60 * SECOND)
    await end_run(database, made["ended"])
    assert await look(database, leases.waiting, NOW + SECOND, 10) == [made["orphan"].id, made["dead"].id]
    assert await look(database, leases.waiting, NOW + SECOND, 1) == [made["orphan"].id]


async def runs_of(database: Database, agent_id: str, count: int, created_us: int = NOW) -> list[str]:
    """In conversations of their own, one after the other."""
    made: list[str] = []
    for number in range(count):
        thread_id = await add_conversation(database, agent_id)
        run = await add_run(database, agent_id, thread_id=thread_id, created_us=created_us + number)
        made.append(run.id)
    return made


async def test_an_agent_with_many_waiting_runs_keeps_nobody_waiting(database: Database) -> None:
    flood = await runs_of(database, await add_agent(database), 20)
    (late,) = await runs_of(database, await add_agent(database), 1, NOW + SECOND)
    first, second, *rest = await look(database, leases.waiting, NOW, 30)
    assert [first, second] == [flood[0], late]
    assert rest == flood[1:]


async def test_an_agent_of_which_many_runs_are_driven_waits_for_those_of_which_few_are(database: Database) -> None:
    busy, idle = await add_agent(database), await add_agent(database)
    driven = await runs_of(database, busy, 3)
    for run_id in driven:
        await call(database, leases.claim, run_id, "me", NOW, 60 * SECOND)
    (next_of_busy,) = await runs_of(database, busy, 1, NOW + 10)
    of_idle = await runs_of(database, idle, 4, NOW + 20)
    assert await look(database, leases.waiting, NOW + SECOND, 10) == [*of_idle[:3], next_of_busy, of_idle[3]]


async def flood(database: Database, agent_id: str, count: int, created_us: int = NOW) -> list[str]:
    """As `runs_of`, in one transaction."""
    made = [(Thread(id=ids.new("conv"), agent_id=agent_id), number) for number in range(count)]
    flooding = [a_run(agent_id, thread.id, background=True, created_us=created_us + number) for thread, number in made]

    async def job(tx: Transaction) -> None:
        for (thread, _), run in zip(made, flooding, strict=True):
            await threads.insert(tx, thread)
            await runs.insert(tx, run)

    await database.write(job)
    return [run.id for run in flooding]


async def test_of_two_agents_the_one_with_a_thousand_runs_waits_for_the_other(database: Database) -> None:
    many = await flood(database, await add_agent(database), 1_000)
    (late,) = await runs_of(database, await add_agent(database), 1, NOW + 10_000)
    assert await look(database, leases.waiting, NOW, 2) == [many[0], late]
    await call(database, leases.claim_many, many[:1], "me", NOW, 60 * SECOND)
    assert await look(database, leases.waiting, NOW, 1) == [late], "now the other's is the next of all"


async def test_an_agent_has_no_more_background_runs_driven_than_it_may_have(database: Database) -> None:
    many = await flood(database, await add_agent(database), 6)
    others = await flood(database, await add_agent(database), 1)
    assert set(await look(database, leases.waiting, NOW, 10, 2)) == {*many[:2], *others}
    claims = await call(database, leases.claim_many, many, "me", NOW, 60 * SECOND, 2)
    assert [each.run.id for each in claims] == many[:2]
    assert await look(database, leases.waiting, NOW, 10, 2) == others
    assert await call(database, leases.claim_many, many[2:], "you", NOW, 60 * SECOND, 2) == []
    await end_run(database, claims[0].run)
    assert await look(database, leases.waiting, NOW, 10, 2) == [*others, many[2]]


async def test_a_run_that_somebody_waits_for_is_not_held_up_by_the_limit_but_counts(database: Database) -> None:
    agent_id = await add_agent(database)
    waiting = await runs_of(database, agent_id, 2)  # in the foreground; their worker has died
    background = await flood(database, agent_id, 2, NOW + SECOND)
    assert await look(database, leases.waiting, NOW, 10, 1) == waiting
    claims = await call(database, leases.claim_many, [*waiting, *background], "me", NOW, 60 * SECOND, 2)
    assert [each.run.id for each in claims] == waiting


async def test_workers_that_claim_at_once_do_not_exceed_the_limit_together(database: Database) -> None:
    many = await flood(database, await add_agent(database), 24)
    claims = await asyncio.gather(
        *(call(database, leases.claim_many, many[n::8], f"w{n}", NOW, 60 * SECOND, 4) for n in range(8))
    )
    assert sum(len(each) for each in claims) == 4


async def test_waiting_runs_are_claimed_together_in_their_order(database: Database) -> None:
    agent_id = await add_agent(database)
    orphan, dead, alive = await runs_of(database, agent_id, 3)
    await call(database, leases.claim, dead, "gone", NOW, SECOND)
    await call(database, leases.claim, alive, "here", NOW, 60 * SECOND)
    claims = await call(database, leases.claim_many, [orphan, dead, alive], "me", NOW + SECOND, 5 * SECOND)
    assert [(each.run.id, each.run.lease, each.owner_died) for each in claims] == [(orphan, 1, False), (dead, 2, True)]
    assert {each.run.lease_expires_us for each in claims} == {NOW + 6 * SECOND}
    assert await call(database, leases.claim_many, [orphan, dead], "you", NOW + SECOND, SECOND) == []


async def test_many_workers_that_claim_at_once_have_each_run_once(database: Database) -> None:
    waiting = await runs_of(database, await add_agent(database), 12)
    claims = await asyncio.gather(
        *(call(database, leases.claim_many, waiting, f"w{n}", NOW, 60 * SECOND) for n in range(8))
    )
    taken = [claimed.run.id for each in claims for claimed in each]
    assert len(taken) == len(set(taken))
    left = await look(database, leases.waiting, NOW, 30)
    assert sorted([*taken, *left]) == sorted(waiting)


async def test_renewing_extends_all_runs_of_the_owner_and_tells_of_cancels(database: Database) -> None:
    mine = [await add_run(database, await add_agent(database)) for _ in range(3)]
    other = await add_run(database, await add_agent(database))
    for run in mine:
        await call(database, leases.claim, run.id, "me", NOW, SECOND)
    await call(database, leases.claim, other.id, "you", NOW, SECOND)
    await call(database, runs.ask_cancel, mine[1].id, NOW + 7)
    await end_run(database, msgspec.structs.replace(mine[2], lease=1))
    before_us = await database.now_us() // 1_000 * 1_000  # SQLite stamps to the millisecond
    renewed = await call(database, leases.renew, "me", 5 * SECOND)
    assert sorted(renewed) == sorted([(mine[0].id, 1, None), (mine[1].id, 1, NOW + 7)])
    until_us = (await stored(database, mine[0])).lease_expires_us
    assert until_us is not None
    assert before_us + 5 * SECOND <= until_us <= await database.now_us() + 5 * SECOND, "by the database's clock"
    assert (await stored(database, other)).lease_expires_us == NOW + SECOND


async def test_a_released_run_is_free_at_once_but_only_its_holder_can_release_it(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    await call(database, leases.claim, run.id, "me", NOW, 60 * SECOND)
    assert not await call(database, leases.release, run.id, 0)
    assert await call(database, leases.claim, run.id, "you", NOW, SECOND) is None
    assert await call(database, leases.release, run.id, 1)
    assert (await call(database, leases.claim, run.id, "you", NOW, SECOND)).lease == 2


async def test_a_run_that_is_let_go_as_if_its_owner_had_died_is_free_at_once_and_not_renewed(
    database: Database,
) -> None:
    run = await add_run(database, await add_agent(database))
    await call(database, leases.claim, run.id, "me", NOW, 60 * SECOND)
    assert not await call(database, leases.expire, run.id, 0)
    assert await call(database, leases.expire, run.id, 1)
    assert await call(database, leases.renew, "me", 60 * SECOND) == []
    (taken,) = await call(database, leases.claim_many, [run.id], "you", NOW, SECOND)
    assert (taken.run.lease, taken.owner_died) == (2, True)
