"""Runs Alembic. Imported only when a database is not at the newest revision."""

from __future__ import annotations

import io
import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from holdfast.store.migrations import revision
from holdfast.store.sqlite_connection import keep_a_log
from holdfast.store.transaction import DatabaseError


def configuration() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def upgrade_sqlite(path: Path) -> None:
    """One transaction that holds the write lock from before the revision is read: a second process waits, then finds
    nothing to do."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    keep_a_log(connection)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=NullPool)
    # A transaction that was begun outside is one that Alembic neither begins nor commits, between revisions or ever.
    with engine.connect() as migrating, migrating.begin():
        connection.execute("BEGIN IMMEDIATE")
        current = revision.of_sqlite(connection)
        if current != revision.HEAD:
            check_known(current)
            config = configuration()
            config.attributes["connection"] = migrating
            command.upgrade(config, revision.HEAD)
    engine.dispose()


def postgres_script(current: str | None) -> str:
    """The SQL that leads from the current revision to the newest, as one transaction."""
    check_known(current)
    config = configuration()
    config.output_buffer = io.StringIO()
    config.attributes["dialect"] = "postgresql"
    command.upgrade(config, f"{current or 'base'}:{revision.HEAD}", sql=True)
    return config.output_buffer.getvalue()


def check_known(current: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(configuration()).walk_revisions()}
    if current is not None and current not in known:
        raise DatabaseError(
            f"The database is at schema revision {current}, which this release does not know: it was last opened by a "
            "newer release. Use that release, or restore a backup."
        )
