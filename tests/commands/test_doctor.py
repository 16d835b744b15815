"""`holdfast doctor` on setups that work and on setups that do not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import text

from holdfast import cli
from holdfast.commands import doctor
from holdfast.commands.health_checks import (
    Finding,
    check_data_directory,
    check_database,
    check_pool,
    check_providers,
    check_secrets_key,
    check_server,
    check_settings,
    check_signals,
    check_vendors,
    judge_clock,
    judge_disk,
)
from holdfast.errors import ConfigError
from holdfast.secretbox import SecretBox
from holdfast.settings import Settings
from holdfast.store import kv
from holdfast.store.database import open_database
from holdfast.store.transaction import DatabaseError, Transaction
from holdfast.version import VERSION

OTHER_SCHEMAS = pytest.mark.parametrize(("number", "state"), [("0008", "warning"), ("9999", "failed")])


def names_in(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


async def settings_for(url: str, directory: Path, **options: Any) -> Settings:
    """Of a database that a server has opened before."""
    await (await open_database(url)).aclose()
    os.chmod(directory, 0o700)
    return Settings(data_dir=directory, database_url=url, **options)


async def stamp(url: str, number: str) -> None:
    database = await open_database(url)

    async def job(tx: Transaction) -> None:
        await tx.execute(text(f"UPDATE alembic_version SET version_num = '{number}'"))

    await database.write(job)
    await database.aclose()


def states(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


@contextmanager
def answering(body: object, status: int = 200) -> Generator[int]:
    """A program on this machine that answers every GET with this. Its port."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@contextmanager
def closed_port() -> Generator[int]:
    """Nobody listens on it, and nobody else can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


# --- the whole -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_setup_that_works_is_well_and_left_as_it_was(database_url: str, tmp_path: Path) -> None:
    with closed_port() as port:
        settings = await settings_for(database_url, tmp_path, encryption_key="s3cret", port=port)
        before = names_in(tmp_path)
        findings = await doctor.examine(settings)
    expected = {"settings", "data directory", "disk", "secrets key", "database", "migrations", "sandbox", "server"}
    if database_url.startswith("postgres"):
        expected |= {"pool", "signals", "clock"}
    found = states(findings)
    assert {name for name, state in found.items() if state == "ok"} | {"sandbox", "disk"} == expected
    assert doctor.is_well(findings)
    assert names_in(tmp_path) == before
    lines = doctor.as_lines(findings)
    assert len(lines.splitlines()) == len(findings)
    assert all(re.match(r"(ok|warning|failed) +\S", line) for line in lines.splitlines())
    assert "s3cret" not in lines


def test_settings_that_make_no_sense_are_the_only_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_PORT", "many")
    assert cli.main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    [finding] = told["checks"]
    assert (finding["name"], finding["state"]) == ("settings", "failed")
    assert "HOLDFAST_PORT" in finding["detail"]


async def test_one_check_that_hangs_does_not_keep_the_others_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: Settings) -> Sequence[Finding]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(doctor, "LIMIT_S", 0.01)
    monkeypatch.setattr(doctor, "CHECKS", (("database", hang), ("settings", check_settings)))
    findings = await doctor.examine(Settings(data_dir=tmp_path))
    assert states(findings) == {"database": "failed", "settings": "ok"}


async def test_what_a_check_raises_is_its_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (("settings", check_settings),))
    [finding] = await doctor.examine(Settings(data_dir=tmp_path, host="0.0.0.0"))
    assert finding.state == "failed"
    assert "HOLDFAST_API_KEY" in finding.detail
    assert not doctor.is_well([finding])


# --- settings and files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"processes": 2}, {"worker": False}])
async def test_what_needs_postgresql_is_told_so(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs PostgreSQL"):
        await check_settings(Settings(data_dir=tmp_path, **options))


async def test_a_directory_that_others_can_enter_is_warned_of_and_left_alone(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    [finding] = await check_data_directory(Settings(data_dir=tmp_path))
    assert (finding.state, "0755" in finding.detail) == ("warning", True)
    assert "chmod 700" in finding.advice
    assert os.stat(tmp_path).st_mode & 0o777 == 0o755


async def test_a_directory_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    [finding] = await check_data_directory(Settings(data_dir=tmp_path / "new" / "deep"))
    assert finding.state == "ok"
    assert not (tmp_path / "new").exists()


async def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert states(await check_data_directory(Settings(data_dir=tmp_path / "file"))) == {"data directory": "failed"}


async def test_a_directory_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the kernel's answer is replaced."""

    def unwritable(path: Path, mode: int) -> bool:
        return not mode & os.W_OK

    monkeypatch.setattr(os, "access", unwritable)
    assert states(await check_data_directory(Settings(data_dir=tmp_path))) == {"data directory": "failed"}
    assert states(await check_data_directory(Settings(data_dir=tmp_path / "new"))) == {"data directory": "failed"}


