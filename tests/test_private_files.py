"""Only the server's own user can read what the server keeps."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.settings import Settings
from holdfast.wiring import build


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def loosely(path: Path, mode: int) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


async def test_an_open_data_directory_is_closed_and_every_file_in_it_is_private(tmp_path: Path) -> None:
    data_dir = loosely(tmp_path / "data", 0o755)
    async with build(Settings(data_dir=data_dir, default_model="holdfast/offline")):
        modes = {path.name: mode_of(path) for path in data_dir.iterdir()}
    assert mode_of(data_dir) == 0o700
    assert {"holdfast.db", "holdfast.db-wal", "holdfast.lock", "secret.key"} <= modes.keys()
    assert set(modes.values()) == {0o600}


async def test_a_database_elsewhere_is_private_too(tmp_path: Path) -> None:
    place = loosely(tmp_path / "place", 0o755)
    url = f"sqlite:///{place / 'where.db'}"
    async with build(Settings(data_dir=tmp_path / "data", database_url=url, default_model="holdfast/offline")):
        modes = {path.name: mode_of(path) for path in place.iterdir()}
    assert "where.db" in modes
    assert set(modes.values()) == {0o600}


def test_a_database_that_this_process_has_open_keeps_its_locks(tmp_path: Path) -> None:
    """A process loses its fcntl locks on a file, SQLite's among them, when it closes any descriptor of that file."""
    settings = Settings(data_dir=tmp_path / "data")
    settings.make_data_dir()
    database = tmp_path / "data" / "holdfast.db"
    taking = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with open(database, "r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        settings.make_data_dir()
        other = subprocess.run([sys.executable, "-c", taking, database], capture_output=True, text=True, check=False)
    assert "BlockingIOError" in other.stderr


def test_files_that_an_older_version_left_open_are_closed(tmp_path: Path) -> None:
    data_dir = loosely(tmp_path / "data", 0o755)
    with closing(sqlite3.connect(data_dir / "holdfast.db")) as connection:
        connection.execute("CREATE TABLE t (c)")
    (data_dir / "secret.key").write_text("key")
    for path in data_dir.iterdir():
        path.chmod(0o644)
    Settings(data_dir=data_dir).make_data_dir()
    assert {mode_of(path) for path in data_dir.iterdir()} == {0o600}


def test_a_directory_that_others_use_keeps_its_mode_but_its_private_files_are_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = loosely(tmp_path / "shared", 0o755)
    (shared / "of another program").mkdir()
    Settings(data_dir=shared).make_data_dir()
    assert mode_of(shared) == 0o755
    assert mode_of(shared / "holdfast.db") == 0o600
    assert "other programs" in caplog.text


def test_an_open_data_directory_of_another_user_is_refused_in_a_sentence(tmp_path: Path) -> None:
    data_dir = loosely(tmp_path / "data", 0o777)
    if os.geteuid() == 0:
        tmp_path.chmod(0o755)
        os.chown(data_dir, 12345, 12345)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # as a user who does not own it
        said = "no error"
        try:
            if os.geteuid() == 0:
                _enter_and_leave_root(data_dir)
            Settings(data_dir=Path(".")).make_data_dir()
        except (ConfigError, OSError) as error:
            said = str(error)
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    assert ("chmod 700" in said) == (os.geteuid() == 0), said


def _enter_and_leave_root(directory: Path) -> None:
    os.chdir(directory)  # so that no directory above it has to be open to the other user
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
