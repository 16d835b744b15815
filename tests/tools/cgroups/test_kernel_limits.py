"""Limits of calls by a real cgroup v2. Run by `make test-cgroups`, in a virtual machine where there is none here."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from holdfast.core.egress_policy import Egress
from holdfast.tools.base import Job
from holdfast.tools.sandbox import fork_server_client
from holdfast.tools.sandbox.contract import EgressConfig, IsolationLayers, Limits
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox
from tests.tools.modes import MODES, text_of
from tests.tools.modes import job as job_within

pytestmark = pytest.mark.asyncio(loop_scope="module")
MB = 1 << 20
LIMITS = Limits(memory_bytes=256 * MB, processes=40, all_calls_bytes=384 * MB)
HOMES = ["", *(["/sys/fs/cgroup"] if os.geteuid() == 0 else [])]  # our own, and the root of the hierarchy

BOMB = """
import os, time
def bomb() -> str:
    made = 1
    while True:
        try:
            if os.fork() == 0:
                time.sleep(600)
        except BlockingIOError:
            print("refused after", made, flush=True)
            time.sleep(600)
        made += 1
"""
GREEDY_CHILDREN = """
import os, time
def fill(children: int, size: int) -> str:
    for _ in range(children):
        if os.fork() == 0:
            held = b"x" * size
            time.sleep(600)
    time.sleep(600)
"""
HOLDER = """
import os, socket, time
def hold(port: int, children: int, size: int) -> str:
    filled, full = os.pipe()
    for _ in range(children):
        if os.fork() == 0:
            held = b"x" * size
            os.write(full, b".")
            time.sleep(600)
    for _ in range(children):
        os.read(filled, 1)
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(open("/proc/self/cgroup").read().encode())
    return line.recv(16).decode()
"""
# Every way that it has to a file of cgroups: by path, through the directories that other processes have open, by mount.
ATTACK = """
import ctypes, os
def entries(directory):
    try:
        return [os.path.join(directory, name) for name in os.listdir(directory)]
    except OSError:
        return []
def writable(path, value):
    try:
        return os.write(os.open(path, os.O_WRONLY), value) > 0
    except OSError:
        return False
def attack(calls: str) -> list:
    ctypes.CDLL(None).mount(b"cgroup2", b".", b"cgroup2", 0, None)
    ways = [calls, os.path.dirname(calls), "/sys/fs/cgroup", "."]
    ways += [directory for process in entries("/proc") for directory in entries(f"{process}/fd")]
    ways += [below for way in ways for below in entries(way) if os.path.basename(below).isdigit()]
    files = {"memory.max": b"max", "pids.max": b"max", "cgroup.procs": b"0"}
    return [f"{way}/{name}" for way in ways for name, value in files.items() if writable(f"{way}/{name}", value)]
"""


class Held(NamedTuple):
    """A call that holds memory and waits for a word."""

    running: asyncio.Task[str]
    line: socket.socket
    cgroup: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["bubblewrap", "namespaces only", "process"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncGenerator[ForkServerSandbox]:
    made = ForkServerSandbox(
        layers=MODES[request.param],
        limits=LIMITS,
        egress=EgressConfig(policy=Egress("all")),
        unsafe=True,  # an ordinary process of an ordinary user has no isolation against signals before Linux 6.12
    )
    try:
        isolation = (await started(made)).split("+")
        assert isolation[0] == ("bubblewrap" if request.param == "bubblewrap" else "process")
        if request.param != "bubblewrap":  # in which root has namespaces of its own on some kernels only
            assert ("namespaces" in isolation) == (request.param != "process")
        assert "cgroups" in isolation, isolation
        yield made
    finally:
        await made.aclose()
        assert not calls_of(made).exists()


async def started(sandbox: ForkServerSandbox) -> str:
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(fork_server_client, "_START_S", 300.0)  # an emulated processor is slow
        return await sandbox.warm()


def job(source: str, **arguments: Any) -> Job:
    return job_within(source, timeout_s=200, **arguments)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def calls_of(sandbox: ForkServerSandbox) -> Path:
    assert sandbox._cgroup is not None
    return Path(sandbox._cgroup.config.path)


def peak_of(cgroup: Path) -> int:
    return int((cgroup / "memory.peak").read_text())


def pid_max() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text())


def wait_until(holds: Callable[[], bool]) -> None:
    """Another process does it, and tells nobody."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def hold(sandbox: ForkServerSandbox, listener: socket.socket, children: int = 0) -> str:
    return text_of(await sandbox.run(job(HOLDER, port=listener.getsockname()[1], children=children, size=100 * MB)))


