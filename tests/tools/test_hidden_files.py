"""The server's own files stay out of sight of tools, wherever they lie and however their path is written."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.private_files import private_paths
from holdfast.tools.sandbox import hidden_paths
from holdfast.tools.sandbox.contract import IsolationLayers
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox
from tests.tools.modes import MODES, job, opened, text_of

pytestmark = pytest.mark.slow

IN_EVERY_MODE = pytest.mark.parametrize("mode", list(MODES))
SECRET = "a row of the database"
SPELLINGS = ("absolute", "symbolic link", "relative", "with dots")

PEEK = """
import os
def peek(directory: str, names: list) -> list:
    found = []
    for name in names:
        path = os.path.join(directory, name)
        for attempt in (lambda: open(path).read(), lambda: open(path, "a").write("planted")):
            try:
                found.append(attempt())
            except OSError:
                found.append("")
    try:
        found += os.listdir(directory)
    except OSError:
        pass
    return found
"""


@pytest.fixture
def shown_directory() -> Iterator[Path]:
    """A new directory below the interpreter's prefix, all of which tools may read."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=sys.prefix))
    directory.chmod(0o755)  # also where each call has a user of its own
    yield directory
    shutil.rmtree(directory)


def fill(directory: Path, *names: str) -> list[str]:
    for name in names:
        (directory / name).write_text(SECRET)
    return list(names)


