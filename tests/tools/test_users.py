"""The sandbox of a server that is not root, and the one of root with a user for each call.

The suite is often run by root, whose interpreter other users cannot read. Then neither can be tested in its process, so
a child runs the tests of the sandbox again: each in one mode, and in all of them with HOLDFAST_EFFORT=2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.as_user import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; others are unprivileged already"),
    pytest.mark.timeout(900),
]
# The kernel counts processes by user. Limits of calls are tried where calls have no user namespace of their own.
UID, OTHER_UID = 64_100, 64_101
LIMITED = "process] or (bubblewrap and only)"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Below no directory that only root can enter."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield made
    shutil.rmtree(made)


def run_tests_as(uid: int, directory: Path, *arguments: str) -> None:
    os.chown(directory, uid, uid)
    options = ["-n0", "-p", "tests.tools.one_mode", "-p", "no:cacheprovider", "--basetemp", str(directory / "tests")]
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.tools.as_user", str(uid), *options, *arguments],
        cwd=ROOT,
        env=known | {"HOME": str(directory), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20_000:]


def test_the_sandbox_of_an_unprivileged_server_passes_its_tests(directory: Path) -> None:
    run_tests_as(UID, directory, "tests/tools/test_sandbox.py", "tests/tools/test_egress.py")


def test_limits_of_calls_of_an_unprivileged_server_pass_their_tests(directory: Path) -> None:
    run_tests_as(OTHER_UID, directory, "tests/tools/test_call_limits.py", "-k", LIMITED)


def test_the_sandbox_of_root_with_a_user_for_each_call_passes_its_tests(directory: Path) -> None:
    names = ("own_users", "test_sandbox", "test_egress", "test_call_limits", "test_hidden_files")
    run_tests_as(0, directory, *(f"tests/tools/{name}.py" for name in names), "-k", "own_users or process] or process-")
