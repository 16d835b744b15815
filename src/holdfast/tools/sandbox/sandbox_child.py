"""What a forked child does to itself before it runs a tool's code: the sandbox of one call.

Order matters. Mounts need capabilities, so they come before those are dropped. Seccomp forbids mounting and landlock
forbids reaching out, so both come last. A step that fails ends the call: a layer that was announced is never left out.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import msgspec

from holdfast.tools.base import Job
from holdfast.tools.sandbox import cgroups, egress_filter, isolation, linux
from holdfast.tools.sandbox.contract import CALL, ForkServerConfig
from holdfast.tools.sandbox.isolation import ANSWER_FD, JOB_FD, START_FD, ActiveIsolation, Step

_SHARED_MEMORY: Final = "/dev/shm"
_CPU_GRACE_S: Final = 5
_FIXED: Final = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb"}
_OWN_PID_MAX_SINCE: Final = (6, 14)
_PIDS_FLOOR: Final = 301  # the kernel accepts no smaller pid_max
# The kernel stops a call a little above the limit, so that the fork server finds it above and can say why it ended it.
_HEADROOM: Final = 64
_CALLS_SHARE: Final = 4  # how many calls at their limit the one count for all calls has room for
_OOM_SCORE: Final = "500"  # should the machine run out of memory, tools go first


class Pipes(msgspec.Struct, frozen=True):
    """The child's ends of its pipes, and its job."""

    start_pipe: int
    job_fd: int
    stdout: int
    stderr: int
    answer: int


class CallPlace(msgspec.Struct, frozen=True):
    scratch: str
    user: int | None = None  # whom the call runs as, if it has a user of its own


def setup(active: ActiveIsolation, place: CallPlace) -> Iterator[Step]:
    """What a child does to itself once it has its file descriptors. The fork server makes the steps ahead of time where
    they are the same for all calls."""
    config, limits = active.config, active.config.limits
    if active.namespaces:
        yield from _private_mounts(config, place.scratch)
    yield partial(os.chdir, place.scratch)
    yield _lower(resource.RLIMIT_AS, limits.memory_bytes)
    yield _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    yield _lower(resource.RLIMIT_CORE, 0)
    yield _lower(resource.RLIMIT_MSGQUEUE, 0)  # queues outlive the call
    yield _lower(resource.RLIMIT_NPROC, _most_tasks(active))
    yield partial(linux.write_file, "/proc/self/oom_score_adj", _OOM_SCORE)
    yield from isolation.steps(active, place.scratch, place.user)
    yield _lower(resource.RLIMIT_NOFILE, limits.open_files)  # now: rules may have taken more
    if os.environ["HOME"] != place.scratch:
        yield partial(set_home, place.scratch)


def enter(pipes: Pipes, cgroup: cgroups.Cgroup | None, steps: Iterable[Step]) -> None:
    _set_file_descriptors(pipes)
    if cgroup is not None:
        cgroup.join()
    for step in steps:
        step()


def prepare_environment(config: ForkServerConfig) -> None:
    """Once, in the fork server, for all calls."""
    os.environ.clear()
    os.environ.update(config.environment | _FIXED)
    set_home(os.path.join(config.scratch, CALL))


def set_home(scratch: str) -> None:
    os.environ["HOME"] = os.environ["TMPDIR"] = scratch


def wait_for_job() -> bytes:
    """The job. Empty when the fork server has ended instead."""
    if not os.read(START_FD, 1):
        return b""
    size, pieces = os.fstat(JOB_FD).st_size, bytearray()
    while len(pieces) < size:
        pieces += os.pread(JOB_FD, size - len(pieces), len(pieces))
    os.close(START_FD)
    os.close(JOB_FD)
    return bytes(pieces)


def apply_job(job: Job, active: ActiveIsolation) -> None:
    """What depends on the job: its network, its time and its environment."""
    if job.egress is not None:
        egress_filter.narrow(job.egress, active.egress)
    _lower(resource.RLIMIT_CPU, int(job.timeout_s) + _CPU_GRACE_S)()
    own = {"HOLDFAST_CALL_ID": job.call_id, "LETTA_AGENT_ID": job.agent_id or "", "LETTA_TOOL_ID": job.tool_id or ""}
    given = {**job.environment, **own, **_FIXED} if job.environment else own
    for name in given:  # `update` would do the same by way of abstract base classes
        os.environ[name] = given[name]
    if "TZ" in job.environment:
        time.tzset()


def _set_file_descriptors(pipes: Pipes) -> None:
    """Only stdin (empty), stdout, stderr and the answer stay open: no other call's pipes, no control socket."""
    linux.reset_signals()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for have, want in ((nothing, 0), (pipes.stdout, 1), (pipes.stderr, 2)):
        os.dup2(have, want)
    for have, want in ((pipes.answer, ANSWER_FD), (pipes.start_pipe, START_FD), (pipes.job_fd, JOB_FD)):
        os.dup2(have, want, inheritable=False)


def _private_mounts(config: ForkServerConfig, scratch: str) -> Iterator[Step]:
    """The file system of this call alone; it vanishes with the call's last process."""
    yield linux.unshare_call(linux.CLONE_NEWNS)
    yield linux.mount_proc
    size = f"size={config.limits.scratch_bytes},nr_inodes={config.limits.scratch_files}"
    yield linux.mount_call("tmpfs", scratch, linux.MS_NOSUID | linux.MS_NODEV, f"{size},mode=0700")
    if config.shell == "bubblewrap" and os.path.isdir(_SHARED_MEMORY):
        yield linux.mount_call("tmpfs", _SHARED_MEMORY, linux.MS_NOSUID | linux.MS_NODEV, f"{size},mode=1777")
    # Kernels before 6.14 have one pid_max for the machine, which root would lower for everybody; there RLIMIT_NPROC has
    # to do.
    if linux.release() >= _OWN_PID_MAX_SINCE:
        yield partial(_limit_pids, str(max(config.limits.processes + _HEADROOM, _PIDS_FLOOR)))


def _limit_pids(most: str) -> None:
    try:  # noqa: SIM105 - the pages of `contextlib` would be copied for every call
        linux.write_file("/proc/sys/kernel/pid_max", most)
    except OSError:
        pass


def _most_tasks(active: ActiveIsolation) -> int:
    """The kernel counts the tasks of a user, in his user namespace: those of this call, of all calls, or of many more.

    Where others count too there has to be room for them, or a call would be refused a process that is its due, and one
    that makes too many would never be found to have too many.
    """
    most = active.config.limits.processes + _HEADROOM
    if not active.own_users:
        most *= _CALLS_SHARE
    if not (active.namespaces or active.own_users):
        most += _tasks_of_the_machine()  # of which this user's are a part
    return most


def _tasks_of_the_machine() -> int:
    with open("/proc/loadavg") as load:
        return int(load.read().split()[3].partition("/")[2])


def _lower(kind: int, most: int) -> Step:
    """For this process or a child of it, which has the same limits."""
    allowed = resource.getrlimit(kind)[1]
    limit = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
    return partial(resource.setrlimit, kind, (limit, limit))
