"""Opens a database: brings it to the current schema, then hands out the engine that its address names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import Invalid
from holdfast.store.sqlite import open_sqlite
from holdfast.store.transaction import Database

POOL_SIZE = 20
TIMEOUT_S = 10.0


async def open_database(url: str, *, pool_size: int = POOL_SIZE, timeout_s: float = TIMEOUT_S) -> Database:
    """`sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`; migrated to the newest schema first.

    `timeout_s` is how long PostgreSQL may take for a connection, and for a transaction.
    """
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme == "sqlite":
        return open_sqlite(sqlite_path(url))
    if scheme in ("postgresql", "postgres"):
        # asyncpg takes a noticeable part of the start-up budget, which SQLite users should not pay.
        from holdfast.store.postgres import open_postgres  # noqa: PLC0415

        dsn = "postgresql" + url[url.index(":") :]
        return await open_postgres(dsn, pool_size=pool_size, timeout_s=timeout_s)
    raise Invalid(f"Cannot open the database {scheme!r}: use sqlite:///path/to/file.db or postgresql://…")


def sqlite_path(url: str) -> Path:
    """What follows `sqlite:///`, so that four slashes begin an absolute path."""
    path = unquote(urlsplit(url).path)[1:]
    if not path or path == ":memory:":
        raise Invalid("A SQLite database needs a file: sqlite:///path/to/file.db")
    return Path(path)
