"""Limits on everything that the processes of one call do together, in each mode."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from holdfast.core.egress import Egress
from holdfast.tools.sandbox import call_limits
from holdfast.tools.sandbox.contract import EgressConfig, Limits
from tests.tools.modes import MODES, job, opened, text_of

pytestmark = pytest.mark.slow

MB = 1 << 20
SMALL = Limits(memory_bytes=512 * MB, file_bytes=64 * MB, scratch_bytes=64 * MB, scratch_files=500, processes=120)
IN_EVERY_MODE = pytest.mark.parametrize("mode", list(MODES))
ON_A_DISK = pytest.mark.parametrize("mode", ["bubblewrap only", "process"])

FORK_BOMB = """
import os, time
def bomb(count: int) -> str:
    for _ in range(count):
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            time.sleep(0.001)
    time.sleep(60)
    return "finished"
"""
BUSY_BOMB = """
import os, time
def bomb(count: int) -> str:
    begin, started = os.pipe()
    for number in range(count):
        if number == 117:
            os.close(started)  # from here on all of them want the processors, on which the fork server depends too
        try:
            if os.fork() == 0:
                if number < 117:
                    os.close(started)
                os.read(begin, 1)
                while True:
                    pass
        except OSError:
            time.sleep(0.001)
    time.sleep(60)
    return "finished"
"""
THREAD_BOMB = """
import threading, time
threading.stack_size(65_536)
def bomb(count: int) -> str:
    for _ in range(count):
        try:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        except RuntimeError:
            time.sleep(0.001)
    time.sleep(60)
    return "finished"
"""
# Each process forks one child and ends at once, so a process that was found in /proc is dead when it is signalled.
RUNNER = """
import os, socket
def run_away(port: int):
    line = socket.create_connection(("127.0.0.1", port))
    line.set_inheritable(True)
    line.sendall(b"ready")
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
    while True:
        pass
"""
GREEDY_CHILDREN = """
import os, time
def fill(children: int, size: int, shared: bool) -> str:
    kept = b"x" * size if shared else b""
    made = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            held = kept or b"x" * size
            time.sleep(60 if not shared else 0.5)
            os._exit(len(held) == 0)
        made.append(pid)
    return str([os.waitpid(pid, 0)[1] for pid in made])
"""
FILES = """
import os
def write(count: int, size: int, delete: bool, close: bool) -> str:
    opened = []
    for number in range(count):
        os.mkdir(f"directory-{number}")
        file = open(f"directory-{number}/file", "wb", buffering=0)
        opened.append(file)
        for _ in range(size >> 20):
            file.write(b"x" * (1 << 20))
        if delete:
            os.unlink(file.name)
        if close:
            os.chmod(f"directory-{number}", 0)
    return "finished"
"""
MANY_FILES = """
import time
def make(count: int) -> str:
    for number in range(count):
        open(str(number), "w").close()
    time.sleep(60)
    return "finished"
"""
RESERVED = """
import os
def reserve(count: int, size: int) -> str:
    for number in range(count):
        os.posix_fallocate(os.open(str(number), os.O_RDWR | os.O_CREAT), 0, size)
    return "finished"
"""


def files_below(directory: Path) -> list[Path]:
    return [entry for entry in directory.rglob("*") if entry.is_file()]


@IN_EVERY_MODE
@pytest.mark.parametrize("source", [FORK_BOMB, BUSY_BOMB, THREAD_BOMB], ids=["processes", "busy processes", "threads"])
async def test_a_call_with_too_many_processes_is_stopped_and_told_the_limit(mode: str, source: str) -> None:
    roomy = msgspec.structs.replace(SMALL, memory_bytes=64 << 30)  # every thread reserves addresses
    async with opened(mode, limits=roomy) as sandbox:
        said = text_of(await sandbox.run(job(source, count=2_000)))
        assert "120 processes" in said
        assert (await sandbox.run(job("def f():\n    return 'unharmed'\n"))).content == "unharmed"


@IN_EVERY_MODE
async def test_calls_with_too_many_processes_at_once_are_each_told_the_limit(mode: str) -> None:
    """The kernel's count may be one for all calls: together they must not be kept below the limit of each."""
    async with opened(mode, limits=SMALL) as sandbox:
        outcomes = await asyncio.gather(*(sandbox.run(job(FORK_BOMB, count=2_000)) for _ in range(3)))
        assert ["120 processes" in text_of(outcome) for outcome in outcomes] == [True, True, True]