async def held(sandbox: ForkServerSandbox, listener: socket.socket, children: int = 0) -> Held:
    running = asyncio.create_task(hold(sandbox, listener, children))
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(120):
        line, _ = await loop.sock_accept(listener)
        said = (await loop.sock_recv(line, 4096)).decode().strip()
    return Held(running, line, calls_of(sandbox) / said.rpartition("/")[2])


async def test_a_fork_bomb_is_refused_by_the_kernel_and_told_the_limit(sandbox: ForkServerSandbox) -> None:
    outcome = await sandbox.run(job(BOMB))
    assert "more than 40 processes" in text_of(outcome)
    assert outcome.stdout in ((), ("refused after 40\n",))  # the call may be ended before it has said so


async def test_processes_that_need_too_much_memory_together_are_killed_and_no_other_call_is(
    sandbox: ForkServerSandbox, listener: socket.socket
) -> None:
    other, line, _ = await held(sandbox, listener)
    with line:
        said = text_of(await sandbox.run(job(GREEDY_CHILDREN, children=4, size=100 * MB)))
        assert "256 MB of memory together" in said
        assert peak_of(calls_of(sandbox)) < LIMITS.memory_bytes + 64 * MB  # the other call and spares have a part in it
        line.sendall(b"unharmed")
        assert await other == "unharmed"


async def test_all_calls_together_never_have_more_than_their_limit(
    sandbox: ForkServerSandbox, listener: socket.socket
) -> None:
    """Which of them is ended is the kernel's choice."""
    first, line, _ = await held(sandbox, listener, children=2)
    second = asyncio.create_task(hold(sandbox, listener, children=2))
    ended, (survivor,) = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
    assert "all running tools used more than 384 MB" in ended.pop().result()
    if survivor is second:
        line.close()
        line, _ = await asyncio.get_running_loop().sock_accept(listener)
    with line:
        line.sendall(b"unharmed")
        assert await survivor == "unharmed"
    assert peak_of(calls_of(sandbox)) <= LIMITS.all_calls_bytes


async def test_a_tool_cannot_lift_its_limits(sandbox: ForkServerSandbox) -> None:
    said = text_of(await sandbox.run(job(ATTACK, calls=str(calls_of(sandbox)))))
    assert said == "[]"


async def test_limits_that_a_tool_could_lift_are_not_announced() -> None:
    open_to_all = IsolationLayers(bubblewrap=False, namespaces=False, landlock=False, own_users=False)
    sandbox = ForkServerSandbox(layers=open_to_all, unsafe=True)
    try:
        isolation = (await started(sandbox)).split("+")
        assert sandbox._cgroup is not None
        assert "seccomp" in isolation
        assert "cgroups" not in isolation
    finally:
        await sandbox.aclose()


async def test_the_cgroup_of_a_call_is_gone_after_it(sandbox: ForkServerSandbox, listener: socket.socket) -> None:
    running, line, cgroup = await held(sandbox, listener)
    assert cgroup.is_dir()
    with line:
        line.sendall(b"done")
        assert await running == "done"
    wait_until(lambda: not cgroup.exists())


async def test_the_cgroup_of_a_cancelled_call_is_gone(sandbox: ForkServerSandbox, listener: socket.socket) -> None:
    running, line, cgroup = await held(sandbox, listener)
    with line:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    wait_until(lambda: not cgroup.exists())


async def test_the_machine_keeps_its_own_limit_on_processes(sandbox: ForkServerSandbox) -> None:
    """Before Linux 6.14 it is one for all pid namespaces, and root could write to it."""
    assert (await sandbox.run(job("def f():\n    return 'done'\n"))).content == "done"
    assert pid_max() > 4_000


@pytest.mark.parametrize("cgroup", HOMES)
async def test_what_a_killed_server_has_left_is_removed_by_the_next(cgroup: str) -> None:
    killed, left = start_server(cgroup)
    killed.kill()
    killed.wait()
    assert [call for call in left.iterdir() if call.is_dir()]
    following, made = start_server(cgroup)
    try:
        assert made.parent == left.parent
        assert not left.exists()
    finally:
        following.kill()
        following.wait()


def start_server(cgroup: str) -> tuple[subprocess.Popen[str], Path]:
    command = [sys.executable, "-m", "tests.tools.cgroups.server", cgroup]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    with server.stdout:
        return server, Path(server.stdout.readline().strip())
