"""The faults of a round: which, when and to whom, drawn from its seed, and how each of them is made.

A round's plan depends on its seed and on what can be done here, so a seed repeats a round.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tests import watchdog
from tests.postgres import PostgresServer

from . import hostile
from .clocks import WrongClock
from .fleet import Fleet

Kind = Literal[
    "kill -9", "SIGSTOP", "SIGTERM", "hostile", "clock", "cut connections", "restart", "hang the database", "full disk"
]
EVERYWHERE: tuple[Kind, ...] = ("kill -9", "kill -9", "SIGSTOP", "SIGTERM", "hostile", "hostile")
ON_POSTGRES: tuple[Kind, ...] = ("cut connections", "cut connections", "restart", "hang the database")
DISK_BYTES = 96 * 1024 * 1024
_FILL_BYTES = 1024 * 1024
_WITH_CLOCKS = 0.3  # of rounds: libfaketime makes every look at the clock a hundred times as dear
_START_S = 1.5  # of a server
_JUMPS_S = (-3600, -30, 30, 3600, 0)


class Disturbance(msgspec.Struct, frozen=True):
    kind: Kind
    after_s: float  # since the one before
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
    servers: int
    disturbances: tuple[Disturbance, ...]

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
    count = 1 if database == "sqlite" else servers or chance.randint(1, 3)
    kinds = list(EVERYWHERE)
    kinds += ON_POSTGRES if database == "postgresql" else (("full disk",) if means.full_disk else ())
    if chance.random() < _WITH_CLOCKS and means.clock:
        kinds += ("clock",)
    drawn: list[Disturbance] = []
    while sum(each.takes_s for each in drawn) < seconds:
        drawn.append(_draw(chance, chance.choice(kinds), count))
    return Plan(seed, database, count, tuple(drawn))


def _draw(chance: random.Random, kind: Kind, servers: int) -> Disturbance:
    what, lasts_s = "", chance.uniform(0.0, 1.0)
    match kind:
        case "hostile":
            what, lasts_s = chance.choice(sorted(hostile.HOSTILE)), 0.0
        case "clock":
            what, lasts_s = str(chance.choice(_JUMPS_S)), 0.0
        case "restart":
            what, lasts_s = chance.choice(("fast", "immediate")), 0.5
        case "SIGSTOP" | "hang the database":
            lasts_s = chance.choice((0.3, 1.0, 4.0))  # the last is longer than a lease
        case _:
            pass
    return Disturbance(kind, chance.choice((0.05, 0.4, 1.0)), chance.randrange(servers), lasts_s, what)


class Disturber:
    def __init__(
        self, fleet: Fleet, postgres: PostgresServer | None, clocks: Sequence[WrongClock], hostile_agent: str
    ) -> None:
        self._fleet = fleet
        self._postgres = postgres
        self._clocks = clocks
        self._hostile_agent = hostile_agent
        self._making: dict[Kind, Callable[[Disturbance], Awaitable[None]]] = {
            "kill -9": self._kill,
            "SIGSTOP": self._stop_for_a_while,
            "SIGTERM": self._terminate,
            "hostile": self._ask_hostile,
            "clock": self._jump,
            "cut connections": self._cut,
            "restart": self._restart,
            "hang the database": self._hang,
            "full disk": self._fill,
        }

    async def make(self, disturbance: Disturbance) -> None:
        await asyncio.sleep(disturbance.after_s)  # when it comes is what is being tried
        await self._making[disturbance.kind](disturbance)

    async def _kill(self, it: Disturbance) -> None:
        server = self._fleet.servers[it.server]
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(it.lasts_s)
        await asyncio.to_thread(server.start)

    async def _terminate(self, it: Disturbance) -> None:
        server = self._fleet.servers[it.server]
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(it.lasts_s)
        await asyncio.to_thread(server.start)

    async def _stop_for_a_while(self, it: Disturbance) -> None:
        server = self._fleet.servers[it.server]
        server.pause()
        await asyncio.sleep(it.lasts_s)
        server.resume()

    async def _ask_hostile(self, it: Disturbance) -> None:
        await hostile.send(it.what, self._fleet.urls[it.server], self._hostile_agent)

    async def _jump(self, it: Disturbance) -> None:
        self._clocks[it.server].set(float(it.what))

    async def _cut(self, it: Disturbance) -> None:
        assert self._postgres is not None
        await self._postgres.cut_connections(self._fleet.database_url)

    async def _restart(self, it: Disturbance) -> None:
        assert self._postgres is not None
        await asyncio.to_thread(self._postgres.restart, "fast" if it.what == "fast" else "immediate")

    async def _hang(self, it: Disturbance) -> None:
        assert self._postgres is not None
        with self._postgres.paused():
            await asyncio.sleep(it.lasts_s)

    async def _fill(self, it: Disturbance) -> None:
        ballast = self._fleet.servers[0].data_dir / "ballast"
        await asyncio.to_thread(_fill_up, ballast)
        try:
            await asyncio.sleep(it.lasts_s)
        finally:
            ballast.unlink()


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
