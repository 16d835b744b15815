"""The server's own files: which they are, and that nobody but its user can read them."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast.errors import ConfigError

DATABASE_FILE: Final = "holdfast.db"
LOCK_FILE: Final = "holdfast.lock"
KEY_FILE: Final = "secret.key"
_OTHERS: Final = 0o077  # what group and others may do
_BESIDE_A_DATABASE: Final = ("-wal", "-shm", "-journal", ".lock")

_log = logging.getLogger(__name__)


def make_private(data_dir: Path, database: Path | None) -> None:
    """Make the data directory, and let only this user read what the server keeps there and in its SQLite file."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The data directory {data_dir} cannot be made: {error.strerror}. HOLDFAST_DATA_DIR names another."
        ) from error
    if os.name != "posix":
        return
    _tighten_directory(data_dir)
    if database is not None:
        _create_private(database)
    for path in private_files(data_dir, database):
        _tighten_file(path)


def private_files(data_dir: Path, database: Path | None) -> list[Path]:
    """Every file with something secret in it, whether it exists or not."""
    files = [data_dir / LOCK_FILE, data_dir / KEY_FILE]
    for each in {data_dir / DATABASE_FILE, database} - {None}:
        files += [each, *(each.with_name(each.name + end) for end in _BESIDE_A_DATABASE)] if each else []
    return files


def private_paths(data_dir: Path, database: Path | None) -> list[Path]:
    """The files, and the directories that hold nothing else: what no tool may see."""
    files = private_files(data_dir, database)
    found = [data_dir, *files]
    if database is not None and _holds_only(database.parent, (path.name for path in files)):
        found.append(database.parent)
    return found


def _holds_only(directory: Path, names: Iterable[str]) -> bool:
    try:
        return set(os.listdir(directory)) <= set(names)
    except OSError:
        return False


def _tighten_directory(directory: Path) -> None:
    state = directory.stat()
    if not state.st_mode & _OTHERS:
        return
    if state.st_mode & stat.S_ISVTX or _is_shared(directory):
        # To close a directory that other programs use would break them. The files themselves are closed.
        _log.warning(
            "the data directory %s also holds files of other programs, so it stays open to other users of this "
            "machine; HOLDFAST_DATA_DIR names one for Holdfast alone",
            directory,
        )
        return
    try:
        directory.chmod(0o700)
    except PermissionError as error:
        raise ConfigError(
            f"The data directory {directory} can be entered by other users of this machine (mode "
            f"{stat.S_IMODE(state.st_mode):04o}) and belongs to another user, so it cannot be closed. Run as its "
            f"owner: chmod 700 {directory}, or name another directory with HOLDFAST_DATA_DIR."
        ) from error


def _is_shared(directory: Path) -> bool:
    """Whether something in it is a directory, which Holdfast makes none of, and so belongs to somebody else."""
    with os.scandir(directory) as entries:
        return any(entry.is_dir(follow_symlinks=False) and entry.name != "lost+found" for entry in entries)


def _create_private(database: Path) -> None:
    """Before SQLite does, which would take the umask; what it puts beside the file gets the file's own mode.

    A file that exists is not opened: closing it would drop the locks that this process may hold on it.
    """
    try:
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(
            f"The database file {database} cannot be opened: {error.strerror}. HOLDFAST_DATA_DIR or "
            f"HOLDFAST_DATABASE_URL names another."
        ) from error


def _tighten_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
        if mode & _OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise ConfigError(
            f"{path} can be read by other users of this machine and belongs to another user, so it cannot be closed. "
            f"Run as its owner: chmod 600 {path}."
        ) from error
