"""Alembic revisions, and the cheap question that comes first: is there anything to migrate?

Alembic is slow to import, so it is left alone when the stored revision is the newest. Revisions run inside SQLite for
SQLite and are written out as SQL text for PostgreSQL, so one that must look at data does it in SQL, not in Python.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

HEAD: Final = "0001"
READ_REVISION: Final = "SELECT version_num FROM alembic_version"


def bring_up_sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        current = sqlite_revision(connection)
    if current != HEAD:
        from holdfast.store.migrations import upgrade  # noqa: PLC0415 - Alembic, see above

        upgrade.upgrade_sqlite(path)


def sqlite_revision(connection: sqlite3.Connection) -> str | None:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
    row = connection.execute(READ_REVISION).fetchone() if known else None
    return row[0] if row else None
