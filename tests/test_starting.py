"""A server that cannot start says why in one sentence that tells what to do. Real processes, real damage."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from holdfast.store.sqlite import migrate
from tests import postgres
from tests.postgres import PostgresServer
from tests.serving import ServerProcess
from tests.surroundings import calm

pytestmark = pytest.mark.slow

REFUSED = 2
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _PR_CAPBSET_DROP = 1, 2, 24
_driver: Any = asyncpg


def refused(data_dir: Path, *, prepare: Callable[[], None] | None = None, **environment: str) -> str:
    """What a server says that does not start."""
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", "serve", "--port", "0"],
        env=calm(os.environ) | {"HOLDFAST_DATA_DIR": str(data_dir)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=prepare,
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == REFUSED, ended.stderr
    sentence = ended.stderr.splitlines()[-1]
    assert sentence.startswith("holdfast: ") and sentence.endswith(".")
    return sentence


def obey_permissions() -> None:
    """Root reads and writes everything; without these capabilities it is refused as anybody else is."""
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None).prctl
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            assert prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data directory with a database that a server has left."""
    migrate(tmp_path / "holdfast.db")
    return tmp_path


def no_database(home: Path) -> None:
    (home / "holdfast.db").write_bytes(b"This is a letter, and no database. " * 1_000)


def truncated(home: Path) -> None:
    path = home / "holdfast.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    os.truncate(path, path.stat().st_size // 2)


def malformed_schema(home: Path) -> None:
    with closing(sqlite3.connect(home / "holdfast.db")) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = 'CREATE TABLE runs (((' WHERE name = 'runs'")
        connection.commit()


def damaged_page(home: Path) -> None:
    path = home / "holdfast.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'tools'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)


def table_missing(home: Path) -> None:
    with closing(sqlite3.connect(home / "holdfast.db")) as connection:
        connection.execute("DROP TABLE agent_tools")
        connection.execute("DROP TABLE tools")


@pytest.mark.parametrize("damage", [no_database, truncated, malformed_schema, damaged_page, table_missing])
def test_a_damaged_sqlite_file_is_refused_with_its_path(home: Path, damage: Callable[[Path], None]) -> None:
    damage(home)
    sentence = refused(home)
    assert str(home / "holdfast.db") in sentence
    assert "backup" in sentence


def test_a_sqlite_file_of_a_newer_release_is_refused(home: Path) -> None:
    with closing(sqlite3.connect(home / "holdfast.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    assert "newer release" in refused(home)


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "HOLDFAST_DATA_DIR" in refused(tmp_path / "file")


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert "Permission denied" in refused(tmp_path / "new", prepare=obey_permissions)


@pytest.mark.parametrize("left", [(), ("holdfast.db",), ("holdfast.db", "holdfast.lock")], ids=len)
def test_a_data_directory_that_cannot_be_written_is_refused(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in left:
        (tmp_path / name).touch()
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        sentence = refused(tmp_path, prepare=obey_permissions)
    finally:
        tmp_path.chmod(stat.S_IRWXU)
    assert str(tmp_path) in sentence
    assert "writ" in sentence or "Permission denied" in sentence


@pytest.mark.parametrize("mode", [0, stat.S_IRUSR], ids=["unreadable", "read-only"])
def test_a_sqlite_file_without_permission_is_refused(home: Path, mode: int) -> None:
    (home / "holdfast.db").chmod(mode)
    assert str(home / "holdfast.db") in refused(home, prepare=obey_permissions)


def test_a_sqlite_path_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holdfast.db").mkdir()
    assert str(tmp_path / "holdfast.db") in refused(tmp_path)


def test_a_disk_that_is_full_at_the_start_is_told(tmp_path: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))  # as if nothing more fitted

    sentence = refused(tmp_path, prepare=full)
    assert str(tmp_path / "holdfast.db") in sentence
    assert "disk" in sentence


def test_a_key_file_that_cannot_be_read_is_refused(home: Path) -> None:
    (home / "secret.key").touch(mode=0)
    sentence = refused(home, prepare=obey_permissions)
    assert str(home / "secret.key") in sentence
    assert "HOLDFAST_ENCRYPTION_KEY" in sentence


@pytest.mark.parametrize("content", [b"not a key", b"", b"\xff\xfe", b"c2hvcnQ=\n"])
def test_a_malformed_key_file_is_refused(home: Path, content: bytes) -> None:
    (home / "secret.key").write_bytes(content)
    assert "32 bytes in base64" in refused(home)


def test_a_key_file_that_is_a_directory_is_refused(home: Path) -> None:
    (home / "secret.key").mkdir()
    assert str(home / "secret.key") in refused(home)


def with_user(uri: str, user: str, password: str = "") -> str:
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))


def run_sql(uri: str, *statements: str) -> str:
    async def run() -> str:
        connection = await _driver.connect(uri)
        try:
            for statement in statements:
                await connection.execute(statement)
            return await connection.fetchval("SHOW hba_file")
        finally:
            await connection.close()

    return asyncio.run(run())


