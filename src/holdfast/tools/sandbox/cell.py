"""The room one call runs in: what a forked child does to itself before it touches the tool's code.

Order matters. Mounts need capabilities, so they come before those are dropped; seccomp forbids mounting and landlock
forbids reaching out, so both come last. Nothing here is skipped when it fails: a wall that was announced must stand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import stat
import sys
import time
from typing import Final

import msgspec

from holdfast.tools.base import Job
from holdfast.tools.sandbox import cgroups, egress, hiding, landlock, linux, seccomp
from holdfast.tools.sandbox.contract import CALL, CallsCgroup, Limits, ZygoteConfig

ANSWER_FD, DOORBELL_FD, INBOX_FD = 3, 4, 5
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_SHARED_MEMORY: Final = "/dev/shm"
_CPU_GRACE_S: Final = 5
_FIXED: Final = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb"}
_OWN_PID_MAX_SINCE: Final = (6, 14)
_PIDS_FLOOR: Final = 301  # the kernel accepts no smaller pid_max
# The kernel stops a call a little above the limit, so that the fork server finds it above and can say why it ended it.
_HEADROOM: Final = 64
_CALLS_SHARE: Final = 4  # how many calls at their limit the one count for all calls has room for
_OOM_SCORE: Final = "500"  # should the machine run out of memory, tools go first
_FIRST_USER: Final = 2_000_000_000
# What tells nothing of other processes. A child of the tool cannot read its own directory in /proc: rules are by inode.
_PROC_NAMES: Final = "self cpuinfo meminfo stat uptime loadavg version filesystems devices sys"
_PROC: Final = tuple(f"/proc/{name}" for name in _PROC_NAMES.split())
_NO_FILE_WALL: Final = (
    "nothing keeps tools away from the data directory: this kernel has neither user namespaces nor landlock"
)
_NO_SIGNAL_WALL: Final = (
    "nothing keeps tools from killing the server: this kernel has neither user namespaces nor landlock of Linux 6.12"
)


class Pipes(msgspec.Struct, frozen=True):
    """The child's ends."""

    doorbell: int
    inbox: int
    stdout: int
    stderr: int
    answer: int


class Place(msgspec.Struct, frozen=True):
    """What a call has for itself."""

    scratch: str
    user: int | None = None
    cgroup: cgroups.Cgroup | None = None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What was found to work on this machine, once, when the fork server started."""

    config: ZygoteConfig
    namespaces: bool
    landlock_abi: int
    seccomp_program: bytes | None
    own_users: bool  # each call runs as a user of its own, who owns nothing but the call's directory
    is_read_only: bool  # every mount but those of a call
    readable: tuple[int, ...]
    writable: tuple[int, ...]
    egress: egress.Standing
    calls: cgroups.Calls | None = None  # the cgroup of all calls

    @property
    def isolation(self) -> str:
        parts = [self.config.shell]
        parts += ["namespaces"] if self.namespaces else []
        parts += ["users"] if self.own_users else []
        parts += ["landlock"] if self.landlock_abi else []
        parts += ["seccomp"] if self.seccomp_program else []
        parts += ["cgroups"] if self.calls else []
        parts += [self.egress] if self.egress else []
        return "+".join(parts)

    @property
    def refusal(self) -> str:
        """Why tools should not be run behind these walls, or nothing."""
        walled = self.config.shell == "bubblewrap"
        if not (walled or self.landlock_abi or (self.namespaces and self.is_read_only)):
            return _NO_FILE_WALL
        if not (walled or self.namespaces or self.own_users or self.landlock_abi >= landlock.SCOPES_SINCE):
            return _NO_SIGNAL_WALL
        if not (walled or self.landlock_abi) and (problem := hiding.too_full(self.config.hidden)):
            return problem
        seen = [path for path in self.config.hidden if not linux.works(lambda path=path: _try_to_see(self, path))]
        if seen:
            return f"tools could see {', '.join(seen)}: move the data directory and the database out of the way"
        return ""


def survey(config: ZygoteConfig, namespaces: bool, is_read_only: bool, standing: egress.Standing) -> Cell:
    abi = landlock.version() if config.walls.landlock else 0
    abi = abi if config.walls.signal_scope else min(abi, landlock.SCOPES_SINCE - 1)
    readable, writable = _rules(config, namespaces) if abi else ((), ())
    filter_program = seccomp.program(counts_writes=not namespaces) if config.walls.seccomp else None
    could_switch = config.shell == "process" and not namespaces and config.walls.own_users and os.geteuid() == 0

    def restrict() -> None:
        linux.forbid_new_privileges()
        landlock.restrict(abi, landlock.open_paths(readable), ())

    def filter_calls() -> None:
        linux.forbid_new_privileges()
        seccomp.install(filter_program or b"")

    cell = Cell(
        config=config,
        namespaces=namespaces,
        landlock_abi=abi if abi and linux.works(restrict) else 0,
        seccomp_program=filter_program if filter_program and linux.works(filter_calls) else None,
        own_users=could_switch and linux.works(lambda: _try_own_user(config.scratch)),
        is_read_only=is_read_only,
        readable=tuple(landlock.open_paths(readable)),
        writable=tuple(landlock.open_paths(writable)),
        egress=standing,
    )
    calls = _calls_that_work(cell, config.cgroup) if config.cgroup is not None else None
    return msgspec.structs.replace(cell, calls=calls)


def _calls_that_work(cell: Cell, handed: CallsCgroup) -> cgroups.Calls | None:
    """Tried with one process, as a tool."""
    calls = cgroups.Calls(os.dup(handed.directory), cell.config.limits)  # with a number that no child needs
    try:
        probe = calls.add()
    except OSError:
        return None
    works = linux.works(lambda: _try_cgroup(cell, handed, calls, probe))
    probe.remove()
    return calls if works else None


def _try_cgroup(cell: Cell, handed: CallsCgroup, calls: cgroups.Calls, probe: cgroups.Cgroup) -> None:
    """Raises if a process cannot be limited, and if a tool could lift its limits."""
    probe.join()
    probe.check()
    fork_server = os.getppid()
    _build_walls(cell, cell.config.scratch, user_of(0) if cell.own_users else None)
    ways = [handed.path]
    if not cell.namespaces:  # with them, no call sees the fork server
        ways += [f"/proc/{fork_server}/fd/{calls.directory}"]
    open_to_tools = [path for way in ways for path in (f"{way}/memory.max", f"{way}/cgroup.procs") if _can_write(path)]
    if open_to_tools:
        raise PermissionError(f"tools could write to {', '.join(open_to_tools)}")


def _can_write(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        return False
    return True


def _rules(config: ZygoteConfig, namespaces: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What tools may read and write.

    A rule on a file system that dies with the call holds up that call's end by milliseconds. So the rule for a mount
    sits on the directory that contains its mount point, which counts for all below. Under bubblewrap that is safe to do
    generously: all there is to see is meant to be seen, and all but the private mounts is read-only.
    """
    scratch = (config.scratch,) if namespaces else ()
    if config.shell == "bubblewrap" and namespaces:
        return ("/",), (*scratch, "/dev")
    if config.shell == "bubblewrap":
        # Calls share one /proc here, so it is left out, and with it the rule on "/".
        return tuple(f"/{name}" for name in os.listdir("/") if name not in ("proc", "scratch")), ("/dev",)
    return hiding.around(config.readable, config.hidden), (*scratch, *_DEVICES)


