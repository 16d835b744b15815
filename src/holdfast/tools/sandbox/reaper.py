"""The reaper: a process between the fork server and the tool, used where there is no pid namespace.

It is a child subreaper (prctl): every orphan below it becomes its child, also one that forked twice and called setsid.
So it can kill all that a call has started. It also checks the size of the call's directory, which is on a shared disk.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from holdfast.tools.sandbox import call_limits, cgroups, landlock, linux, process_usage
from holdfast.tools.sandbox.contract import Limits

_WAITED_FOR: Final = (signal.SIGCHLD, signal.SIGTERM)
# Deleted files are not found in the directory but may still take space, so the bytes written in all are limited too.
_WRITTEN_SHARE: Final = 8


class ReaperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The call that a reaper runs and ends."""

    fork_server: int  # its process id
    scratch: str  # the call's own directory
    user: int | None  # the call's own user
    limits: Limits
    confines_signals: bool
    limit_pipe: int  # where to write which limit the call was ended for
    cgroup: cgroups.Cgroup | None  # the call's own


def run_call(config: ReaperConfig, work: Callable[[], None]) -> int:
    """Run `work` in a child; return its exit code once all it started is dead and its directory is gone.

    SIGTERM, from the fork server or by its death, ends the call.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    signal.set_wakeup_fd(-1)
    # A handler must exist, or the kernel would discard the signal instead of leaving it pending for sigwait.
    signal.signal(signal.SIGCHLD, _pending)
    linux.adopt_orphans()
    linux.die_with_parent(signal.SIGTERM)
    if os.getppid() != config.fork_server:
        return -signal.SIGKILL  # it ended before that, so no signal comes
    os.mkdir(config.scratch, 0o700)
    if config.user is not None:
        os.chown(config.scratch, config.user, config.user)
    if config.confines_signals:
        linux.forbid_new_privileges()
        landlock.confine_signals()
    tool = os.fork()
    if tool == 0:
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            work()
        finally:
            os._exit(1)
    code = _wait(config, tool)
    kill_children(config=config)
    remove_directory(config.scratch)
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


def kill_children(spare: Collection[int] = (), config: ReaperConfig | None = None) -> None:
    """Kill until none is left. Each round makes the last one's orphans our children, so all have their turn."""
    while linux.has_children():
        if config is not None:
            _kill_all_below(config)
        targets = [pid for pid in _children() if pid not in spare]
        if not targets:
            return
        for pid in targets:
            os.kill(pid, signal.SIGKILL)
        for pid in targets:
            os.waitpid(pid, 0)


def remove_directory(directory: str) -> None:
    """Also directories whose permissions a tool has taken away."""

    def reopen(function: Callable[..., Any], path: str, _: object) -> None:
        try:
            os.chmod(os.path.dirname(path), 0o700)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                os.chmod(path, 0o700)
        except OSError:
            return

    import shutil  # noqa: PLC0415 - brings four libraries for archives into every call

    for _ in range(8):
        shutil.rmtree(directory, onerror=reopen)
        if not os.path.lexists(directory):
            return


def _wait(config: ReaperConfig, tool: int) -> int:
    """The tool's exit code. The call's directory is checked once in a period, and never in a call shorter than that."""
    pause = call_limits.CHECK_S
    while True:
        received = signal.sigtimedwait(_WAITED_FOR, pause)
        if received is None:
            excess, pause = _exceeded_limit(config)
            if excess:
                os.write(config.limit_pipe, excess.encode())
                return -signal.SIGKILL
        elif received.si_signo == signal.SIGTERM:
            return -signal.SIGKILL
        elif (ended := reap().get(tool)) is not None:
            return ended


def _exceeded_limit(config: ReaperConfig) -> tuple[str, float]:
    """Which limit on files is exceeded, if any, and how long to wait before the next check."""
    begun = time.process_time()
    limits, me = config.limits, os.getpid()
    entries, size = process_usage.files_in(config.scratch)
    pids = process_usage.usage_below([me])[me].pids
    size += process_usage.deleted_bytes(pids, os.stat(config.scratch).st_dev)
    written = process_usage.bytes_written(pids)
    pause = call_limits.pause_after(time.process_time() - begun, share=5)
    if size > limits.scratch_bytes or written > _WRITTEN_SHARE * limits.scratch_bytes:
        return "disk", pause
    return "files" if entries > limits.scratch_files else "", pause


def _kill_all_below(config: ReaperConfig) -> None:
    """All at once, where that can be done: processes that fork faster than they are found would not be caught singly.

    A signal to "everybody" reaches whom the sender may signal. It is sent only where that is the call and nobody else.
    """
    if config.cgroup is not None:
        config.cgroup.kill()
    if config.user is not None:
        killer = os.fork()
        if killer == 0:
            try:
                linux.become_user(config.user)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(killer, 0)
    elif config.confines_signals and _cannot_reach_above():
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return


def _cannot_reach_above() -> bool:
    """Asked of the kernel each time, although the scope is in force: a mistake here would end every other process."""
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False


def _children() -> list[int]:
    me = str(os.getpid())
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _parent_of(entry) == me:
            found.append(int(entry))
    return found


def _parent_of(pid: str) -> str | None:
    try:
        with open(f"/proc/{pid}/stat") as stat_file:
            return stat_file.read().rpartition(")")[2].split()[1]
    except OSError:  # it ended while we were looking
        return None


def _pending(number: int, frame: object) -> None:
    """Never called: the signal stays blocked."""