@pytest.mark.parametrize(("free", "state"), [(50 << 20, "failed"), (500 << 20, "warning"), (5 << 30, "ok")])
def test_a_disk_without_room_is_told(tmp_path: Path, free: int, state: str) -> None:
    assert judge_disk(tmp_path, free).state == state


async def test_the_key_file_is_looked_at_and_not_made(tmp_path: Path) -> None:
    settings, path = Settings(data_dir=tmp_path), tmp_path / "secret.key"
    assert states(await check_secrets_key(settings)) == {"secrets key": "ok"}
    assert not path.exists()
    SecretBox.from_directory(tmp_path)
    assert states(await check_secrets_key(settings)) == {"secrets key": "ok"}
    path.chmod(0o644)
    assert states(await check_secrets_key(settings)) == {"secrets key": "warning"}
    path.chmod(0o600)
    path.write_text("not a key")
    with pytest.raises(ConfigError, match="not a key file"):
        await check_secrets_key(settings)


async def test_servers_that_share_a_database_should_share_the_key(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url="postgresql://somewhere/db")
    [finding] = await check_secrets_key(settings)
    assert (finding.state, "HOLDFAST_ENCRYPTION_KEY" in finding.advice) == ("warning", True)


# --- databases -------------------------------------------------------------------------------------------------------


async def require_told(url: str, directory: Path, number: str, state: str) -> None:
    settings = await settings_for(url, directory)
    await stamp(url, number)
    for _ in range(2):  # the first has not changed it
        [migrations] = [finding for finding in await check_database(settings) if finding.name == "migrations"]
        assert (migrations.state, number in migrations.detail) == (state, True)
        assert ("holdfast migrate" in migrations.advice) is (state == "warning")


@OTHER_SCHEMAS
async def test_a_schema_that_is_not_ours_is_told_and_left_alone(
    sqlite_url: str, tmp_path: Path, number: str, state: str
) -> None:
    await require_told(sqlite_url, tmp_path, number, state)


@OTHER_SCHEMAS
async def test_so_is_one_in_postgresql(new_postgres_url: str, tmp_path: Path, number: str, state: str) -> None:
    await require_told(new_postgres_url, tmp_path, number, state)


async def test_a_file_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert states(await check_database(Settings(data_dir=tmp_path))) == {"database": "ok"}
    assert names_in(tmp_path) == []


async def test_a_file_that_a_server_uses_can_be_looked_at(sqlite_url: str, tmp_path: Path) -> None:
    database = await open_database(sqlite_url)
    await database.write(lambda tx: kv.set_number(tx, "ready", 1.0))
    before = names_in(tmp_path)
    found = states(await check_database(Settings(data_dir=tmp_path, database_url=sqlite_url)))
    assert found == {"database": "ok", "migrations": "ok"}
    assert names_in(tmp_path) == before
    assert any(name.endswith("-wal") for name in before)
    await database.write(lambda tx: kv.set_number(tx, "ready", 2.0))
    await database.aclose()


async def test_an_empty_postgresql_is_fine_because_the_first_start_makes_its_schema(
    empty_postgres_url: str, tmp_path: Path
) -> None:
    found = states(await check_database(Settings(data_dir=tmp_path, database_url=empty_postgres_url)))
    assert (found["database"], found["migrations"]) == ("ok", "ok")


async def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "holdfast.db").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(DatabaseError, match="damaged"):
        await check_database(Settings(data_dir=tmp_path))


@pytest.mark.parametrize("check", [check_database, check_pool, check_signals])
async def test_a_postgresql_that_is_not_there_is_told_without_its_password(tmp_path: Path, check: doctor.Check) -> None:
    with closed_port() as port:
        url = f"postgresql://user:s3cret@127.0.0.1:{port}/db"
        with pytest.raises(DatabaseError) as refused:
            await check(Settings(data_dir=tmp_path, database_url=url))
    assert "HOLDFAST_DATABASE_URL" in refused.value.message
    assert "s3cret" not in refused.value.message


