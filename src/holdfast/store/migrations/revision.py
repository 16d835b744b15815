"""Which schema a database is at. Answers without importing Alembic, which is slow."""

from __future__ import annotations

import sqlite3
from typing import Final

HEAD: Final = "0017"
READ: Final = "SELECT version_num FROM alembic_version"
# What Alembic itself would leave behind in a database that it has brought here.
STAMP: Final = (
    "CREATE TABLE alembic_version ("
    "version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))",
    f"INSERT INTO alembic_version (version_num) VALUES ('{HEAD}')",
)


def of_sqlite(connection: sqlite3.Connection) -> str | None:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
    row = connection.execute(READ).fetchone() if known else None
    return row[0] if row else None
