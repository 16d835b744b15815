"""Each call has a user of its own, and nothing else separates calls. Run by `test_users.py`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from holdfast.core.egress_policy import Egress
from holdfast.tools.sandbox.contract import EgressConfig, IsolationLayers
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox
from tests.tools.modes import job, text_of

# Says who it is and where, and waits until the test answers.
WAIT = """
import json, os, socket
def wait(port: int) -> str:
    with open("private", "w") as file:
        file.write("of this call")
    with socket.create_connection(("127.0.0.1", port)) as line:
        about = {"uid": os.getuid(), "pid": os.getpid(), "path": os.path.abspath("private")}
        line.sendall(json.dumps(about).encode() + b"\\n")
        line.recv(1)
    return "waited"
"""
REACH = """
import os
def reach(path: str, pids: list) -> list:
    errors = []
    for attempt in (lambda: open(path).read(), *(lambda pid=pid: os.kill(pid, 0) for pid in pids)):
        try:
            errors.append(str(attempt()))
        except OSError as error:
            errors.append(type(error).__name__)
    return errors
"""
LEAVE = """
import os
def leave() -> str:
    os.mkdir("closed")
    open("closed/file", "w").close()
    os.chmod("closed", 0)
    return os.getcwd()
"""


class Waiting(msgspec.Struct):
    uid: int
    pid: int
    path: str


@asynccontextmanager
async def opened() -> AsyncGenerator[ForkServerSandbox]:
    """Landlock would keep calls apart too, so it is switched off, and with it the server's consent to run tools."""
    layers = IsolationLayers(bubblewrap=False, namespaces=False, landlock=False)
    sandbox = ForkServerSandbox(layers=layers, egress=EgressConfig(policy=Egress("all")), unsafe=True)
    try:
        assert "users" in (await sandbox.warm()).split("+")
        yield sandbox
    finally:
        await sandbox.aclose()


def left_in(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


async def introduced(listener: socket.socket) -> tuple[socket.socket, Waiting]:
    loop = asyncio.get_running_loop()
    line, _ = await loop.sock_accept(listener)
    line.setblocking(False)
    said = b""
    while not said.endswith(b"\n"):
        said += await loop.sock_recv(line, 1_000)
    return line, msgspec.json.decode(said, type=Waiting)


async def test_calls_at_the_same_time_run_as_different_users_who_are_not_root() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with opened() as sandbox:
            calls = [asyncio.create_task(sandbox.run(job(WAIT, port=listener.getsockname()[1]))) for _ in range(2)]
            waiting = [await introduced(listener) for _ in calls]
            assert len({0, os.getuid(), *(about.uid for _, about in waiting)}) == 3
            for line, _ in waiting:
                line.close()
            assert [text_of(outcome) for outcome in await asyncio.gather(*calls)] == ["waited", "waited"]


async def test_a_call_reaches_neither_the_files_nor_the_processes_of_another_nor_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with opened() as sandbox:
            call = asyncio.create_task(sandbox.run(job(WAIT, port=listener.getsockname()[1])))
            line, other = await introduced(listener)
            connection = sandbox._connection
            assert connection is not None
            pids = [other.pid, connection._process.pid, os.getpid()]
            outcome = await sandbox.run(job(REACH, path=other.path, pids=pids))
            line.close()
            await call
            assert msgspec.json.decode(text_of(outcome)) == ["PermissionError"] * 4


async def test_files_of_a_call_that_another_user_owns_are_removed() -> None:
    async with opened() as sandbox:
        directory = text_of(await sandbox.run(job(LEAVE)))
        assert sandbox._scratch is not None
        assert directory.startswith(str(sandbox._scratch.path))
        assert left_in(directory) == []


@pytest.mark.parametrize("signal_scope", [True, False])
async def test_tools_are_not_refused_where_only_the_user_keeps_them_from_signalling_the_server(
    signal_scope: bool,
) -> None:
    """As on a kernel before 6.12."""
    sandbox = ForkServerSandbox(layers=IsolationLayers(bubblewrap=False, namespaces=False, signal_scope=signal_scope))
    try:
        outcome = await sandbox.run(job(REACH, path="/nowhere", pids=[os.getpid()]))
        assert msgspec.json.decode(text_of(outcome))[1] == "PermissionError"
    finally:
        await sandbox.aclose()
