"""A real server process on a free port, for suites that talk to it as a user would: over a socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import weakref
from pathlib import Path
from typing import Self

from letta_client import AsyncLetta, Letta

from tests import forked, watchdog
from tests.surroundings import calm

START_S = 60.0
STOP_S = 60.0
# Tools of these suites leave marks at a listener on this machine, which the default policy keeps them from.
TOOLS_REACH_LOOPBACK = {"HOLDFAST_TOOL_EGRESS": "allow-list", "HOLDFAST_TOOL_EGRESS_ALLOW": "127.0.0.1"}


class ServerProcess:
    """`with ServerProcess(data_dir) as server:` starts it, waits until it is healthy and stops it with SIGTERM.

    Its tools may connect to this machine, so that tests can see what they do; but not to the server itself.
    `kill` is SIGKILL; `start` after it is the restart of a crashed server on the same data and port. `pause` is
    SIGSTOP. Should the test process be killed, the server ends too.
    """

    def __init__(self, data_dir: Path, **environment: str) -> None:
        self.data_dir = data_dir
        self.port = hold_port(self)
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = data_dir / "server.log"
        self._environment = TOOLS_REACH_LOOPBACK | environment
        self._process: subprocess.Popen[bytes] | forked.ForkedProcess | None = None
        self._log_begins = 0  # of the process that runs now
        self.may_be_dead = True  # by our hand, or because it is only just being started

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.launch()
        self._wait_until_healthy()
        self.may_be_dead = False

    def launch(self) -> None:
        """Without waiting for it."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_begins = log.tell()
            self._process = self._begin(log.fileno())
        watchdog.end_with_us(self._process.pid)

    def _begin(self, output: int) -> subprocess.Popen[bytes] | forked.ForkedProcess:
        environment = self._surroundings()
        if "LD_PRELOAD" not in environment:  # which is read when a program is loaded
            return forked.start(self._command, environment, output)
        program = [sys.executable, "-m", "holdfast", *self._command]
        return subprocess.Popen(program, env=environment, stdout=output, stderr=output)

    @property
    def _command(self) -> list[str]:
        return ["serve", "--port", str(self.port)]

    def kill(self) -> None:
        assert self._process is not None
        self.may_be_dead = True
        unborn = _children_before_exec(self._process.pid)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for child in unborn:
            if _command_line(child) == unborn[child]:  # it has not begun to be another program meanwhile
                os.kill(child, signal.SIGKILL)
        watchdog.forget(self._process.pid)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, without waiting for it to end."""
        assert self._process is not None
        self.may_be_dead = True
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # a stopped process would hear nothing

    def stop(self, within_s: float = STOP_S) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self.terminate()
        try:
            self._process.wait(within_s)
            watchdog.forget(self._process.pid)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop within {within_s} s:\n{self.read_log()}") from None

    def client(self, **options: object) -> Letta:
        return Letta(base_url=self.url, api_key="not needed", **options)  # pyright: ignore[reportArgumentType]

    def async_client(self, **options: object) -> AsyncLetta:
        return AsyncLetta(base_url=self.url, api_key="not needed", **options)  # pyright: ignore[reportArgumentType]

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")[-20_000:]

    def _surroundings(self) -> dict[str, str]:
        return calm(os.environ) | {"HOLDFAST_DATA_DIR": str(self.data_dir)} | self._environment

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.read_log()}")
            try:
                with urllib.request.urlopen(f"{self.url}/v1/health/", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.02)  # there is no event to wait for before the port is open
        raise AssertionError(f"the server was not healthy within {START_S} s:\n{self.read_log()}")


class WorkerProcess(ServerProcess):
    """`holdfast worker`: it drives runs and answers nobody, except monitors, if it is observed."""

    observed = False

    @property
    def _command(self) -> list[str]:
        return ["worker", "--port", str(self.port)] if self.observed else ["worker"]

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_S
        while b"this worker is ready" not in self.log.read_bytes()[self._log_begins :]:
            if self.exit_code is not None or time.monotonic() > deadline:
                raise AssertionError(f"the worker did not start ({self.exit_code}):\n{self.read_log()}")
            time.sleep(0.02)  # there is no event to wait for but a line in its log


def _children_before_exec(pid: int) -> dict[int, bytes]:
    """Children that are still copies of the server, with their command lines. Under libfaketime such a child can wait
    for ever for a lock that a thread of the server held when it was forked, and it holds the server's port."""
    own = _command_line(pid)
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(child) for child in listed.read_text().split()] if listed.exists() else []
    return {child: own for child in children if own and _command_line(child) == own}


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def hold_port(owner: object) -> int:
    """A port that nobody else is given for as long as the owner lives, also while the server on it is dead.

    Linux lets another socket listen there, because both may reuse the address and this one never listens. Were the port
    free instead, anybody's outgoing connection could take it, even that of a client that waits for the server.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    weakref.finalize(owner, os.close, held.detach())
    return port
