"""The loop of faults: the same seed gives the same round, and a killed test run leaves no process behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pytest

from . import disturbing
from .disturbing import Means

EVERYTHING = Means(clock=True, full_disk=True)
BOTH: tuple[Literal["sqlite", "postgresql"], ...] = ("sqlite", "postgresql")
_ROOT = Path(__file__).parents[2]
_CHILD = """
import os, signal, sys
from tests.postgres import running_server
with running_server() as server:
    server.pause()  # as a test may have left it
    print(server.data_dir, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_same_seed_makes_the_same_round() -> None:
    plans = [disturbing.plan(seed, BOTH, None, 15, EVERYTHING) for seed in range(40)]
    again = [disturbing.plan(seed, BOTH, None, 15, EVERYTHING) for seed in range(40)]
    assert plans == again
    assert len({str(plan.disturbances) for plan in plans}) == len(plans)


def test_eighty_rounds_together_have_every_kind_of_fault() -> None:
    plans = [disturbing.plan(seed, BOTH, None, 15, EVERYTHING) for seed in range(80)]
    drawn = {each.kind for plan in plans for each in plan.disturbances}
    assert drawn == {*disturbing.EVERYWHERE, *disturbing.ON_POSTGRES, "clock", "full disk"}
    assert {plan.servers for plan in plans} == {1, 2, 3}


def test_faults_that_this_machine_cannot_have_are_in_no_round() -> None:
    plans = [disturbing.plan(seed, BOTH, 2, 15, Means(clock=False, full_disk=False)) for seed in range(80)]
    assert not [plan for plan in plans if plan.has("clock") or plan.has("full disk")]


@pytest.mark.timeout(240)
def test_a_test_run_that_is_killed_leaves_no_postgresql_behind() -> None:
    command = [sys.executable, "-c", _CHILD]
    child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert child.stdout.strip(), child.stderr
    home, deadline = Path(child.stdout.strip()), time.monotonic() + 120
    while left := [*home.parent.glob(home.name), *(line for line in _command_lines() if str(home) in line)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)  # the watchdog is another process, and tells nobody when it is done


def _command_lines() -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