async def test_more_processes_than_postgresql_has_connections_for_fail(postgres_url: str, tmp_path: Path) -> None:
    few = await check_pool(Settings(data_dir=tmp_path, database_url=postgres_url))
    assert states(few)["pool"] in ("ok", "warning")  # other tests use the same server
    [many] = await check_pool(Settings(data_dir=tmp_path, database_url=postgres_url, processes=1_000))
    assert (many.state, "max_connections" in many.advice) == ("failed", True)


async def test_signals_go_round_and_a_direct_address_is_the_one_tried(postgres_url: str, tmp_path: Path) -> None:
    assert states(await check_signals(Settings(data_dir=tmp_path, database_url=postgres_url))) == {"signals": "ok"}
    with closed_port() as port, pytest.raises(DatabaseError):
        direct = f"postgresql://127.0.0.1:{port}/db"
        await check_signals(Settings(data_dir=tmp_path, database_url=postgres_url, database_direct_url=direct))


@asynccontextmanager
async def pooled(url: str) -> AsyncGenerator[str]:
    """A proxy that gives its clients numbers of its own, as those that pool connections do. Its address."""
    address = urlsplit(url)
    [directory] = parse_qs(address.query)["host"]
    [place] = [name for name in os.listdir(directory) if name.startswith(".s.PGSQL.") and not name.endswith(".lock")]

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(1):
            size = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(size) - 4)
            writer.write(head + size + (bytes(4) + body[4:] if head == b"K" else body))
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(f"{directory}/{place}")
        await asyncio.gather(forward(reader, inner_writer), answer(inner_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql://{address.username}@127.0.0.1:{port}{address.path}?sslmode=disable"


async def test_a_proxy_before_postgresql_is_warned_of_unless_signals_go_past_it(
    postgres_url: str, tmp_path: Path
) -> None:
    async with pooled(postgres_url) as url:
        [finding] = await check_signals(Settings(data_dir=tmp_path, database_url=url))
        assert (finding.state, "HOLDFAST_DATABASE_DIRECT_URL" in finding.advice) == ("warning", True)
        past = Settings(data_dir=tmp_path, database_url=url, database_direct_url=postgres_url)
        assert states(await check_signals(past)) == {"signals": "ok"}


async def test_sqlite_has_neither_pool_nor_signals(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert [*await check_pool(settings), *await check_signals(settings)] == []


def test_a_clock_that_is_far_off_is_told() -> None:
    assert [judge_clock(ahead_s).state for ahead_s in (0.2, -60.0, 60.0)] == ["ok", "warning", "warning"]


# --- outside ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "state"),
    [
        ({"holdfast_version": VERSION, "status": "ok"}, 200, "ok"),
        ({"holdfast_version": "0.0.1"}, 200, "warning"),
        ({"hello": "world"}, 200, "warning"),
        ([1], 200, "warning"),
        ({}, 404, "warning"),
    ],
)
async def test_what_listens_on_the_port_is_asked_who_it_is(
    tmp_path: Path, body: object, status: int, state: str
) -> None:
    with answering(body, status) as port:
        assert states(await check_server(Settings(data_dir=tmp_path, port=port))) == {"server": state}


async def test_a_free_port_is_free(tmp_path: Path) -> None:
    with closed_port() as port:
        assert states(await check_server(Settings(data_dir=tmp_path, port=port))) == {"server": "ok"}


async def test_providers_are_named_without_their_keys(tmp_path: Path) -> None:
    assert states(await check_providers(Settings(data_dir=tmp_path))) == {"providers": "warning"}
    [finding] = await check_providers(Settings(data_dir=tmp_path, providers={"OPENAI_API_KEY": "sk-s3cret"}))
    assert (finding.state, "openai" in finding.detail) == ("ok", True)
    assert "s3cret" not in finding.detail


async def test_vendors_are_asked_only_online_and_one_that_fails_does_not_hide_another(tmp_path: Path) -> None:
    with answering({"object": "list", "data": []}) as port, closed_port() as closed:
        providers = {
            "OPENAI_API_KEY": "sk-s3cret",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
            "OLLAMA_BASE_URL": f"http://127.0.0.1:{closed}",
        }
        found = await check_vendors(Settings(data_dir=tmp_path, providers=providers))
    assert states(found) == {"openai-proxy": "ok", "ollama": "failed"}
    assert "s3cret" not in doctor.as_lines(found)
