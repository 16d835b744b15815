"""`make faults`: rounds of faults at random, for as long as it is given. A round's seed repeats it.

In a round clients keep agents busy while servers are killed and stopped, connections cut, databases restarted, disks
filled, clocks set wrong and hostile requests made. Then the faults end, and everything that is promised is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import msgspec

from tests import postgres
from tests.postgres import PostgresServer

from . import clocks, disturbing, fleet
from .clocks import WrongClock
from .disturbing import Disturber, Kind, Means, Plan
from .fleet import Fleet
from .link import Link, links_to
from .tally import Tally

ROUND_S = 20.0
DISTURBED_AT_MOST_S = 40.0
ROUND_AT_MOST_S = 300.0
CLIENTS = 4
ENVIRONMENT = {"HOLDFAST_LEASE_TTL_S": "2", "HOLDFAST_DRAIN_S": "1", "HOLDFAST_MODEL_RETRY_S": "0.05"}
DATABASES: dict[str, tuple[Literal["sqlite", "postgresql"], ...]] = {
    "sqlite": ("sqlite",),
    "postgresql": ("postgresql",),
    "both": ("sqlite", "postgresql"),
}


class Options(msgspec.Struct, frozen=True):
    minutes: float
    rounds: int | None
    faults: int | None
    seed: int
    database: str
    servers: int | None
    keep_going: bool


def read_options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.loop", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="no round begins after that")
    parser.add_argument("--rounds", type=int, help="no more rounds than this")
    parser.add_argument("--faults", type=int, help="no round begins once there were so many")
    parser.add_argument("--seed", type=int, help="of the first round; each later round has the next number")
    parser.add_argument("--database", choices=sorted(DATABASES), default="both")
    parser.add_argument("--servers", type=int, choices=range(1, 6), help="processes, on PostgreSQL; otherwise 1 to 4")
    parser.add_argument("--keep-going", action="store_true", help="also after a round that failed")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1, 1_000_000) if given.seed is None else given.seed
    return Options(given.minutes, given.rounds, given.faults, seed, given.database, given.servers, given.keep_going)


def find_means() -> Means:
    """What cannot be done here is said, so that nobody takes a round for more than it was."""
    trial = Path(tempfile.mkdtemp(prefix="hf-disk-"))
    full_disk = disturbing.mount_small_disk(trial)
    if full_disk:
        disturbing.unmount(trial)
    else:
        say("Left out: full disks, because a tmpfs cannot be mounted here (it needs root).")
    trial.rmdir()
    clock = clocks.library() is not None
    if not clock:
        say("Left out: wrong clocks, because libfaketime is not installed (apt-get install faketime).")
    return Means(clock=clock, full_disk=full_disk)


async def play(plan: Plan, directory: Path, server: PostgresServer | None) -> Counter[Kind]:
    """One round. The faults that were made, or an exception."""
    url = await postgres.create_database(server.uri) if server and plan.database == "postgresql" else None
    async with AsyncExitStack() as stack:
        links = await stack.enter_async_context(links_to(url, len(plan.roles))) if url else []
        wrong = [
            WrongClock(_made(directory / f"clock-{n}")) for n in range(len(plan.roles) if plan.has("clock") else 0)
        ]
        own = [
            (link.environment if link else {}) | (clock.environment if clock else {})
            for link, clock in zip_longest(links, wrong)
        ]
        servers = Fleet(directory, url, len(plan.roles), own, plan.roles, **ENVIRONMENT)
        for number, each in enumerate(servers.servers, 1):
            each.log = directory / f"server-{number}.log"  # not on the disk that is filled
        try:
            made = await _disturbed(plan, servers, server, wrong, links)
            await servers.stop()
            servers.check_logs()
        except BaseException:
            await asyncio.shield(_end(servers))
            raise
    if server and url:
        await postgres.drop_database(server.uri, url)
    return made


async def _disturbed(
    plan: Plan, servers: Fleet, server: PostgresServer | None, wrong: Sequence[WrongClock], links: Sequence[Link]
) -> Counter[Kind]:
    tally, excused = Tally(), _excuse(plan)
    await servers.start()
    agent_id = await fleet.make_agent(servers.urls[0], name="hostile")
    disturber = Disturber(servers, server, wrong, links, agent_id)
    async with tally.listening():
        async with fleet.busy_clients(servers, tally, plan.seed, CLIENTS, excused) as clients:
            await disturber.make_all(plan.lanes, DISTURBED_AT_MOST_S)
        await fleet.check_all(servers, clients, tally, excused, clocks_agree=not wrong)
    say(f"  {fleet.told(clients, tally)}")
    return disturber.made


def _excuse(plan: Plan) -> str | None:
    """The only failure of a run that is not ours."""
    return "full" if plan.has("full disk") else None


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


async def _end(servers: Fleet) -> None:
    for each in servers.servers:
        if each.is_running:
            await asyncio.to_thread(each.kill)


@contextmanager
def disk_for(plan: Plan, directory: Path, means: Means) -> Generator[None]:
    """SQLite's data directory is a disk that can be filled."""
    home = directory / "server-1"
    if plan.database != "sqlite" or not means.full_disk:
        yield
        return
    assert disturbing.mount_small_disk(home)
    try:
        yield
    except BaseException:
        shutil.copytree(home, directory / "server-1-as-it-was", ignore=shutil.ignore_patterns("ballast"))
        raise
    finally:
        disturbing.unmount(home)