def user_of(slot: int) -> int:
    """A user id that nobody has: high, but one that exists in this user namespace."""
    with open("/proc/self/uid_map") as table:
        ends = [int(first) + int(count) for first, _, count in (line.split() for line in table)]
    return min(_FIRST_USER, max(ends) - 4096) + slot


def _try_own_user(scratch: str) -> None:
    """Python, its packages, this package and the calls' directory must stay in reach; root may keep them to itself.

    The guard of the egress policy must still see into processes of another user, for which root needs CAP_SYS_PTRACE.
    """
    linux.become_user(user_of(0))
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex("/nowhere") == errno.EPERM:
            raise OSError(errno.EPERM, "the guard cannot see into processes of another user")
    for path in (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), os.path.dirname(msgspec.__file__)):
        os.listdir(path)
    os.stat(__file__)
    os.stat(os.path.join(scratch, CALL))


def _try_to_see(cell: Cell, path: str) -> None:
    """As a tool would. Raises if there is anything to see."""
    _build_walls(cell, cell.config.scratch, user_of(0) if cell.own_users else None)
    try:
        seen: object = os.listdir(path) if os.path.isdir(path) else os.open(path, os.O_RDONLY)
    except OSError:
        return
    if isinstance(seen, int) and stat.S_ISCHR(os.fstat(seen).st_mode):
        return  # covered by /dev/null
    if seen:
        raise OSError(f"{path} can be seen")


def enter(cell: Cell, pipes: Pipes, place: Place) -> None:
    _take_over(pipes)
    if place.cgroup is not None:
        place.cgroup.join()
    if cell.namespaces:
        _mount_private(cell.config, place.scratch)
    os.chdir(place.scratch)
    _limit(cell.config.limits)
    _limit_tasks(cell)
    _build_walls(cell, place.scratch, place.user)
    _lower(resource.RLIMIT_NOFILE, cell.config.limits.open_files)  # now: rules may have taken more
    os.environ.clear()
    os.environ.update(cell.config.environment)
    os.environ.update({"HOME": place.scratch, "TMPDIR": place.scratch, **_FIXED})


