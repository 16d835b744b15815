"""Opening a PostgreSQL database: a sentence when it cannot be used. A password is never part of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from holdfast.errors import ConfigError
from holdfast.store import postgres
from holdfast.store.postgres import PostgresDatabase
from holdfast.store.transaction import DatabaseError

_errors: Any = asyncpg


async def open_postgres(
    dsn: str, *, pool_size: int, timeout_s: float, name: str = postgres.SERVER_NAME
) -> PostgresDatabase:
    """Migrated to the newest schema. One that is needs no connection for that: looking takes one of the pool's."""
    with explained(dsn):
        database = await postgres.connect(dsn, pool_size=pool_size, timeout_s=timeout_s, name=name)
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(database.aclose)
            if not await database.is_newest():
                await postgres.migrate(dsn)
            on_failure.pop_all()
        return database


@contextmanager
def explained(dsn: str) -> Generator[None]:
    """Whatever the driver raises becomes a sentence that says what to do."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise DatabaseError(
            f"PostgreSQL at {_place(dsn)} refused to set the database up: {error}. Grant the user CREATE on the schema "
            "public, or make it the owner of the database."
        ) from error
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise DatabaseError(
            f"PostgreSQL at {_place(dsn)} refused the user: {error}. Check the user and the password in "
            "HOLDFAST_DATABASE_URL."
        ) from error
    except asyncpg.InvalidCatalogNameError as error:
        raise DatabaseError(
            f"PostgreSQL at {_place(dsn)} has no such database: {error}. Create it with createdb, or name another in "
            "HOLDFAST_DATABASE_URL."
        ) from error
    except (_errors.ClientConfigurationError, ValueError) as error:
        raise ConfigError(
            "HOLDFAST_DATABASE_URL is not an address of PostgreSQL: write it as "
            f"postgresql://user:password@host:5432/database ({type(error).__name__})."
        ) from error
    except postgres.DRIVER_ERRORS as error:  # a TimeoutError is an OSError
        raise DatabaseError(
            f"PostgreSQL at {_place(dsn)} cannot be used: {_reason(error)}. Check that it runs, that this machine may "
            "reach it, and what HOLDFAST_DATABASE_URL says."
        ) from error


def _place(dsn: str) -> str:
    """Its host and port, or the directory of its socket."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    return host or parts.query or "the default address"


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.rstrip(".")