def test_a_postgresql_that_cannot_be_reached_is_refused_with_its_host(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: nobody else is there either
        port = held.getsockname()[1]
        sentence = refused(tmp_path, HOLDFAST_DATABASE_URL=f"postgresql://ada:hunter2@127.0.0.1:{port}/holdfast")
    assert f"127.0.0.1:{port}" in sentence
    assert "hunter2" not in sentence


def test_a_postgresql_host_that_has_no_address_is_refused(tmp_path: Path) -> None:
    sentence = refused(tmp_path, HOLDFAST_DATABASE_URL="postgresql://ada@nowhere.invalid/holdfast")
    assert "nowhere.invalid" in sentence


@pytest.mark.parametrize("url", ["postgresql://ada@localhost:nonsense/x", "postgresql://h/x?sslmode=sometimes"])
def test_a_postgresql_address_that_cannot_be_read_is_refused(tmp_path: Path, url: str) -> None:
    assert "HOLDFAST_DATABASE_URL" in refused(tmp_path, HOLDFAST_DATABASE_URL=url)


def test_a_postgresql_database_that_is_missing_is_refused(tmp_path: Path, postgres_server: PostgresServer) -> None:
    sentence = refused(tmp_path, HOLDFAST_DATABASE_URL=postgres.named(postgres_server.uri, "missing"))
    assert '"missing" does not exist' in sentence


def test_a_wrong_password_for_postgresql_is_refused_and_not_repeated(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    rules = Path(run_sql(postgres_server.uri, "CREATE ROLE locked LOGIN PASSWORD 'right'"))
    before = rules.read_text()
    rules.write_text(f"local all locked scram-sha-256\nhost all locked all scram-sha-256\n{before}")
    run_sql(postgres_server.uri, "SELECT pg_reload_conf()")
    try:
        sentence = refused(tmp_path, HOLDFAST_DATABASE_URL=with_user(postgres_server.uri, "locked", "hunter2"))
    finally:
        rules.write_text(before)
        run_sql(postgres_server.uri, "SELECT pg_reload_conf()", "DROP ROLE locked")
    assert "password" in sentence
    assert "hunter2" not in sentence


def test_a_postgresql_user_who_may_not_create_tables_is_refused(
    tmp_path: Path, postgres_server: PostgresServer, empty_postgres_url: str
) -> None:
    run_sql(empty_postgres_url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC", "CREATE ROLE guest LOGIN")
    try:
        sentence = refused(tmp_path, HOLDFAST_DATABASE_URL=with_user(empty_postgres_url, "guest"))
    finally:
        run_sql(postgres_server.uri, "DROP ROLE guest")
    assert "permission denied" in sentence
    assert "CREATE" in sentence


def test_a_postgresql_database_of_a_newer_release_is_refused(tmp_path: Path, empty_postgres_url: str) -> None:
    run_sql(
        empty_postgres_url,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
        "INSERT INTO alembic_version VALUES ('9999')",
    )
    assert "newer release" in refused(tmp_path, HOLDFAST_DATABASE_URL=empty_postgres_url)


def test_migrate_refuses_a_damaged_file_as_serve_does(home: Path) -> None:
    no_database(home)
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", "migrate", "--data-dir", str(home)],
        env=calm(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (REFUSED, 1)
    assert "Traceback" not in ended.stderr


def same_file(home: Path) -> str:
    return str(home / "holdfast.db")


def through_a_link_to_the_file(home: Path) -> str:
    link = home / "link.db"
    link.symlink_to(home / "holdfast.db")
    return str(link)


def through_a_link_to_the_directory(home: Path) -> str:
    link = home.parent / f"{home.name}-link"
    link.symlink_to(home, target_is_directory=True)
    return str(link / "holdfast.db")


def through_a_hard_link(home: Path) -> str:
    second = home.parent / f"{home.name}-second.db"
    os.link(home / "holdfast.db", second)
    return str(second)


def through_another_way(home: Path) -> str:
    (home / "below").mkdir()
    return f"{home}/below/../holdfast.db"


WAYS = [
    same_file,
    through_a_link_to_the_file,
    through_a_link_to_the_directory,
    through_a_hard_link,
    through_another_way,
]


@pytest.mark.parametrize("way", WAYS)
def test_a_second_server_on_the_same_sqlite_file_is_refused_whatever_its_data_directory(
    tmp_path: Path, way: Callable[[Path], str]
) -> None:
    home = tmp_path / "first"
    with ServerProcess(home):
        sentence = refused(tmp_path / "second", HOLDFAST_DATABASE_URL=f"sqlite:///{way(home)}")
        assert "Another Holdfast server uses the database" in sentence
    # The file is free again when its server has ended.
    with ServerProcess(tmp_path / "third", HOLDFAST_DATABASE_URL=f"sqlite:///{home}/holdfast.db"):
        pass


def test_a_second_server_in_the_same_data_directory_is_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path):
        other = f"sqlite:///{tmp_path}/other.db"
        assert "uses the data directory" in refused(tmp_path, HOLDFAST_DATABASE_URL=other)
