"""Directories of calls: what a killed server leaves behind is removed by the next one, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.tools.sandbox.scratch import make_scratch, remove_abandoned

_MAKE_ONE = """
import sys
from holdfast.tools.sandbox.scratch import make_scratch
print(make_scratch().path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_one_that_is_closed_is_gone(parent: Path) -> None:
    scratch = make_scratch()
    (scratch.path / "call" / "file").write_text("of a tool")
    scratch.close()
    assert [*parent.iterdir()] == []


def test_what_a_killed_server_left_is_removed_and_what_others_use_stays(parent: Path) -> None:
    environment = os.environ | {"TMPDIR": str(parent)}
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", _MAKE_ONE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for _ in range(2)
    ]
    paths: list[Path] = []
    for server in servers:
        assert server.stdout is not None
        paths.append(Path(server.stdout.readline().strip()))
    killed, alive = servers
    (paths[0] / "call" / "file").write_text("of a tool")
    killed.kill()
    killed.communicate()

    scratch = make_scratch()

    assert {*parent.iterdir()} == {paths[1], scratch.path}
    alive.kill()
    alive.communicate()
    scratch.close()


def test_nothing_is_removed_that_is_not_known_to_be_abandoned(parent: Path) -> None:
    elsewhere = parent / "elsewhere"
    elsewhere.mkdir()
    (parent / "holdfast-calls-link").symlink_to(elsewhere)
    (parent / "holdfast-calls-file").touch()
    (parent / "new-holdfast-calls-being-made").mkdir()
    before = {*parent.rglob("*")}

    remove_abandoned(parent)

    assert {*parent.rglob("*")} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of somebody else")
def test_a_directory_of_somebody_else_is_left_alone(parent: Path) -> None:
    others = parent / "holdfast-calls-others"
    others.mkdir()
    os.chown(others, 12_345, 12_345)

    remove_abandoned(parent)

    assert others.exists()
