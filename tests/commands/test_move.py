"""`holdfast move` as it is typed: what it prints, how it ends, and what a kill leaves behind."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Table

from holdfast.cli import main
from holdfast.commands.move import Meter, move_database
from holdfast.errors import ConfigError
from holdfast.private_files import KEY_FILE
from holdfast.settings import Settings
from holdfast.store import move, move_record
from holdfast.store.database import open_database, sqlite_path
from holdfast.store.move import Values
from holdfast.store.move_record import MoveRecord
from holdfast.store.sqlite import only_server
from holdfast.store.tables import tombstones
from holdfast.store.transaction import Transaction
from holdfast.wiring import build
from tests.served import served
from tests.store.filled import fill

ROWS = 4  # of each table
PEEK = '''
import os

def peek() -> str:
    """Peek."""
    return os.environ["KEY"]
'''
# Tells of each batch, and waits for a line before it goes on.
_STEP_BY_STEP = """
import sys
from holdfast.cli import main
from holdfast.commands.move import Meter
add = Meter.add
def add_and_wait(self, phase, table, rows):
    add(self, phase, table, rows)
    print(phase, flush=True)
    sys.stdin.readline()
Meter.add = add_and_wait
sys.exit(main(["move", "--json", *sys.argv[1:]]))
"""


@pytest.fixture
def source_url(sqlite_url: str) -> str:
    async def make() -> None:
        database = await open_database(sqlite_url)
        await fill(database, ROWS)
        await database.aclose()

    asyncio.run(make())
    return sqlite_url


@pytest.fixture(params=["sqlite", "postgres"])
def target_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/holdfast.db"
    return request.getfixturevalue("empty_postgres_url")


@pytest.mark.slow
def test_it_says_what_was_copied_and_that_the_key_goes_along(
    source_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["move", source_url, f"sqlite:///{tmp_path}/target.db"]) == 0
    shown = capsys.readouterr()
    assert "verified" in shown.out
    assert "secret.key" in shown.out
    assert f"copying: {ROWS * len(move.TABLES)} rows" in shown.err
    assert "\x1b" not in shown.err, "stderr is no terminal here"


def test_json_has_counts_and_hashes_of_both_sides(
    source_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["move", "--json", source_url, f"sqlite:///{tmp_path}/target.db"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["identical"] is True
    assert report["resumed"] is False
    assert report["rows"] == report["copied"] == sum(table["target_rows"] for table in report["tables"])
    assert all(table["source_hash"] == table["target_hash"] for table in report["tables"])


def test_a_refusal_is_one_sentence_and_exit_code_two(
    source_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with only_server(sqlite_path(source_url)):
        assert main(["move", source_url, f"sqlite:///{tmp_path}/target.db"]) == 2
    assert capsys.readouterr().err.startswith("holdfast: Another Holdfast server uses the database")


def test_a_difference_is_exit_code_one(
    source_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a row had been lost on the way."""
    target = f"sqlite:///{tmp_path}/target.db"
    write = move.write_rows

    async def lose(tx: Transaction, table: Table, rows: Sequence[Values]) -> None:
        await write(tx, table, rows[1:] if table is tombstones else rows)

    monkeypatch.setattr(move, "write_rows", lose)
    assert main(["move", source_url, target]) == 1
    out = capsys.readouterr().out
    (different,) = [line for line in out.splitlines() if "in the source" in line]
    assert different.split()[:2] == ["tombstones", "4"]
    assert "DIFFERENT" in out
    assert "verified" not in out


@pytest.mark.slow
async def test_a_server_on_the_target_goes_on_where_the_other_stopped(tmp_path: Path, target_url: str) -> None:
    """An approval that was pending, a run that was active, and a secret."""
    old, new = tmp_path / "old", tmp_path / "new"
    async with served(old, drain_s=0) as client:
        agent = await client.guarded_agent(PEEK, secrets={"KEY": "hush"})
        paused = await client.say(agent.id, "Call peek")
        call_id = paused.messages[-1].tool_call.tool_call_id
        slow = await client.agent()
        run = await client.ask("POST", f"/v1/agents/{slow.id}/messages/async", {"input": "[[ttft:2]] hello"})
        await client.model_asked()

    report = await move_database(f"sqlite:///{old}/holdfast.db", target_url, io.StringIO())
    assert report.identical
    new.mkdir(exist_ok=True)
    new.chmod(0o700)
    shutil.copy(old / KEY_FILE, new)

    async with served(new, database_url=target_url) as client:
        approval = {"type": "approval", "tool_call_id": call_id, "approve": True}
        body = {"messages": [{"type": "approval", "approvals": [approval]}]}
        answer = await client.ask("POST", f"/v1/agents/{agent.id}/messages", body)
        assert "hush" in [message.get("tool_return") for message in answer["messages"]]
        ended = await client.deps.reader.until_stopped(run["id"])
        assert ended.status == "completed"
        assert ended.lease > 1, "another server had it before"


@pytest.mark.slow
def test_a_move_that_was_killed_is_finished_by_the_same_command(tmp_path: Path, sqlite_url: str) -> None:
    async def make() -> None:
        database = await open_database(sqlite_url)
        await fill(database, 300)
        await database.aclose()

    asyncio.run(make())
    program = [sys.executable, "-c", _STEP_BY_STEP, sqlite_url, f"sqlite:///{tmp_path}/target.db"]
    for batches in (1, 20, 2 * len(move.TABLES) + 4):  # the last while it verifies
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as moving:
            assert moving.stdin is not None
            assert moving.stdout is not None
            moving.stdin.write("\n" * (batches - 1))
            moving.stdin.flush()
            said = [moving.stdout.readline() for _ in range(batches)]
            moving.kill()
        assert said[0] == "copying\n"
        assert moving.returncode == -signal.SIGKILL
    ended = subprocess.run(program, input="\n" * 1_000, capture_output=True, text=True, check=True)
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["identical"]
    assert report["resumed"]
    assert report["copied"] == 0


async def test_no_server_starts_on_a_target_that_is_not_whole(sqlite_url: str, tmp_path: Path) -> None:
    database = await open_database(sqlite_url)
    await database.write(_begin)
    await database.aclose()
    with pytest.raises(ConfigError, match="has not ended"):
        async with build(Settings(data_dir=tmp_path), warm_tools=False):
            pass


async def _begin(tx: Transaction) -> None:
    await move_record.write(tx, MoveRecord("sqlite:///elsewhere.db"))


def test_a_terminal_gets_a_bar_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    shown = Terminal()
    meter = Meter("copying", 1_000, shown)
    now = 2.0
    meter.add("copying", "messages", 500)
    assert shown.getvalue() == (
        f"\r\x1b[K[{'#' * 15}{' ' * 15}] copying  50%  500 of 1,000 rows  250 rows/s  2 s left  messages"
    )
    assert meter.end() == (500, 2.0)