def test_a_slow_look_at_running_calls_is_soon_followed_by_the_next() -> None:
    assert call_limits.pause_after(0.0, share=10) == call_limits.CHECK_S
    assert call_limits.pause_after(0.01, share=10) == pytest.approx(0.1)
    assert call_limits.pause_after(30.0, share=10) == call_limits.LONGEST_PAUSE_S


@IN_EVERY_MODE
async def test_a_process_that_replaces_itself_all_the_time_is_dead_when_the_call_ends(mode: str) -> None:
    loop = asyncio.get_running_loop()
    async with opened(mode, egress=EgressConfig(policy=Egress("all"))) as sandbox:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            call = asyncio.create_task(sandbox.run(job(RUNNER, port=listener.getsockname()[1])))
            line, _ = await loop.sock_accept(listener)
            with line:
                assert await loop.sock_recv(line, 5) == b"ready"
                call.cancel()
                await asyncio.wait([call])
                async with asyncio.timeout(60):
                    assert await loop.sock_recv(line, 1) == b""


@IN_EVERY_MODE
async def test_memory_is_limited_for_all_processes_of_a_call_together(mode: str) -> None:
    async with opened(mode, limits=SMALL) as sandbox:
        said = text_of(await sandbox.run(job(GREEDY_CHILDREN, children=4, size=300 * MB, shared=False)))
        assert "LimitExceeded" in said
        assert "512 MB of memory together" in said


@IN_EVERY_MODE
async def test_memory_that_processes_share_is_counted_once(mode: str) -> None:
    async with opened(mode, limits=SMALL) as sandbox:
        outcome = await sandbox.run(job(GREEDY_CHILDREN, children=4, size=200 * MB, shared=True))
        assert outcome.content == "[0, 0, 0, 0]"


@IN_EVERY_MODE
async def test_when_all_calls_use_too_much_memory_the_largest_is_stopped(mode: str) -> None:
    limits = Limits(memory_bytes=512 * MB, all_calls_bytes=300 * MB)
    async with opened(mode, limits=limits) as sandbox:
        said = text_of(await sandbox.run(job(GREEDY_CHILDREN, children=2, size=200 * MB, shared=False)))
        assert "all running tools used more than 300 MB" in said


@IN_EVERY_MODE
@pytest.mark.parametrize(("delete", "close"), [(False, False), (True, False), (False, True)])
async def test_files_are_limited_for_a_call_also_deleted_and_closed_ones(
    mode: str, delete: bool, close: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with opened(mode, limits=SMALL) as sandbox:
        said = text_of(await sandbox.run(job(FILES, count=200, size=16 * MB, delete=delete, close=close)))
        assert "64 MB" in said
        assert not files_below(tmp_path)
        left = await sandbox.run(job("import os\ndef f():\n    return os.listdir('.')\n"))
        assert left.content == "[]"


@ON_A_DISK
async def test_a_call_that_makes_too_many_files_is_stopped(mode: str) -> None:
    async with opened(mode, limits=SMALL) as sandbox:
        assert "500 files" in text_of(await sandbox.run(job(MANY_FILES, count=1_000)))


@ON_A_DISK
async def test_room_on_a_disk_cannot_be_taken_without_writing(mode: str) -> None:
    async with opened(mode, limits=SMALL) as sandbox:
        assert "64 MB" in text_of(await sandbox.run(job(RESERVED, count=200, size=16 * MB)))


@IN_EVERY_MODE
async def test_memory_that_nobody_could_count_cannot_be_had(mode: str) -> None:
    source = """
import ctypes, os
def take() -> list:
    libc = ctypes.CDLL(None, use_errno=True)
    results = [libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)]
    try:
        results.append(os.memfd_create("hidden"))
    except OSError:
        results.append(-1)
    return results
"""
    async with opened(mode) as sandbox:
        assert (await sandbox.run(job(source))).content == "[-1,-1,-1,-1]"


@IN_EVERY_MODE
async def test_an_error_from_a_limit_of_the_kernel_names_the_limit(mode: str) -> None:
    async with opened(mode, limits=SMALL) as sandbox:
        memory = await sandbox.run(job("def f():\n    return len(b'x' * (1 << 30))\n"))
        assert "a process of a tool may use 512 MB of memory" in text_of(memory)
        large = "def f():\n    with open('f', 'wb') as file:\n        file.truncate(100 << 20)\n"
        assert "a file of a tool may have 64 MB" in text_of(await sandbox.run(job(large)))


async def test_tools_are_the_first_to_go_when_the_machine_runs_out_of_memory() -> None:
    source = "def f():\n    return open('/proc/self/oom_score_adj').read().strip()\n"
    async with opened("process") as sandbox:
        shown = await sandbox.run(job(source))
    assert int(text_of(shown)) >= 500
