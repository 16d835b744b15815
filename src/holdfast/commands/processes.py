"""Several server processes on one port. This one only listens, starts them, and starts one again that ended.

They share its socket, so a connection that waits to be accepted is lost with none of them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import Final

from holdfast.settings import Settings

_log = logging.getLogger(__name__)
_PAUSE_S: Final = 1.0  # before a process is started again
_STARTING_S: Final = 5.0  # one that ends sooner than this was never up: what is wrong is wrong for all
_STOP_GRACE_S: Final = 12.0  # more than a server takes beyond its drain time before it ends itself


def end_with_parent(parent_fd: int) -> None:
    """For a process that was started here: it stops in order when this one is gone, even if that was killed."""

    def wait() -> None:
        os.read(parent_fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="holdfast-parent", daemon=True).start()


class Processes:
    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._children: dict[int, subprocess.Popen[bytes]] = {}  # by their number
        self._started: dict[int, float] = {}
        self._stopping = threading.Event()
        self._alive_fd, self._held_fd = os.pipe()  # nobody writes: it is closed when this process ends, however it ends

    def run(self) -> int:
        """Until SIGINT or SIGTERM, or until a process cannot be started. What to exit with."""
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, self._stop)
        print(f"Starting {self._settings.processes} processes on port {self._listener.getsockname()[1]}", flush=True)
        for number in range(self._settings.processes):
            self._start(number)
        code = 0
        while not self._stopping.is_set() and not code:
            self._stopping.wait(_PAUSE_S)
            code = self._look()
        self._end_all()
        return code

    def _start(self, number: int) -> None:
        descriptor = self._listener.fileno()
        self._children[number] = subprocess.Popen(
            [
                *(sys.executable, "-m", "holdfast", "serve"),
                *("--listen-fd", str(descriptor), "--parent-fd", str(self._alive_fd)),
            ],
            pass_fds=[descriptor, self._alive_fd],
            env=os.environ | self._environment() | {"HOLDFAST_PROCESS": str(number)},
            stdout=None if number == 0 else subprocess.DEVNULL,  # all would say the same
            start_new_session=True,  # a Ctrl-C in the terminal reaches this process alone, which tells the others once
        )
        self._started[number] = time.monotonic()

    def _environment(self) -> dict[str, str]:
        """What was said on the command line."""
        settings = self._settings
        return {
            "HOLDFAST_HOST": settings.host,
            "HOLDFAST_PORT": str(settings.port),
            "HOLDFAST_DATA_DIR": str(settings.data_dir),
            "HOLDFAST_WORKER": str(settings.worker),
        }

    def _look(self) -> int:
        """Starts again what has ended. The exit code of one that never came up, else 0."""
        for number, child in list(self._children.items()):
            code = child.poll()
            if code is None or self._stopping.is_set():
                continue
            if code > 0 and time.monotonic() - self._started[number] < _STARTING_S:
                return code
            _log.error("server process %d ended with %d and is started again", child.pid, code)
            self._start(number)
        return 0

    def _stop(self, _: int, __: FrameType | None) -> None:
        self._stopping.set()

    def _end_all(self) -> None:
        running = [child for child in self._children.values() if child.poll() is None]
        for child in running:
            child.terminate()
        deadline = time.monotonic() + self._settings.unready_s + self._settings.drain_s + _STOP_GRACE_S
        for child in running:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.error("server process %d did not stop in time and is killed", child.pid)
                child.kill()
