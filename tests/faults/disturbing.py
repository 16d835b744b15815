"""The faults of a round: which, when and to whom, drawn from its seed, and how each of them is made.

A round's plan depends on its seed and on what can be done here, so a seed repeats a round.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from tests import watchdog
from tests.postgres import UNREACHABLE, PostgresServer
from tests.serving import ServerProcess

from . import hostile
from .clocks import WrongClock
from .fleet import Fleet, Role
from .link import Link

Kind = Literal[
    "kill -9", "SIGTERM", "restart", "hang the database", "full disk",
    "SIGSTOP", "silence",
    "cut connections", "cut one", "cut the listener", "cut a link", "hostile", "clock",
]  # fmt: skip
# What is done at the same time: each lane has its own sequence. Those of the first may take seconds, as processes start
# again; those of the last take none, and come thick and fast.
LANES: dict[str, tuple[Kind, ...]] = {
    "ends": ("kill -9", "kill -9", "SIGTERM", "restart", "hang the database", "full disk"),
    "freezes": ("SIGSTOP", "SIGSTOP", "silence"),
    "requests": ("hostile", "hostile", "clock"),
    "connections": ("cut connections", "cut one", "cut one", "cut the listener", "cut a link"),
}
PAUSES_S: dict[str, tuple[float, ...]] = {
    "ends": (0.1, 0.5, 1.0),
    "freezes": (0.05, 0.3, 0.8),
    "requests": (0.3, 1.0, 2.0),
    "connections": (0.05, 0.15, 0.4),
}
ON_POSTGRES: tuple[Kind, ...] = (
    "restart", "hang the database", "silence", "cut connections", "cut one", "cut the listener", "cut a link",
)  # fmt: skip
ROLES: tuple[Role, ...] = ("serve", "serve --no-worker", "worker")
DISK_BYTES = 96 * 1024 * 1024
_FILL_BYTES = 1024 * 1024
_WITH_CLOCKS = 0.3  # of rounds: libfaketime makes every look at the clock a hundred times as dear
_START_S = 1.5  # of a server
_STARTS = 30  # how often a server is started that finds no database
_JUMPS_S = (-3600, -30, 30, 3600, 0)


class Disturbance(msgspec.Struct, frozen=True):
    kind: Kind
    after_s: float  # since the one before it in its lane
    server: int
    lasts_s: float
    what: str = ""

    @property
    def takes_s(self) -> float:
        """About."""
        return self.after_s + self.lasts_s + (_START_S if self.kind in ("kill -9", "SIGTERM") else 0.0)

    def __str__(self) -> str:
        return f"{self.kind}{f' ({self.what})' if self.what else ''}"


class Plan(msgspec.Struct, frozen=True):
    seed: int
    database: Literal["sqlite", "postgresql"]
    roles: tuple[Role, ...]  # of its processes
    lanes: tuple[tuple[Disturbance, ...], ...]

    @property
    def disturbances(self) -> list[Disturbance]:
        return [each for lane in self.lanes for each in lane]

    def has(self, kind: Kind) -> bool:
        return any(each.kind == kind for each in self.disturbances)


class Means(msgspec.Struct, frozen=True):
    """What can be done on this machine."""

    clock: bool
    full_disk: bool


def plan(
    seed: int, databases: Sequence[Literal["sqlite", "postgresql"]], servers: int | None, seconds: float, means: Means
) -> Plan:
    chance = random.Random(seed)
    database = chance.choice(databases)
    count = 1 if database == "sqlite" else servers or chance.randint(1, 4)
    left_out: set[Kind] = set() if means.full_disk and database == "sqlite" else {"full disk"}
    if database == "sqlite":
        left_out.update(ON_POSTGRES)
    if chance.random() >= _WITH_CLOCKS or not means.clock:
        left_out.add("clock")
    lanes = tuple(_draw_lane(chance, lane, left_out, count, seconds) for lane in LANES)
    return Plan(seed, database, _draw_roles(chance, count), lanes)


def _draw_roles(chance: random.Random, count: int) -> tuple[Role, ...]:
    """At least one serves; what nobody waits for is driven by somebody. From three on there is one of each."""
    if count < len(ROLES):
        apart = count > 1 and chance.random() < 0.5
        return ROLES[-count:] if apart else ROLES[:1] * count
    return (*ROLES, *(chance.choice(ROLES) for _ in range(count - len(ROLES))))


def _draw_lane(
    chance: random.Random, lane: str, left_out: set[Kind], servers: int, seconds: float
) -> tuple[Disturbance, ...]:
    kinds: list[Kind] = [kind for kind in LANES[lane] if kind not in left_out]
    drawn: list[Disturbance] = []
    while kinds and sum(each.takes_s for each in drawn) < seconds:
        drawn.append(_draw(chance, chance.choice(kinds), chance.choice(PAUSES_S[lane]), servers))
    return tuple(drawn)


def _draw(chance: random.Random, kind: Kind, after_s: float, servers: int) -> Disturbance:
    what, lasts_s = "", 0.0
    match kind:
        case "hostile":
            what, lasts_s = chance.choice(sorted(hostile.HOSTILE)), 0.2
        case "clock":
            what = str(chance.choice(_JUMPS_S))
        case "restart":
            what, lasts_s = chance.choice(("fast", "immediate")), 0.5
        case "SIGSTOP" | "silence" | "hang the database":
            lasts_s = chance.choice((0.1, 0.3, 1.0, 3.0))  # the last is longer than a lease
        case "kill -9" | "SIGTERM" | "full disk":
            lasts_s = chance.uniform(0.0, 1.0)
        case _:
            pass
    return Disturbance(kind, after_s, chance.randrange(servers), lasts_s, what)


class Disturber:
    """Makes disturbances. One that cannot be made now, because the process is down say, is not made and not counted."""

    def __init__(
        self,
        fleet: Fleet,
        postgres: PostgresServer | None,
        clocks: Sequence[WrongClock],
        links: Sequence[Link],
        hostile_agent: str,
    ) -> None:
        self._fleet = fleet
        self._postgres = postgres
        self._clocks = clocks
        self._links = links
        self._hostile_agent = hostile_agent
        self.made = Counter[Kind]()
        self._making: dict[Kind, Callable[[Disturbance], Awaitable[bool]]] = {
            "kill -9": self._kill,
            "SIGTERM": self._terminate,
            "restart": self._restart,
            "hang the database": self._hang,
            "full disk": self._fill,
            "SIGSTOP": self._stop_for_a_while,
            "silence": self._silence,
            "cut connections": self._cut,
            "cut one": self._cut,
            "cut the listener": self._cut,
            "cut a link": self._cut_link,
            "hostile": self._ask_hostile,
            "clock": self._jump,
        }

    async def make_all(self, lanes: Sequence[Sequence[Disturbance]], at_most_s: float) -> None:
        """None begins after that: a busy machine takes longer for each."""
        end = time.monotonic() + at_most_s
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(self._make_lane(lane, end))

    async def _make_lane(self, lane: Sequence[Disturbance], end: float) -> None:
        for disturbance in lane:
            await asyncio.sleep(disturbance.after_s)  # when it comes is what is being tried
            if time.monotonic() > end:
                return
            self.made[disturbance.kind] += await self._making[disturbance.kind](disturbance)

    async def _kill(self, it: Disturbance) -> bool:
        server = self._fleet.servers[it.server]
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(it.lasts_s)
        await self._start_again(server)
        return True

    async def _terminate(self, it: Disturbance) -> bool:
        server = self._fleet.servers[it.server]
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(it.lasts_s)
        await self._start_again(server)
        return True

    async def _start_again(self, server: ServerProcess) -> None:
        """As a supervisor does: one that finds no database ends, and is started once more."""
        for _ in range(_STARTS):
            try:
                return await asyncio.to_thread(server.start)
            except AssertionError:
                if server.exit_code is None:
                    raise
        raise AssertionError(f"a server could not be started {_STARTS} times:\n{server.read_log()}")

    async def _stop_for_a_while(self, it: Disturbance) -> bool:
        server = self._fleet.servers[it.server]
        if server.may_be_dead:
            return False
        with suppress(ProcessLookupError):  # it is killed at the same time
            server.pause()
            await asyncio.sleep(it.lasts_s)
            server.resume()
        return True

    async def _silence(self, it: Disturbance) -> bool:
        async with self._links[it.server].silent():
            await asyncio.sleep(it.lasts_s)
        return True

    async def _ask_hostile(self, it: Disturbance) -> bool:
        urls = self._fleet.urls
        await hostile.send(it.what, urls[it.server % len(urls)], self._hostile_agent)
        return True

    async def _jump(self, it: Disturbance) -> bool:
        self._clocks[it.server].set(float(it.what))
        return True

    async def _cut(self, it: Disturbance) -> bool:
        """All sessions; or one; or those that hear what other processes tell."""
        assert self._postgres is not None
        name = "holdfast signals" if it.kind == "cut the listener" else "holdfast%"
        at_most = 1 if it.kind == "cut one" else None
        try:
            return await self._postgres.cut_connections(self._fleet.database_url, name, at_most) > 0
        except UNREACHABLE:
            return False

    async def _cut_link(self, it: Disturbance) -> bool:
        return self._links[it.server].cut() > 0

    async def _restart(self, it: Disturbance) -> bool:
        assert self._postgres is not None
        await asyncio.to_thread(self._postgres.restart, "fast" if it.what == "fast" else "immediate")
        return True

    async def _hang(self, it: Disturbance) -> bool:
        assert self._postgres is not None
        with self._postgres.paused():
            await asyncio.sleep(it.lasts_s)
        return True

    async def _fill(self, it: Disturbance) -> bool:
        ballast = self._fleet.servers[0].data_dir / "ballast"
        await asyncio.to_thread(_fill_up, ballast)
        try:
            await asyncio.sleep(it.lasts_s)
        finally:
            ballast.unlink()
        return True


def _fill_up(ballast: Path) -> None:
    """Every byte that is left. What others free meanwhile is theirs."""
    with ballast.open("wb", buffering=0) as file:
        for size in (_FILL_BYTES, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


# --- a small disk ---


def mount_small_disk(directory: Path) -> bool:
    """False where we may not mount."""
    directory.mkdir(parents=True, exist_ok=True)
    watchdog.unmount_with_us(directory)
    options = f"size={DISK_BYTES},mode=0700"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", str(directory)], capture_output=True, check=True)
