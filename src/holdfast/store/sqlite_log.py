"""The log in which SQLite writes ahead."""

from __future__ import annotations

import sqlite3
from typing import Final

CHECKPOINT_PAGES: Final = 4_000


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
