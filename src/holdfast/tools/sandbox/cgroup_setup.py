"""The server's part of the cgroups for tools: finds out whether a cgroup is delegated to it, and divides it.

See `cgroups` for what it looks like afterwards, and for the part of the fork server.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import tempfile
from pathlib import Path
from typing import Final

from holdfast.tools.sandbox import call_limits, process_usage
from holdfast.tools.sandbox.cgroups import DIRECTORY, kill_all, limit_memory, write
from holdfast.tools.sandbox.contract import CallsCgroup, Limits
from holdfast.tools.sandbox.hidden_paths import lies_in

_log = logging.getLogger(__name__)
LEAF: Final = "holdfast-server"
_CALLS: Final = "holdfast-calls-"
_CONTROLLERS: Final = frozenset(("memory", "pids"))
_ENABLE: Final = "+memory +pids"
_MOVES: Final = 8  # children may be born while we move
_END_MS: Final = 2_000  # for killed processes to be gone


class AllCalls:
    """The cgroup of all calls, as the server holds it. Its lock, gone with the server, says that it is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = os.open(path, DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._handed = os.open(path, DIRECTORY)  # opened anew, so that the fork server does not hold the lock

    @property
    def config(self) -> CallsCgroup:
        return CallsCgroup(str(self._path), self._handed)

    def limit(self, limits: Limits) -> None:
        limit_memory(self._lock, call_limits.most_of_all_calls(limits))
        write(self._lock, "cgroup.subtree_control", _ENABLE)

    def sweep(self) -> None:
        """End what a fork server that is gone has left."""
        _remove_below(self._path)

    def close(self) -> None:
        _remove_with_all_below(self._path)
        os.close(self._handed)
        os.close(self._lock)


def prepare(limits: Limits) -> AllCalls | None:
    """None where the kernel, the operator or other processes in our cgroup do not allow it."""
    try:
        with open("/proc/self/cgroup") as membership, open("/proc/self/mountinfo") as mounts:
            base = delegated(own_directory(membership.read(), mounts.read()))
        directory = os.open(base, DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # another server may be about to do the same
            _move_away(base)
            write(directory, "cgroup.subtree_control", _ENABLE)
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
            directory = os.open(path, DIRECTORY)
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
    directory = os.open(call, DIRECTORY)
    try:
        kill_all(directory)
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


def _pids(base: Path) -> set[int]:
    return {int(pid) for pid in (base / "cgroup.procs").read_text().split()}


def _family() -> set[int]:
    me = os.getpid()
    return set(process_usage.usage_below([me])[me].pids)