def wait_for_job() -> bytes:
    """The job, or nothing when the fork server went away instead."""
    if not os.read(DOORBELL_FD, 1):
        return b""
    size, pieces = os.fstat(INBOX_FD).st_size, bytearray()
    while len(pieces) < size:
        pieces += os.pread(INBOX_FD, size - len(pieces), len(pieces))
    os.close(DOORBELL_FD)
    os.close(INBOX_FD)
    return bytes(pieces)


def admit(job: Job, cell: Cell) -> None:
    """What depends on the job: its network, its time and its environment."""
    if job.egress is not None:
        egress.narrow(job.egress, cell.egress)
    _lower(resource.RLIMIT_CPU, int(job.timeout_s) + _CPU_GRACE_S)
    os.environ.update(job.environment)
    os.environ.update(
        {
            "HOLDFAST_CALL_ID": job.call_id,
            "LETTA_AGENT_ID": job.agent_id or "",
            "LETTA_TOOL_ID": job.tool_id or "",
            **_FIXED,
        }
    )
    if "TZ" in job.environment:
        time.tzset()


def _take_over(pipes: Pipes) -> None:
    """Only stdin (empty), stdout, stderr and the answer stay open: no other call's pipes, no control socket."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    nothing = os.open(os.devnull, os.O_RDONLY)
    for have, want in ((nothing, 0), (pipes.stdout, 1), (pipes.stderr, 2)):
        os.dup2(have, want)
    for have, want in ((pipes.answer, ANSWER_FD), (pipes.doorbell, DOORBELL_FD), (pipes.inbox, INBOX_FD)):
        os.dup2(have, want, inheritable=False)


def _mount_private(config: ZygoteConfig, scratch: str) -> None:
    """The file system of this call alone; it vanishes with the call's last process."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount_proc()
    size = f"size={config.limits.scratch_bytes},nr_inodes={config.limits.scratch_files}"
    linux.mount("tmpfs", scratch, linux.MS_NOSUID | linux.MS_NODEV, f"{size},mode=0700")
    if config.shell == "bubblewrap" and os.path.isdir(_SHARED_MEMORY):
        linux.mount("tmpfs", _SHARED_MEMORY, linux.MS_NOSUID | linux.MS_NODEV, f"{size},mode=1777")
    _limit_pids(config.limits.processes + _HEADROOM)


def _limit_pids(processes: int) -> None:
    """Kernels before 6.14 have one pid_max for the machine, which root would lower for everybody."""
    if linux.release() < _OWN_PID_MAX_SINCE:
        return  # there RLIMIT_NPROC has to do
    with contextlib.suppress(OSError), open("/proc/sys/kernel/pid_max", "w") as setting:
        setting.write(str(max(processes, _PIDS_FLOOR)))


def _limit(limits: Limits) -> None:
    _lower(resource.RLIMIT_AS, limits.memory_bytes)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_MSGQUEUE, 0)  # queues outlive the call
    with open("/proc/self/oom_score_adj", "w") as setting:
        setting.write(_OOM_SCORE)


def _limit_tasks(cell: Cell) -> None:
    """The kernel counts the tasks of a user, in his user namespace: those of this call, of all calls, or of many more.

    Where others count too there has to be room for them, or a call would be refused a process that is its due, and one
    that makes too many would never be found to have too many.
    """
    most = cell.config.limits.processes + _HEADROOM
    if not cell.own_users:
        most *= _CALLS_SHARE
    if not (cell.namespaces or cell.own_users):
        most += _tasks_of_the_machine()  # of which this user's are a part
    _lower(resource.RLIMIT_NPROC, most)


def _tasks_of_the_machine() -> int:
    with open("/proc/loadavg") as load:
        return int(load.read().split()[3].partition("/")[2])


def _lower(kind: int, wanted: int) -> None:
    allowed = resource.getrlimit(kind)[1]
    limit = wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed)
    resource.setrlimit(kind, (limit, limit))


def _build_walls(cell: Cell, scratch: str, user: int | None) -> None:
    # Opened before the user changes, who may not get there by name.
    proc = landlock.open_paths(_proc_paths(cell)) if cell.landlock_abi else []
    writable = landlock.open_paths((scratch,)) if cell.landlock_abi and not cell.namespaces else []
    if user is not None:
        linux.become_user(user)
    linux.drop_capabilities()
    linux.die_with_parent()
    linux.forbid_new_privileges()
    if cell.landlock_abi:
        landlock.restrict(cell.landlock_abi, (*cell.readable, *proc), (*cell.writable, *writable))
    linux.close_from(INBOX_FD + 1)
    if cell.seccomp_program:
        seccomp.install(cell.seccomp_program)


def _proc_paths(cell: Cell) -> tuple[str, ...]:
    """In a pid namespace all of /proc is the call's own. With bubblewrap the rule on "/" counts for it too."""
    if cell.namespaces:
        return () if cell.config.shell == "bubblewrap" else ("/proc",)
    return _PROC
