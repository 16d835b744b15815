"""Commands of ours in processes that are forked from one that has imported everything. Importing is nine tenths of what
starting a server takes, and suites start hundreds of them. `tests/test_starting.py` starts the command line itself.

There is one such parent for each test process, which asks it over a socket pair. A message has the arguments and the
environment of a command, and two descriptors: what the command prints goes to one, its exit code to the other.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from holdfast import cli
from holdfast.api import middleware

_LONGEST: Final = 1 << 20
# What a server imports, at the latest when it is asked for the first time.
_LOADED: Final = (
    *("holdfast.commands.serving", "holdfast.commands.worker", "holdfast.commands.processes"),
    *("holdfast.api.server", "holdfast.store.postgres", "holdfast.store.postgres_signals", "uvloop", "httptools"),
)


class ForkedProcess:
    """As much of `subprocess.Popen` as suites use."""

    def __init__(self, pid: int, told: int) -> None:
        self.pid = pid
        weakref.finalize(self, os.close, told)
        self.returncode: int | None = None
        self._told = told
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("holdfast", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            with self._reading:
                if self.returncode is None:
                    told = os.read(self._told, 100)
                    assert told, "the process that forks has ended"
                    self.returncode = int(told)
        return self.returncode


class _Forking:
    """The test process's end of the socket. Started when first used."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._asking = threading.Lock()  # servers of a fleet are started side by side

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], output: int) -> ForkedProcess:
        told, tells = os.pipe()
        message = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        with self._asking:
            if self._line is None:
                self._line = self._begin()
            socket.send_fds(self._line, [message], [output, tells])
            pid = int(self._line.recv(_LONGEST))
        os.close(tells)
        return ForkedProcess(pid, told)

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
        process = subprocess.Popen(program, pass_fds=[theirs.fileno()])
        process.returncode = 0  # it ends when this process does: nobody waits for it
        theirs.close()
        atexit.register(ours.close)
        return ours


_forking = _Forking()


def start(arguments: Sequence[str], environment: Mapping[str, str], output: int) -> ForkedProcess:
    """`output`: a descriptor for what it prints."""
    return _forking.start(arguments, environment, output)


# --- the process that forks ---


def fork_as_asked(line: socket.socket) -> list[str]:
    """Returns only in a new process, with its arguments. Ends when whoever asks has gone."""
    gc.freeze()
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, _ignore)  # it wakes `select`
    signal.set_wakeup_fd(woken)
    children: dict[int, int] = {}  # where each is to be told of
    while True:
        readable = select.select([line, ended], [], [])[0]
        if ended in readable:
            os.read(ended, 1_000)
            _tell_of_ends(children)
        if line not in readable:
            continue
        message, descriptors, *_ = socket.recv_fds(line, _LONGEST, 2)
        if not message:
            sys.exit()
        output, tells = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for held in (line.detach(), ended, woken, tells, *children.values()):
                os.close(held)
            return _become(json.loads(message), output)
        children[pid] = tells
        os.close(output)
        line.send(str(pid).encode())


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _tell_of_ends(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        tells = children.pop(pid)
        with suppress(BrokenPipeError):  # nobody wants to know
            os.write(tells, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(tells)


def _become(asked: dict[str, Any], output: int) -> list[str]:
    middleware._prefix = os.urandom(10).hex()  # of its request ids
    os.environ.clear()
    os.environ.update(asked["environment"])
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    return asked["arguments"]


if __name__ == "__main__":
    gc.disable()
    for name in _LOADED:
        importlib.import_module(name)
    sys.argv[1:] = fork_as_asked(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(cli.main())
