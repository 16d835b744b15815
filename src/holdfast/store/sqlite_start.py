"""Opening a SQLite file: one server at a time, and a sentence when it cannot be used.

The lock is on the file itself, so it holds whatever path leads to the file. SQLite's own locks are of another kind
(fcntl, not flock) and do not meet this one. They have a trap, though: when a process closes any descriptor of a file,
it loses all fcntl locks that it holds on it. So the file is never opened here while this process serves it already,
and the descriptor is closed after the database.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError

from holdfast.errors import ConfigError
from holdfast.store.schema import metadata
from holdfast.store.sqlite import SQLiteDatabase, migrate
from holdfast.store.transaction import DatabaseError

_DISK: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_ACCESS: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})
_WAIT: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_served: set[tuple[int, int]] = set()  # device and inode of the files that servers of this process use


def open_sqlite(path: Path) -> SQLiteDatabase:
    """Migrated to the newest schema. What is wrong with the file is told at once, not by the first request."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        migrate(path)
        _read_a_little(path)
        return SQLiteDatabase(path)
    except OSError as error:
        raise _no_access(path, error) from error
    except sqlite3.Error as error:
        raise DatabaseError(sentence(path, error)) from error
    except DBAPIError as error:  # a migration
        if not isinstance(error.orig, sqlite3.Error):
            raise
        raise DatabaseError(sentence(path, error.orig)) from error


@contextmanager
def only_server(path: Path) -> Generator[None]:
    """While this lasts, no other server uses the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        identity = _identity(path)
        if identity in _served:
            raise _in_use(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _no_access(path, error) from error
    try:
        identity = _identity(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path) from None
        assert identity is not None
        _served.add(identity)
        try:
            yield
        finally:
            _served.discard(identity)
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _read_a_little(path: Path) -> None:
    """The first row of every table: a table that is missing or damaged at its root is found."""
    with closing(sqlite3.connect(path)) as connection:
        for table in metadata.tables.values():
            connection.execute(f'SELECT * FROM "{table.name}" LIMIT 1').fetchall()


def _in_use(path: Path) -> ConfigError:
    return ConfigError(
        f"Another Holdfast server uses the database {path}. A SQLite file serves one server: stop the other one, name "
        "another file in HOLDFAST_DATABASE_URL, or use PostgreSQL."
    )


def _no_access(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The database {path} cannot be opened: {error.strerror or error}. The server must be able to read and write "
        "the file and its directory; HOLDFAST_DATA_DIR or HOLDFAST_DATABASE_URL names another place."
    )


def sentence(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extended part
    if code in _DISK:
        return f"The database {path} cannot be written: {error}. Make room on its disk, or repair it, and start again."
    if code in _ACCESS:
        return (
            f"The database {path} cannot be opened: {error}. The server must be able to read and write the file and "
            "its directory; HOLDFAST_DATA_DIR or HOLDFAST_DATABASE_URL names another place."
        )
    if code in _WAIT:
        return f"The database {path} is held by another program: {error}. Close that program and start again."
    return (
        f"The database {path} is damaged: {error}. Restore it from a backup, or move it away to begin with an "
        "empty one."
    )