def run_round(plan: Plan, server: PostgresServer | None, means: Means, repeat: str) -> Counter[Kind] | None:
    """The faults that were made; None if something was not as it should be."""
    directory = Path(tempfile.mkdtemp(prefix="hf-faults-"))
    say(f"seed {plan.seed}: {plan.database}, {' + '.join(plan.roles)}")
    begun = time.monotonic()
    try:
        with disk_for(plan, directory, means):
            made = asyncio.run(_bounded(plan, directory, server))
    except Exception:  # whatever it was, the round has failed, and is to be repeated
        traceback.print_exc()
        say(f"FAILED with seed {plan.seed}. Repeat it: {repeat}\nIts files: {directory}")
        return None
    finally:
        if server is not None:
            server.resume()
            server.start()
    shutil.rmtree(directory)
    say(f"  clean after {time.monotonic() - begun:.0f} s and {_counted(made)}")
    return made


def _counted(made: Counter[Kind]) -> str:
    return f"{made.total()} faults: {', '.join(f'{count} {kind}' for kind, count in made.most_common())}"


async def _bounded(plan: Plan, directory: Path, server: PostgresServer | None) -> Counter[Kind]:
    async with asyncio.timeout(ROUND_AT_MOST_S):
        return await play(plan, directory, server)


def main(arguments: Sequence[str]) -> int:
    options, means = read_options(arguments), find_means()
    databases, end = DATABASES[options.database], time.monotonic() + options.minutes * 60
    played, failed, made = 0, list[int](), Counter[Kind]()
    with ExitStack() as stack:
        server = stack.enter_context(postgres.running_server()) if "postgresql" in databases else None
        while time.monotonic() < end and played != options.rounds and (options.keep_going or not failed):
            seed = options.seed + played
            plan = disturbing.plan(seed, databases, options.servers, ROUND_S, means)
            faults = run_round(plan, server, means, _command(options, seed))
            if faults is None:
                failed.append(seed)
            else:
                made += faults
            played += 1
            if options.faults is not None and made.total() >= options.faults:
                break
    say(f"{played} round(s), {len(failed)} failed{f': seeds {failed}' if failed else ''}. {_counted(made)}")
    too_few = options.faults is not None and made.total() < options.faults
    if too_few and not failed:
        say(f"There was no time for {options.faults} faults: give it more MINUTES.")
    return 1 if failed or too_few else 0


def _command(options: Options, seed: int) -> str:
    servers = f" SERVERS={options.servers}" if options.servers else ""
    return f"make faults ROUNDS=1 SEED={seed} DATABASE={options.database}{servers}"


def say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
