"""Ends what a test process has started once that process is gone, also after kill -9, when no `finally` runs.

One process per test process. It reads its standard input until the end, which comes when the test process ends:
`process PID` and `forget PID` for servers, `postgres DIRECTORY` for a PostgreSQL and its data, `mount DIRECTORY`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

_processes: Any = psutil  # it ships no types
_END_S = 10.0


class _Watchdog:
    """The test process's end of the pipe. Started when first used."""

    def __init__(self) -> None:
        self._line: int | None = None

    def tell(self, line: str) -> None:
        if self._line is None:
            self._line = self._start()
        os.write(self._line, line.encode() + b"\n")

    def _start(self) -> int:
        """Nothing but the end of this process closes what is returned."""
        heard, told = os.pipe()
        process = subprocess.Popen([sys.executable, __file__], stdin=heard, start_new_session=True)
        process.returncode = 0  # it outlives us by design: nobody waits for it
        os.close(heard)
        return told


_watchdog = _Watchdog()


def end_with_us(pid: int) -> None:
    _watchdog.tell(f"process {pid}")


def forget(pid: int) -> None:
    _watchdog.tell(f"forget {pid}")


def end_postgres_with_us(directory: Path) -> None:
    _watchdog.tell(f"postgres {directory}")


def unmount_with_us(directory: Path) -> None:
    _watchdog.tell(f"mount {directory}")


def family(pid: int) -> list[int]:
    """The process first, then its descendants."""
    try:
        process = _processes.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except _processes.NoSuchProcess:
        return []


def send(pids: Iterable[int], what: signal.Signals) -> None:
    """To those that still run."""
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            continue


def postmaster(directory: Path) -> int | None:
    try:
        return int((directory / "postmaster.pid").read_text().split("\n")[0])
    except (FileNotFoundError, ValueError):
        return None


def _end_postgres(directory: Path) -> None:
    pid = postmaster(directory)
    everyone = [] if pid is None else _handles(family(pid))
    pids = [process.pid for process in everyone]
    send(pids, signal.SIGQUIT)
    send(pids, signal.SIGCONT)  # a test may have stopped them
    _, alive = _processes.wait_procs(everyone, _END_S)
    send((process.pid for process in alive), signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


def _handles(pids: Iterable[int]) -> list[Any]:
    """Of those that run. Made before they are told to end: there is no handle on a process that is gone."""
    found: list[Any] = []
    for pid in pids:
        with contextlib.suppress(_processes.NoSuchProcess):
            found.append(_processes.Process(pid))
    return found


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    servers: dict[int, Any] = {}  # handles: a number may be given to another process later
    directories: list[Path] = []
    mounts: list[str] = []
    for line in sys.stdin:
        kind, _, value = line.rstrip("\n").partition(" ")
        match kind:
            case "process":
                servers |= {process.pid: process for process in _handles([int(value)])}
            case "forget":
                servers.pop(int(value), None)
            case "postgres":
                directories.append(Path(value))
            case "mount":
                mounts.append(value)
            case _:
                continue
    for server in servers.values():
        if server.is_running():
            send(family(server.pid), signal.SIGKILL)
    for directory in directories:
        _end_postgres(directory)
    for mount in mounts:
        if os.path.ismount(mount):
            subprocess.run(["umount", "--lazy", mount], check=False)


if __name__ == "__main__":
    main()
