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
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from tests import postgres
from tests.postgres import PostgresServer

from . import clocks, disturbing, fleet
from .clocks import WrongClock
from .disturbing import Disturber, Means, Plan
from .fleet import Fleet
from .load import Tally

ROUND_S = 15.0
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
    seed: int
    database: str
    servers: int | None
    keep_going: bool


def read_options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.loop", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="no round begins after that")
    parser.add_argument("--rounds", type=int, help="no more rounds than this")
    parser.add_argument("--seed", type=int, help="of the first round; each later round has the next number")
    parser.add_argument("--database", choices=sorted(DATABASES), default="both")
    parser.add_argument("--servers", type=int, choices=range(1, 6), help="on PostgreSQL; otherwise one to three")
    parser.add_argument("--keep-going", action="store_true", help="also after a round that failed")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1, 1_000_000) if given.seed is None else given.seed
    return Options(given.minutes, given.rounds, seed, given.database, given.servers, given.keep_going)


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


async def play(plan: Plan, directory: Path, server: PostgresServer | None) -> str:
    """One round. What it came to, or an exception."""
    url = await postgres.create_database(server.uri) if server and plan.database == "postgresql" else None
    skewed = plan.servers if plan.has("clock") else 0
    wrong = [WrongClock(_made(directory / f"clock-{number}")) for number in range(skewed)]
    servers = Fleet(directory, url, plan.servers, [clock.environment for clock in wrong], **ENVIRONMENT)
    for number, each in enumerate(servers.servers, 1):
        each.log = directory / f"server-{number}.log"  # not on the disk that is filled
    tally = Tally()
    try:
        await servers.start()
        disturber = Disturber(servers, server, wrong, await fleet.make_agent(servers.urls[0], name="hostile"))
        async with tally.listening():
            async with fleet.busy_clients(servers, tally, plan.seed, CLIENTS, excused=_excuse(plan)) as clients:
                for disturbance in plan.disturbances:
                    await disturber.make(disturbance)
            await fleet.check_all(servers, clients, tally, excused=_excuse(plan))
        await servers.stop()
        servers.check_logs()
    except BaseException:
        await asyncio.shield(_end(servers))
        raise
    if server and url:
        await postgres.drop_database(server.uri, url)
    return f"{sum(len(client.sent) for client in clients)} requests, {tally.marks.total()} marks"


def _excuse(plan: Plan) -> str | None:
    """The only failure of a run that is not ours."""
    return "full" if plan.has("full disk") else None


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


async def _end(servers: Fleet) -> None:
    for each in servers.servers:
        if each.exit_code is None and not each.may_be_dead:
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


def run_round(plan: Plan, server: PostgresServer | None, means: Means, repeat: str) -> bool:
    directory = Path(tempfile.mkdtemp(prefix="hf-faults-"))
    disturbances = ", ".join(map(str, plan.disturbances))
    say(f"seed {plan.seed}: {plan.database}, {plan.servers} server(s): {disturbances}")
    begun = time.monotonic()
    try:
        with disk_for(plan, directory, means):
            told = asyncio.run(_bounded(plan, directory, server))
    except Exception:  # whatever it was, the round has failed, and is to be repeated
        traceback.print_exc()
        say(f"FAILED with seed {plan.seed}. Repeat it: {repeat}\nIts files: {directory}")
        return False
    finally:
        if server is not None:
            server.resume()
            server.start()
    shutil.rmtree(directory)
    say(f"seed {plan.seed}: clean after {time.monotonic() - begun:.0f} s, {told}")
    return True


async def _bounded(plan: Plan, directory: Path, server: PostgresServer | None) -> str:
    async with asyncio.timeout(ROUND_AT_MOST_S):
        return await play(plan, directory, server)


def main(arguments: Sequence[str]) -> int:
    options, means = read_options(arguments), find_means()
    databases, end = DATABASES[options.database], time.monotonic() + options.minutes * 60
    played, failed = 0, list[int]()
    with ExitStack() as stack:
        server = stack.enter_context(postgres.running_server()) if "postgresql" in databases else None
        while time.monotonic() < end and played != options.rounds and (options.keep_going or not failed):
            seed = options.seed + played
            plan = disturbing.plan(seed, databases, options.servers, ROUND_S, means)
            if not run_round(plan, server, means, _command(options, seed)):
                failed.append(seed)
            played += 1
    say(f"{played} round(s), {len(failed)} failed{f': seeds {failed}' if failed else ''}.")
    return 1 if failed else 0


def _command(options: Options, seed: int) -> str:
    servers = f" --servers {options.servers}" if options.servers else ""
    return f".venv/bin/python -m tests.faults.loop --rounds 1 --seed {seed} --database {options.database}{servers}"


def say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
