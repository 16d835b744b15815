"""Limits that the kernel keeps for a whole call, where a cgroup v2 with memory and pids controllers is delegated to us.

Below the server's own cgroup:

    holdfast-server          the server itself: a cgroup with processes of its own cannot limit cgroups below it
    holdfast-calls-XXXXXXXX  the limit for all calls together
        1, 2, 3, …           one for each call, made with its process and removed after it

The server makes the first two (`cgroup_setup`), and hands an open directory to the fork server, which may have no path
that leads there. This module is the fork server's part: what it imports is in the memory of every call.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

from holdfast.tools.sandbox.contract import EndReason, Limits

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Calls:
    """The cgroup of all calls, as the fork server holds it."""

    def __init__(self, directory: int, limits: Limits) -> None:
        self.directory = directory
        self._limits = limits
        self._last = 0
        self._left: list[str] = []

    def add(self) -> Cgroup:
        name = self._make()
        try:
            return Cgroup(self, name, self._limits)
        except OSError:
            self.remove(name)
            raise

    def _make(self) -> str:
        while True:
            self._last += 1
            with contextlib.suppress(FileExistsError):  # left by a fork server before this one, and still in use
                os.mkdir(str(self._last), 0o700, dir_fd=self.directory)
                return str(self._last)

    def remove(self, name: str) -> None:
        """Again next time if the kernel still counts a process that has just been reaped."""
        left, self._left = [*self._left, name], []
        for each in left:
            try:
                os.rmdir(each, dir_fd=self.directory)
            except FileNotFoundError:
                continue
            except OSError:
                self._left.append(each)

    def times_out_of_memory(self) -> int:
        return _events(self.directory, "memory.events.local").get("oom", 0)


class Cgroup:
    """Of one call."""

    def __init__(self, calls: Calls, name: str, limits: Limits) -> None:
        self._calls = calls
        self._name = name
        self._oom_before = calls.times_out_of_memory()
        self._directory = os.open(name, DIRECTORY, dir_fd=calls.directory)
        try:
            limit_memory(self._directory, limits.memory_bytes)
            write(self._directory, "memory.oom.group", "1")  # a call is ended as a whole
            write(self._directory, "pids.max", str(limits.processes))
        except OSError:
            os.close(self._directory)
            raise

    def join(self) -> None:
        """The calling process, whatever its number is in which namespace."""
        write(self._directory, "cgroup.procs", "0")

    def check(self) -> None:
        """Raises unless the calling process is inside, and limited."""
        if str(os.getpid()) not in _read(self._directory, "cgroup.procs").split():
            raise OSError(f"the kernel did not put a process into {self._name}")
        if "max" in (_read(self._directory, name).strip() for name in ("memory.max", "pids.max")):
            raise OSError(f"the kernel did not limit {self._name}")

    def kill(self) -> None:
        kill_all(self._directory)

    def was_refused_a_process(self) -> bool:
        return _events(self._directory, "pids.events").get("max", 0) > 0

    def killed_for(self) -> EndReason | None:
        """Which limit on memory the kernel ended the call for. None also if the machine had no memory left."""
        events = _events(self._directory, "memory.events")
        if not events.get("oom_kill"):
            return None
        if events.get("oom"):
            return "memory"
        return "all_memory" if self._calls.times_out_of_memory() > self._oom_before else None

    def remove(self) -> None:
        os.close(self._directory)
        self._calls.remove(self._name)


def kill_all(directory: int) -> None:
    try:
        write(directory, "cgroup.kill", "1")
    except FileNotFoundError:  # before Linux 5.14
        for pid in map(int, _read(directory, "cgroup.procs").split()):
            if pid:  # 0 is a process that our namespace does not see; to kill, it would be ourselves
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def limit_memory(directory: int, size: int) -> None:
    write(directory, "memory.max", str(size))
    with contextlib.suppress(FileNotFoundError):  # where the kernel does not count swap
        write(directory, "memory.swap.max", "0")


def _events(directory: int, name: str) -> dict[str, int]:
    try:
        lines = _read(directory, name).splitlines()
    except FileNotFoundError:
        return {}
    return {key: int(count) for key, count in (line.split() for line in lines)}


def _read(directory: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)) as file:
        return file.read()


def write(directory: int, name: str, value: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