def spelled(directory: Path, spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    match spelling:
        case "symbolic link":
            (tmp_path / "link").symlink_to(directory)
            return tmp_path / "link"
        case "relative":
            monkeypatch.chdir(directory.parent)
            return Path(directory.name)
        case "with dots":
            return directory.parent / "lib" / ".." / directory.name
        case _:
            return directory


@IN_EVERY_MODE
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_data_directory_below_the_interpreter_is_hidden_however_it_is_spelled(
    mode: str, spelling: str, shown_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = fill(shown_directory, "holdfast.db", "holdfast.db-wal", "secret.key", "server.log")
    data_dir = spelled(shown_directory, spelling, tmp_path, monkeypatch)
    async with opened(mode, hidden=private_paths(data_dir, data_dir / "holdfast.db")) as sandbox:
        for path in {str(shown_directory), str(data_dir.absolute())}:
            found = await sandbox.run(job(PEEK, directory=path, names=names))
            assert found.content == '["","","","","","","",""]'
        assert "REFUSED" not in (await sandbox.status()).tools
        assert (await sandbox.run(job("import sqlite3, json, pydantic\ndef f():\n    return 'works'\n"))).content
    assert {(shown_directory / name).read_text() for name in names} == {SECRET}


@IN_EVERY_MODE
async def test_a_database_file_among_files_that_tools_need_is_hidden_alone(mode: str, shown_directory: Path) -> None:
    names = fill(shown_directory, "some.db", "some.db-wal", "some.db-shm")
    (shown_directory / "needed").write_text("by tools")
    database = shown_directory / "some.db"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as data_dir:
        async with opened(mode, hidden=private_paths(Path(data_dir), database)) as sandbox:
            found = await sandbox.run(job(PEEK, directory=str(shown_directory), names=names))
            assert SECRET not in text_of(found)
            read = f"def f():\n    return open({str(shown_directory / 'needed')!r}).read()\n"
            assert (await sandbox.run(job(read))).content == "by tools"
    assert {(shown_directory / name).read_text() for name in names} == {SECRET}


@IN_EVERY_MODE
async def test_files_made_later_beside_a_hidden_database_stay_hidden(mode: str, shown_directory: Path) -> None:
    names = fill(shown_directory, "some.db", "some.db-wal")
    (shown_directory / "needed").write_text("by tools")
    (shown_directory / "also").symlink_to("needed")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as data_dir:
        async with opened(mode, hidden=private_paths(Path(data_dir), shown_directory / "some.db")) as sandbox:
            for name in names:  # as SQLite does when the last connection closes, and as a restore from a backup does
                (shown_directory / name).unlink()
            names = fill(shown_directory, "some.db", "some.db-wal", "some.db-shm", "some.db-journal")
            found = await sandbox.run(job(PEEK, directory=str(shown_directory), names=names))
            assert SECRET not in text_of(found)
            for name in ("needed", "also"):
                read = f"def f():\n    return open({str(shown_directory / name)!r}).read()\n"
                assert (await sandbox.run(job(read))).content == "by tools"
    assert {(shown_directory / name).read_text() for name in names} == {SECRET}


async def test_tools_are_refused_where_a_database_lies_among_very_many_files(
    shown_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(shown_directory, "some.db", *(f"file-{number}" for number in range(hidden_paths.MOST_BESIDE + 1)))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as data_dir:
        hidden = private_paths(Path(data_dir), shown_directory / "some.db")
        for layers in (IsolationLayers(), IsolationLayers(bubblewrap=False, landlock=False)):
            sandbox = ForkServerSandbox(layers=layers, hidden=hidden)
            try:
                outcome = await sandbox.run(job("def f():\n    return 'ran'\n"))
                assert "directory of its own" in text_of(outcome)
            finally:
                await sandbox.aclose()
        async with opened("process", hidden=hidden) as sandbox:  # landlock grants single files, however many
            assert (await sandbox.run(job("def f():\n    return 'ran'\n"))).content == "ran"


async def test_a_data_directory_that_is_the_interpreters_own_hides_its_private_files() -> None:
    prefix = Path(sys.prefix)
    names = fill(prefix, "holdfast.db", "secret.key")
    try:
        for mode in MODES:
            async with opened(mode, hidden=private_paths(prefix, prefix / "holdfast.db")) as sandbox:
                found = await sandbox.run(job(PEEK, directory=str(prefix), names=names))
                assert SECRET not in text_of(found), mode
                assert (await sandbox.run(job("def f():\n    return 'works'\n"))).content == "works", mode
    finally:
        for name in names:
            (prefix / name).unlink()


@pytest.mark.parametrize(
    "layers", [IsolationLayers(bubblewrap=False, namespaces=False, landlock=False, own_users=False)]
)
async def test_tools_are_refused_where_nothing_hides_the_data_directory(
    layers: IsolationLayers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = ForkServerSandbox(layers=layers, hidden=[tmp_path])
    try:
        outcome = await sandbox.run(job("def f():\n    return 'ran'\n"))
        assert outcome.status == "error"
        assert "refused" in text_of(outcome)
        assert "data directory" in text_of(outcome)
        assert (await sandbox.status()).tools.startswith("REFUSED")
        assert "CUSTOM TOOLS ARE REFUSED" in caplog.text
        assert "HOLDFAST_UNSAFE_TOOLS=1" in caplog.text
    finally:
        await sandbox.aclose()


async def test_tools_are_refused_where_they_could_kill_the_server() -> None:
    """As on a kernel before 6.12 without user namespaces, where the server cannot give calls a user of their own."""
    layers = IsolationLayers(bubblewrap=False, namespaces=False, signal_scope=False, own_users=False)
    sandbox = ForkServerSandbox(layers=layers)
    try:
        outcome = await sandbox.run(job("import os\ndef f():\n    os.kill(os.getppid(), 0)\n    return 'reached'\n"))
        assert "killing the server" in text_of(outcome)
    finally:
        await sandbox.aclose()


async def test_the_operator_can_run_tools_nevertheless_and_is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layers = IsolationLayers(bubblewrap=False, namespaces=False, landlock=False, own_users=False)
    sandbox = ForkServerSandbox(layers=layers, hidden=[tmp_path], unsafe=True)
    try:
        assert (await sandbox.run(job("def f():\n    return 'ran'\n"))).content == "ran"
        assert (await sandbox.status()).tools.startswith("NOT SAFE")
        assert "CUSTOM TOOLS ARE NOT SAFE" in caplog.text
    finally:
        await sandbox.aclose()


async def test_a_bubblewrap_that_does_not_work_is_told_with_what_stands_instead() -> None:
    sandbox = ForkServerSandbox(bubblewrap="/bin/false")
    try:
        status = (await sandbox.status()).tools
    finally:
        await sandbox.aclose()
    assert status.startswith("isolated by process, namespaces")
    assert "bubblewrap does not work here" in status


@IN_EVERY_MODE
async def test_command_lines_of_other_processes_cannot_be_read(mode: str) -> None:
    source = """
def look(pids: list) -> list:
    found = []
    for pid in pids:
        for name in ("cmdline", "stat", "status", "comm"):
            try:
                found.append(open(f"/proc/{pid}/{name}").read())
            except OSError:
                pass
    return [pid for pid in found if "pytest" in pid or "python" in pid] if found else []
"""
    async with opened(mode) as sandbox:
        connection = sandbox._connection
        assert connection is not None
        # With a pid namespace the same number is nobody, or a process of the call.
        outcome = await sandbox.run(job(source, pids=[os.getpid(), os.getppid(), connection._process.pid]))
        assert outcome.content == "[]"


@pytest.mark.parametrize("mode", ["process", "namespaces", "bubblewrap only"])
async def test_a_tool_cannot_signal_the_server_or_the_fork_server(mode: str) -> None:
    source = """
import os
def reach(pids: list) -> list:
    results = []
    for pid in [*pids, os.getppid()]:
        try:
            os.kill(pid, 0)
            results.append(pid)
        except OSError:
            pass
    return results
"""
    async with opened(mode) as sandbox:
        connection = sandbox._connection
        assert connection is not None
        outcome = await sandbox.run(job(source, pids=[os.getpid(), connection._process.pid]))
        # Parent 0 is the tool's own process group.
        assert outcome.content in ("[]", "[0]")


def test_what_surrounds_a_hidden_path_is_granted_and_the_path_is_not(tmp_path: Path) -> None:
    for name in ("a", "a/b", "a/b/data", "a/c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "b" / "data")
    granted = hidden_paths.around([str(tmp_path)], [str(tmp_path / "a" / "b" / "data")])
    assert granted == (str(tmp_path / "a" / "c"),)
