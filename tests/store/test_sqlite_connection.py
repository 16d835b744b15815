from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.sqlite_connection import LogPreallocation


def test_a_log_that_cannot_be_made_longer_is_told_and_the_connection_stays_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    no_file = tmp_path / "directory"
    no_file.mkdir()
    with closing(sqlite3.connect(tmp_path / "one.db", isolation_level=None)) as connection:
        LogPreallocation(connection, no_file).keep_ahead()
        assert "could not be preallocated" in caplog.text
        assert not connection.in_transaction
        connection.execute("CREATE TABLE t (x)")


def test_the_log_is_made_longer_once_until_it_has_grown_by_as_much(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "one.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("CREATE TABLE t (x)")
        log = tmp_path / "one.db-wal"
        before = log.stat().st_size
        preallocation = LogPreallocation(connection, log)
        preallocation.keep_ahead()
        longer = log.stat().st_size
        preallocation.keep_ahead()
        connection.execute("INSERT INTO t VALUES (1)")
        assert before < longer == log.stat().st_size
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
