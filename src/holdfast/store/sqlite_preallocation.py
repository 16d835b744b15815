"""Preallocation of SQLite's log: the one place where something other than SQLite writes to one of its files.

A commit that makes the log grow waits for the file system to record its new length. So the log is made longer ahead of
time, with zeros, which mean nothing to SQLite after the last frame. It reads the log by its header, its checksums and
the index in `-shm`, never by the length of the file.

It is kept for its worth alone (decision 24): without it commits take longer until the log has reached its full length
of 16 MB, within 150 turns after each start. Creating an agent, a figure of the README, then takes 12 % longer.
Nothing else depends on this module: without its use in `sqlite.py` everything works, at that price.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Final

from holdfast.store.sqlite_log import CHECKPOINT_PAGES

_LONGEST_BYTES: Final = CHECKPOINT_PAGES * 4_200  # a page, and what the log says of it
_AHEAD_BYTES: Final = 1024 * 1024  # little, so that nobody has to wait for long

_log = logging.getLogger("holdfast.store")


class LogPreallocation:
    def __init__(self, connection: sqlite3.Connection, log: Path) -> None:
        self._connection = connection
        self._log = log
        self._bytes = 0  # of the log, when it was last made longer
        self.is_complete = False  # the log has its full length, and keeps it

    def keep_ahead(self) -> None:
        """It only saves time, so a failure is told and no more."""
        try:
            size = self._log.stat().st_size
            self.is_complete = size >= _LONGEST_BYTES
            if self._bytes < size < _LONGEST_BYTES:
                self._bytes = size + _AHEAD_BYTES
                self._append_zeros()
        except (OSError, sqlite3.Error) as error:
            _log.warning("the log of the database could not be preallocated: %s", error)

    def _append_zeros(self) -> None:
        # Within a write transaction, so that nobody else adds a frame meanwhile.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            with open(self._log, "ab") as file:
                file.write(bytes(_AHEAD_BYTES))
                file.flush()
                os.fdatasync(file.fileno())
        finally:
            self._connection.execute("ROLLBACK")
