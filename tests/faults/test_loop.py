"""The loop of faults does what it says: seeds repeat rounds, and what a killed test run has started ends."""

from __future__ import annotations

import contextlib
import os
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


def test_rounds_have_every_kind_of_fault_between_them() -> None:
    plans = [disturbing.plan(seed, BOTH, None, 15, EVERYTHING) for seed in range(80)]
    drawn = {each.kind for plan in plans for each in plan.disturbances}
    assert drawn == {*disturbing.EVERYWHERE, *disturbing.ON_POSTGRES, "clock", "full disk"}
    assert {plan.servers for plan in plans} == {1, 2, 3}


def test_what_cannot_be_done_here_is_in_no_round() -> None:
    plans = [disturbing.plan(seed, BOTH, 2, 15, Means(clock=False, full_disk=False)) for seed in range(80)]
    assert not [plan for plan in plans if plan.has("clock") or plan.has("full disk")]


@pytest.mark.timeout(60)
def test_a_test_run_that_is_killed_leaves_no_postgresql_behind() -> None:
    child = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, env=os.environ, check=False)
    assert child.stdout.strip(), child.stderr
    home, deadline = Path(child.stdout.strip()), time.monotonic() + 45
    while home.exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # another process removes it, and tells nobody
    running = [line for line in _command_lines() if str(home) in line]
    assert not home.exists()
    assert not running


def _command_lines() -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
