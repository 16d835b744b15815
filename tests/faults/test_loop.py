"""The loop of faults: the same seed gives the same round, and a killed test run leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pytest

from ..postgres import PostgresServer
from . import disturbing, loop
from .disturbing import Means

EVERYTHING = Means(clock=True, full_disk=True)
BOTH: tuple[Literal["sqlite", "postgresql"], ...] = ("sqlite", "postgresql")
SHORT_S = 6.0
_ROOT = Path(__file__).parents[2]
_CHILD = """
import os, signal, sys
from tests.postgres import running_server
with running_server() as server:
    server.pause()  # as a test may have left it
    print(server.data_dir, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
_USING_IT = """
import asyncio, pathlib
async def test_that_is_killed(postgres_server, postgres_url):
    (pathlib.Path(__file__).parent / "told").write_text(str(postgres_server.data_dir))
    await asyncio.Event().wait()
"""


def test_the_same_seed_makes_the_same_round() -> None:
    plans = [disturbing.plan(seed, BOTH, None, 15, EVERYTHING) for seed in range(40)]
    again = [disturbing.plan(seed, BOTH, None, 15, EVERYTHING) for seed in range(40)]
    assert plans == again
    assert len({str(plan.disturbances) for plan in plans}) == len(plans)


def test_eighty_rounds_together_have_every_kind_of_fault() -> None:
    plans = [disturbing.plan(seed, BOTH, None, 15, EVERYTHING) for seed in range(80)]
    drawn = {each.kind for plan in plans for each in plan.disturbances}
    assert drawn == {kind for lane in disturbing.LANES.values() for kind in lane}
    assert {len(plan.roles) for plan in plans} == {1, 2, 3, 4}


def test_a_round_with_three_processes_has_one_of_each_role() -> None:
    plans = [disturbing.plan(seed, ("postgresql",), 3, 15, EVERYTHING) for seed in range(10)]
    assert {plan.roles for plan in plans} == {disturbing.ROLES}


def test_somebody_serves_and_somebody_drives_what_nobody_waits_for() -> None:
    for seed in range(40):
        roles = disturbing.plan(seed, BOTH, None, 15, EVERYTHING).roles
        assert {"serve", "serve --no-worker"} & set(roles)
        assert {"serve", "worker"} & set(roles)


@pytest.mark.timeout(240)
async def test_a_short_round_on_processes_of_all_roles_breaks_no_promise(
    tmp_path: Path, own_postgres: PostgresServer
) -> None:
    """The sample of `make faults` that every run of the suite has: all that clients saw is checked in the same way."""
    plan = disturbing.plan(3, ("postgresql",), 3, SHORT_S, Means(clock=False, full_disk=False))
    made = await loop.play(plan, tmp_path, own_postgres)
    assert {"kill -9", "SIGTERM", "restart", "hang the database"} <= {each.kind for each in plan.disturbances}
    assert made.total() >= 10  # how many there is time for is up to the machine


def test_faults_that_this_machine_cannot_have_are_in_no_round() -> None:
    plans = [disturbing.plan(seed, BOTH, 2, 15, Means(clock=False, full_disk=False)) for seed in range(80)]
    assert not [plan for plan in plans if plan.has("clock") or plan.has("full disk")]


@pytest.mark.timeout(240)
def test_a_process_that_is_killed_leaves_no_postgresql_behind() -> None:
    command = [sys.executable, "-c", _CHILD]
    child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert child.stdout.strip(), child.stderr
    check_nothing_is_left_of(Path(child.stdout.strip()))


@pytest.mark.timeout(240)
def test_a_test_run_that_is_killed_leaves_no_postgresql_behind(tmp_path: Path) -> None:
    """The one PostgreSQL of a run with several processes, while one of them uses it."""
    (tmp_path / "test_killed.py").write_text(_USING_IT)
    told = tmp_path / "told"
    os.mkfifo(told)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.conftest", "-c", str(_ROOT / "pyproject.toml")]
    run = subprocess.Popen([*command, "--rootdir", str(tmp_path), str(tmp_path)], cwd=_ROOT, stdout=subprocess.PIPE)
    home = Path(told.read_text())  # waits until the test is under way
    assert any(str(home) in line for line in _command_lines())
    run.kill()
    run.communicate()
    check_nothing_is_left_of(home)


def check_nothing_is_left_of(home: Path) -> None:
    deadline = time.monotonic() + 120
    while left := [*home.parent.glob(home.name), *(line for line in _command_lines() if str(home) in line)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)  # the watchdog is another process, and tells nobody when it is done


def _command_lines() -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
