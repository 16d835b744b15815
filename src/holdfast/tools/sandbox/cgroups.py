"""Limits that the kernel keeps for a whole call, where a cgroup v2 with memory and pids controllers is delegated to us.

Below the server's own cgroup:

    holdfast-server          the server itself: a cgroup with processes of its own cannot limit cgroups below it
    holdfast-calls-XXXXXXXX  the limit for all calls together
        1, 2, 3, …           one for each call, made with its process and removed after it

The server makes the first two, and hands an open directory to the fork server, which may have no path that leads there.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import tempfile
from pathlib import Path
from typing import Final

from holdfast.tools.sandbox import call_limits, process_usage
from holdfast.tools.sandbox.contract import CallsCgroup, EndReason, Limits
from holdfast.tools.sandbox.hidden_paths import lies_in

_log = logging.getLogger(__name__)
LEAF: Final = "holdfast-server"
_CALLS: Final = "holdfast-calls-"
_CONTROLLERS: Final = frozenset(("memory", "pids"))
_ENABLE: Final = "+memory +pids"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOVES: Final = 8  # children may be born while we move
_END_MS: Final = 2_000  # for killed processes to be gone


class AllCalls:
    """The cgroup of all calls, as the server holds it. Its lock, gone with the server, says that it is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = os.open(path, _DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._handed = os.open(path, _DIRECTORY)  # opened anew, so that the fork server does not hold the lock

    @property
    def config(self) -> CallsCgroup:
        return CallsCgroup(str(self._path), self._handed)

    def limit(self, limits: Limits) -> None:
        _limit_memory(self._lock, call_limits.most_of_all_calls(limits))
        _write(self._lock, "cgroup.subtree_control", _ENABLE)

    def sweep(self) -> None:
        """End what a fork server that is gone has left."""
        _remove_below(self._path)

    def close(self) -> None:
        _remove_with_all_below(self._path)
        os.close(self._handed)
        os.close(self._lock)


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
        self._directory = os.open(name, _DIRECTORY, dir_fd=calls.directory)
        try:
            _limit_memory(self._directory, limits.memory_bytes)
            _write(self._directory, "memory.oom.group", "1")  # a call is ended as a whole
            _write(self._directory, "pids.max", str(limits.processes))
        except OSError:
            os.close(self._directory)
            raise

    def join(self) -> None:
        """The calling process, whatever its number is in which namespace."""
        _write(self._directory, "cgroup.procs", "0")

    def check(self) -> None:
        """Raises unless the calling process is inside, and limited."""
        if str(os.getpid()) not in _read(self._directory, "cgroup.procs").split():
            raise OSError(f"the kernel did not put a process into {self._name}")
        if "max" in (_read(self._directory, name).strip() for name in ("memory.max", "pids.max")):
            raise OSError(f"the kernel did not limit {self._name}")

    def kill(self) -> None:
        _kill(self._directory)

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


def prepare(limits: Limits) -> AllCalls | None:
    """None where the kernel, the operator or other processes in our cgroup do not allow it."""
    try:
        with open("/proc/self/cgroup") as membership, open("/proc/self/mountinfo") as mounts:
            base = delegated(own_directory(membership.read(), mounts.read()))
        directory = os.open(base, _DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # another server may be about to do the same
            _move_away(base)
            _write(directory, "cgroup.subtree_control", _ENABLE)
            _remove_abandoned(base)
            return _make(base, limits)
        finally:
            os.close(directory)
    except OSError as problem:
        _log.info("no cgroups for tools: %s", problem)
        return None


def own_directory(membership: str, mounts: str) -> Path:
    """Where our cgroup v2 is seen, from /proc/self/cgroup and /proc/self/mountinfo."""
    own = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        if own and after.startswith("cgroup2 ") and lies_in(own, root):
            return Path(mounted, os.path.relpath(own, root))
    raise FileNotFoundError("no cgroup v2 is mounted")


def delegated(own: Path) -> Path:
    """The cgroup that is ours to divide: our own, or the one around it if it is the leaf that we made for ourselves."""
    base = own.parent if own.name == LEAF else own
    missing = _CONTROLLERS - set((base / "cgroup.controllers").read_text().split())
    if missing:
        raise PermissionError(f"{base} has no controllers for {' and '.join(sorted(missing))}")
    for path in (base, base / "cgroup.procs", base / "cgroup.subtree_control"):
        if not os.access(path, os.W_OK, effective_ids=True):
            raise PermissionError(f"{path} is not writable")
    strangers = _pids(base) - _family() if _must_be_empty(base) else ()
    if strangers:
        raise PermissionError(f"other processes than this server are in {base}")
    return base


def _must_be_empty(base: Path) -> bool:
    """Before it can limit what is below it. The root of the hierarchy, alone without a type, need not be."""
    return (base / "cgroup.type").exists()


def _move_away(base: Path) -> None:
    for _ in range(_MOVES):
        inside = _pids(base) & _family() if _must_be_empty(base) else ()
        if not inside:
            return
        leaf = base / LEAF
        leaf.mkdir(exist_ok=True)
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(str(pid))


def _make(base: Path, limits: Limits) -> AllCalls:
    path = Path(tempfile.mkdtemp(prefix=_CALLS, dir=base))
    try:
        calls = AllCalls(path)
    except OSError:
        path.rmdir()
        raise
    try:
        calls.limit(limits)
    except OSError:
        calls.close()
        raise
    return calls


def _remove_abandoned(base: Path) -> None:
    """Of servers that were killed."""
    for path in base.glob(f"{_CALLS}*"):
        with contextlib.suppress(OSError):
            directory = os.open(path, _DIRECTORY)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_with_all_below(path)
            finally:
                os.close(directory)


def _remove_with_all_below(path: Path) -> None:
    _remove_below(path)
    with contextlib.suppress(OSError):  # the next start will find it
        path.rmdir()


def _remove_below(path: Path) -> None:
    for call in path.iterdir():
        if call.is_dir():
            with contextlib.suppress(OSError):
                _end(call)
                call.rmdir()


def _end(call: Path) -> None:
    directory = os.open(call, _DIRECTORY)
    try:
        _kill(directory)
        _wait_until_empty(directory)
    finally:
        os.close(directory)


def _wait_until_empty(directory: int) -> None:
    events = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        changed = select.poll()
        changed.register(events, select.POLLPRI)
        while b"populated 1" in os.pread(events, 4096, 0) and changed.poll(_END_MS):
            pass
    finally:
        os.close(events)


def _kill(directory: int) -> None:
    try:
        _write(directory, "cgroup.kill", "1")
    except FileNotFoundError:  # before Linux 5.14
        for pid in map(int, _read(directory, "cgroup.procs").split()):
            if pid:  # 0 is a process that our namespace does not see; to kill, it would be ourselves
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _limit_memory(directory: int, size: int) -> None:
    _write(directory, "memory.max", str(size))
    with contextlib.suppress(FileNotFoundError):  # where the kernel does not count swap
        _write(directory, "memory.swap.max", "0")


def _pids(base: Path) -> set[int]:
    return {int(pid) for pid in (base / "cgroup.procs").read_text().split()}


def _family() -> set[int]:
    me = os.getpid()
    return set(process_usage.usage_below([me])[me].pids)


def _events(directory: int, name: str) -> dict[str, int]:
    try:
        lines = _read(directory, name).splitlines()
    except FileNotFoundError:
        return {}
    return {key: int(count) for key, count in (line.split() for line in lines)}


def _read(directory: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)) as file:
        return file.read()


def _write(directory: int, name: str, value: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
