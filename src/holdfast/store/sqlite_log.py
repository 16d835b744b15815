"""The log in which SQLite writes ahead: asking for one, and keeping it longer than what is in it."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Final

CHECKPOINT_PAGES: Final = 4_000
_LONGEST_BYTES: Final = CHECKPOINT_PAGES * 4_200  # a page, and what the log says of it
_ROOM_BYTES: Final = 1024 * 1024

_log = logging.getLogger("holdfast.store")


def keep_a_log(connection: sqlite3.Connection) -> None:
    """A file is asked for it once. While another process is just filling the new file, SQLite refuses that at once,
    whatever its timeout; only to begin a transaction it waits."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        else:
            return


class Room:
    """Keeps the log longer than what is in it: a commit that makes a file grow takes twice as long as any other.

    Zeros after its last frame mean nothing to SQLite. They are written within a write transaction, so that nobody else
    adds a frame meanwhile, and a little at a time, so that nobody has to wait for long.
    """

    def __init__(self, connection: sqlite3.Connection, log: Path) -> None:
        self._connection = connection
        self._log = log
        self._bytes = 0  # of the log, when it was last made longer

    def make(self) -> None:
        """Costs next to nothing while there is room. It only saves time, so a failure is told and no more."""
        try:
            size = self._log.stat().st_size
            if self._bytes < size < _LONGEST_BYTES:
                self._bytes = size + _ROOM_BYTES
                self._lengthen()
        except (OSError, sqlite3.Error) as error:
            _log.warning("no room could be made in the log of the database: %s", error)

    def _lengthen(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            with open(self._log, "ab") as file:
                file.write(bytes(_ROOM_BYTES))
                file.flush()
                os.fdatasync(file.fileno())
        finally:
            self._connection.execute("ROLLBACK")
