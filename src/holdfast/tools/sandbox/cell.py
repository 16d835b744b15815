"""The room one call runs in: what a forked child does to itself before it touches the tool's code.

Order matters. Mounts need capabilities, so they come before those are dropped; seccomp forbids mounting and landlock
forbids reaching out, so both come last. Nothing here is skipped when it fails: a wall that was announced must stand.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import Final

import msgspec

from holdfast.tools.base import Job
from holdfast.tools.sandbox import egress, landlock, linux, seccomp
from holdfast.tools.sandbox.contract import Limits, ZygoteConfig

ANSWER_FD, DOORBELL_FD, INBOX_FD = 3, 4, 5
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_SHARED_MEMORY: Final = "/dev/shm"
_CPU_GRACE_S: Final = 5
_FIXED: Final = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb"}
_PIDS_FLOOR: Final = 301  # the kernel accepts no smaller pid_max


class Pipes(msgspec.Struct, frozen=True):
    """The child's ends."""

    doorbell: int
    inbox: int
    stdout: int
    stderr: int
    answer: int


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What was found to work on this machine, once, when the fork server started."""

    config: ZygoteConfig
    namespaces: bool
    landlock_abi: int
    seccomp_program: bytes | None
    readable: tuple[int, ...]
    writable: tuple[int, ...]
    egress: egress.Standing

    @property
    def isolation(self) -> str:
        parts = [self.config.shell]
        parts += ["namespaces"] if self.namespaces else []
        parts += ["landlock"] if self.landlock_abi else []
        parts += ["seccomp"] if self.seccomp_program else []
        parts += [self.egress] if self.egress else []
        return "+".join(parts)


def survey(config: ZygoteConfig, namespaces: bool, standing: egress.Standing) -> Cell:
    abi = landlock.version() if config.walls.landlock else 0
    readable, writable = _rules(config, namespaces) if abi else ((), ())
    filter_program = seccomp.program() if config.walls.seccomp else None

    def restrict() -> None:
        linux.forbid_new_privileges()
        landlock.restrict(abi, landlock.open_paths(readable), ())

    def filter_calls() -> None:
        linux.forbid_new_privileges()
        seccomp.install(filter_program or b"")

    return Cell(
        config=config,
        namespaces=namespaces,
        landlock_abi=abi if abi and linux.works(restrict) else 0,
        seccomp_program=filter_program if filter_program and linux.works(filter_calls) else None,
        readable=tuple(landlock.open_paths(readable)),
        writable=tuple(landlock.open_paths(writable)),
        egress=standing,
    )


def _rules(config: ZygoteConfig, namespaces: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What tools may read and write.

    A rule on a file system that dies with the call holds up that call's end by milliseconds. So the rule for a mount
    sits on the directory that contains its mount point, which counts for all below. Under bubblewrap that is safe to do
    generously: all there is to see is meant to be seen, and all but the private mounts is read-only.
    """
    scratch = (config.scratch,) if namespaces else ()
    if config.shell == "bubblewrap":
        return ("/",), (*scratch, "/dev")
    return config.readable, (*scratch, *_DEVICES)


def enter(cell: Cell, pipes: Pipes, scratch: str) -> None:
    _take_over(pipes)
    if cell.namespaces:
        _mount_private(cell.config, scratch)
    os.chdir(scratch)
    _limit(cell.config.limits, cell.namespaces)
    _build_walls(cell, scratch)
    os.environ.clear()
    os.environ.update(cell.config.environment)
    os.environ.update({"HOME": scratch, "TMPDIR": scratch, **_FIXED})


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
    size = f"size={config.limits.scratch_bytes},nr_inodes=65536"
    linux.mount("tmpfs", scratch, linux.MS_NOSUID | linux.MS_NODEV, f"{size},mode=0700")
    if config.shell == "bubblewrap" and os.path.isdir(_SHARED_MEMORY):
        linux.mount("tmpfs", _SHARED_MEMORY, linux.MS_NOSUID | linux.MS_NODEV, f"{size},mode=1777")
    _limit_pids(config.limits.processes)


def _limit_pids(processes: int) -> None:
    """Kernels before 6.14 have one pid_max for all; there RLIMIT_NPROC has to do."""
    try:
        with open("/proc/sys/kernel/pid_max", "w") as setting:
            setting.write(str(max(processes, _PIDS_FLOOR)))
    except OSError:
        return


def _limit(limits: Limits, own_users: bool) -> None:
    _lower(resource.RLIMIT_AS, limits.memory_bytes)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_CORE, 0)
    if own_users:
        # Without a user namespace the count would include every process of the server's user.
        _lower(resource.RLIMIT_NPROC, limits.processes)


def _lower(kind: int, wanted: int) -> None:
    allowed = resource.getrlimit(kind)[1]
    limit = wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed)
    resource.setrlimit(kind, (limit, limit))


def _build_walls(cell: Cell, scratch: str) -> None:
    linux.drop_capabilities()
    linux.die_with_parent()
    linux.forbid_new_privileges()
    if cell.landlock_abi:
        # Without bubblewrap /proc needs its own rule, as it must not be one on "/".
        readable = () if cell.config.shell == "bubblewrap" else landlock.open_paths(("/proc",))
        writable = () if cell.namespaces else landlock.open_paths((scratch,))
        landlock.restrict(cell.landlock_abi, (*cell.readable, *readable), (*cell.writable, *writable))
    linux.close_from(INBOX_FD + 1)
    if cell.seccomp_program:
        seccomp.install(cell.seccomp_program)
