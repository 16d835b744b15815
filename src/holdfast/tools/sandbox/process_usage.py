"""What a running call uses, read from /proc: for the limits on sums, which the kernel keeps only with cgroups.

A call is a process and everything below it. The process at its top adopts every orphan, so nothing leaves the tree.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

_PAGE: Final = resource.getpagesize()
_STAT_BYTES: Final = 4096
_BLOCK: Final = 512  # of st_blocks, on every file system
_KILOBYTE: Final = 1024


class Usage(msgspec.Struct, frozen=True):
    tasks: int  # threads count too: each takes a slot of the kernel's table
    resident: int  # in bytes; memory that several processes share is counted for each
    pids: tuple[int, ...]


class _Process(msgspec.Struct, frozen=True, gc=False):
    parent: int
    threads: int
    pages: int


def usage_below(tops: Collection[int]) -> dict[int, Usage]:
    """One pass over /proc for all calls."""
    processes = {int(name): found for name in os.listdir("/proc") if name.isdigit() and (found := _process(name))}
    owner: dict[int, int] = {pid: pid for pid in tops}
    members: dict[int, list[int]] = {pid: [] for pid in tops}
    for pid in processes:
        top = _top_of(pid, processes, owner)
        if top and pid != top:
            members[top].append(pid)
        elif top:
            members[top].insert(0, pid)
    return {top: _sum(processes, pids) for top, pids in members.items()}


def exact_memory(usage: Usage) -> int:
    """Memory that processes share is counted once. Slow for large processes, so only used when the sum is too high."""
    total, shared = 0, 0
    for pid in usage.pids:
        proportional = _kilobytes(f"/proc/{pid}/smaps_rollup", b"Pss:")
        if proportional is not None:
            total += proportional
            continue
        # Another user's process: `smaps_rollup` is not readable, `status` is. Of shared memory the maximum is counted.
        total += _kilobytes(f"/proc/{pid}/status", b"RssAnon:") or 0
        shared = max(shared, _kilobytes(f"/proc/{pid}/status", b"RssShmem:") or 0)
    return (total + shared) * _KILOBYTE


def bytes_written(pids: Iterable[int]) -> int:
    """To disk, ever, by these processes and the ones they have waited for. 0 where the kernel does not count."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io") as counters:
                total += sum(int(line.split()[1]) for line in counters if line.startswith("write_bytes"))
        except OSError:
            continue
    return total


def files_in(directory: str) -> tuple[int, int]:
    """How many entries, and how many bytes they take. A directory that its owner has closed is opened again."""
    entries, size, left = 0, 0, [directory]
    while left:
        for entry in _entries(left.pop()):
            try:
                state = entry.stat(follow_symlinks=False)
            except OSError:  # removed while we were looking
                continue
            entries += 1
            size += state.st_blocks * _BLOCK
            if stat.S_ISDIR(state.st_mode):
                left.append(entry.path)
    return entries, size


def deleted_bytes(pids: Iterable[int], device: int) -> int:
    """Deleted files take space on the disk for as long as a process has them open."""
    found: dict[int, int] = {}
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                state = os.stat(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if state.st_dev == device and state.st_nlink == 0 and stat.S_ISREG(state.st_mode):
                found[state.st_ino] = state.st_blocks * _BLOCK
    return sum(found.values())


def _entries(directory: str) -> list[os.DirEntry[str]]:
    for _ in range(2):
        try:
            with os.scandir(directory) as found:
                return list(found)
        except PermissionError:
            try:
                os.chmod(directory, 0o700)
            except OSError:
                return []
        except OSError:
            return []
    return []


def _process(name: str) -> _Process | None:
    try:
        fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
    except OSError:  # it ended while we were looking
        return None
    try:
        fields = os.read(fd, _STAT_BYTES).rpartition(b")")[2].split()
    except OSError:
        return None
    finally:
        os.close(fd)
    # Counted from the state, which follows the name: 1 the parent, 17 the threads, 21 the resident pages.
    return _Process(int(fields[1]), int(fields[17]), int(fields[21])) if len(fields) > 21 else None


def _top_of(pid: int, processes: dict[int, _Process], owner: dict[int, int]) -> int:
    """The call that a process belongs to, or 0. Remembered for every process on the way up."""
    way: list[int] = []
    while pid not in owner and pid in processes:
        way.append(pid)
        owner[pid] = 0  # until we know better; a ring cannot hold us up either
        pid = processes[pid].parent
    top = owner.get(pid, 0)
    owner.update(dict.fromkeys(way, top))
    return top


def _sum(processes: dict[int, _Process], pids: list[int]) -> Usage:
    known = [processes[pid] for pid in pids if pid in processes]
    return Usage(sum(each.threads for each in known), sum(each.pages for each in known) * _PAGE, tuple(pids))


def _kilobytes(path: str, name: bytes) -> int | None:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(name):
                    return int(line.split()[1])
    except OSError:
        return None
    return None
