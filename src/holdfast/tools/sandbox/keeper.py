"""Where no pid namespace can be had: a process between the fork server and the tool that no descendant can escape.

It adopts every orphan below it, so that a tool that forks twice and calls setsid is still its child in the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection
from typing import Final

from holdfast.tools.sandbox import linux

_WAITED_FOR: Final = (signal.SIGCHLD, signal.SIGTERM)


def keep(scratch_root: str, work: Callable[[str], None]) -> int:
    """Run `work` in a child with a private directory; return its exit code once all it started is dead.

    SIGTERM, from the fork server or by its death, ends the call.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    signal.set_wakeup_fd(-1)
    # A handler must exist, or the kernel would discard the signal instead of leaving it pending for sigwait.
    signal.signal(signal.SIGCHLD, _pending)
    linux.adopt_orphans()
    linux.die_with_parent(signal.SIGTERM)
    scratch = tempfile.mkdtemp(prefix="call-", dir=scratch_root)
    tool = os.fork()
    if tool == 0:
        try:
            os.setsid()
            work(scratch)
        finally:
            os._exit(1)
    code = -signal.SIGKILL
    while signal.sigwait(_WAITED_FOR) == signal.SIGCHLD:
        ended = reap().get(tool)
        if ended is not None:
            code = ended
            break
    end_children()
    shutil.rmtree(scratch, ignore_errors=True)
    return code


def reap() -> dict[int, int]:
    """Exit codes of the children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def end_children(spare: Collection[int] = ()) -> None:
    """Kill until none is left. Each round makes the last one's orphans our children, so all have their turn."""
    while has_children():
        targets = [pid for pid in _children() if pid not in spare]
        if not targets:
            return
        for pid in targets:
            os.kill(pid, signal.SIGKILL)
        for pid in targets:
            os.waitpid(pid, 0)


def has_children() -> bool:
    """The usual case, a tool that leaves nothing behind, is told by one call instead of a walk through /proc."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    me = str(os.getpid())
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _parent_of(entry) == me:
            found.append(int(entry))
    return found


def _parent_of(pid: str) -> str | None:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[1]
    except OSError:  # it ended while we were looking
        return None


def _pending(number: int, frame: object) -> None:
    """Never called: the signal stays blocked."""
