"""Which layers of isolation work on this machine, and how a process puts itself behind them.

Each layer is tried once, when the fork server starts, in a process that is thrown away. What does not work is left out,
and missing from the text that the server prints.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from holdfast.tools.sandbox import cgroups, egress_filter, hidden_paths, landlock, linux, seccomp
from holdfast.tools.sandbox.contract import CALL, CallsCgroup, ForkServerConfig

Step = Callable[[], object]
ANSWER_FD, START_FD, JOB_FD = 3, 4, 5  # in a sandbox child; all above are closed
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_FIRST_USER: Final = 2_000_000_000
# Files of /proc that say nothing about other processes. A child of the tool cannot read its own directory in /proc:
# landlock's rules are by inode.
_PROC_NAMES: Final = "self cpuinfo meminfo stat uptime loadavg version filesystems devices sys"
_PROC: Final = tuple(f"/proc/{name}" for name in _PROC_NAMES.split())
_NO_FILE_ISOLATION: Final = (
    "nothing keeps tools away from the data directory: this kernel has neither user namespaces nor landlock"
)
_NO_SIGNAL_ISOLATION: Final = (
    "nothing keeps tools from killing the server: this kernel has neither user namespaces nor landlock of Linux 6.12"
)


class ActiveIsolation(msgspec.Struct, frozen=True, kw_only=True):
    """The layers that were found to work."""

    config: ForkServerConfig
    namespaces: bool
    landlock_abi: int
    seccomp_program: bytes | None
    own_users: bool  # each call runs as a user of its own, who owns nothing but the call's directory
    is_read_only: bool  # every mount but those of a call
    readable: tuple[int, ...]
    writable: tuple[int, ...]
    egress: egress_filter.EgressLayer
    shared_rules: int | None = None  # of landlock, where no call needs rules of its own
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
        """Why tools should not be run behind these layers. Empty when they may."""
        in_bubblewrap = self.config.shell == "bubblewrap"
        if not (in_bubblewrap or self.landlock_abi or (self.namespaces and self.is_read_only)):
            return _NO_FILE_ISOLATION
        if not (in_bubblewrap or self.namespaces or self.own_users or self.landlock_abi >= landlock.SCOPES_SINCE):
            return _NO_SIGNAL_ISOLATION
        if not (in_bubblewrap or self.landlock_abi) and (problem := hidden_paths.too_full(self.config.hidden)):
            return problem
        seen = [path for path in self.config.hidden if not linux.works(lambda path=path: _try_to_see(self, path))]
        if seen:
            return f"tools could see {', '.join(seen)}: move the data directory and the database out of the way"
        return ""


def detect(
    config: ForkServerConfig, namespaces: bool, is_read_only: bool, egress_layer: egress_filter.EgressLayer
) -> ActiveIsolation:
    abi = landlock.version() if config.layers.landlock else 0
    abi = abi if config.layers.signal_scope else min(abi, landlock.SCOPES_SINCE - 1)
    readable, writable = _rules(config, namespaces) if abi else ((), ())
    filter_program = seccomp.program(counts_writes=not namespaces) if config.layers.seccomp else None
    could_switch = config.shell == "process" and not namespaces and config.layers.own_users and os.geteuid() == 0

    def restrict() -> None:
        linux.forbid_new_privileges()
        landlock.restrict(abi, landlock.open_paths(readable), ())

    def filter_calls() -> None:
        linux.forbid_new_privileges()
        seccomp.install(filter_program or b"")

    active = ActiveIsolation(
        config=config,
        namespaces=namespaces,
        landlock_abi=abi if abi and linux.works(restrict) else 0,
        seccomp_program=filter_program if filter_program and linux.works(filter_calls) else None,
        own_users=could_switch and linux.works(lambda: _try_own_user(config.scratch)),
        is_read_only=is_read_only,
        readable=tuple(landlock.open_paths(readable)),
        writable=tuple(landlock.open_paths(writable)),
        egress=egress_layer,
    )
    if active.landlock_abi and active.namespaces and not _proc_paths(active):
        rules = landlock.ruleset(active.landlock_abi, active.readable, active.writable)
        active = msgspec.structs.replace(active, shared_rules=rules)
    calls = _working_cgroup(active, config.cgroup) if config.cgroup is not None else None
    return msgspec.structs.replace(active, calls=calls)


def _working_cgroup(active: ActiveIsolation, handed: CallsCgroup) -> cgroups.Calls | None:
    """The cgroup of all calls, if a process in it is limited and cannot lift its limits."""
    calls = cgroups.Calls(os.dup(handed.directory), active.config.limits)  # with a number that no child needs
    try:
        probe = calls.add()
    except OSError:
        return None
    works = linux.works(lambda: _try_cgroup(active, handed, calls, probe))
    probe.remove()
    return calls if works else None


def _try_cgroup(active: ActiveIsolation, handed: CallsCgroup, calls: cgroups.Calls, probe: cgroups.Cgroup) -> None:
    """Raises if a process cannot be limited, and if a tool could lift its limits."""
    probe.join()
    probe.check()
    fork_server = os.getppid()
    apply(active, active.config.scratch, user_of(0) if active.own_users else None)
    ways = [handed.path]
    if not active.namespaces:  # with them, no call sees the fork server
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


def _rules(config: ForkServerConfig, namespaces: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
    return hidden_paths.around(config.readable, config.hidden), (*scratch, *_DEVICES)


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


def _try_to_see(active: ActiveIsolation, path: str) -> None:
    """As a tool would. Raises if there is anything to see."""
    apply(active, active.config.scratch, user_of(0) if active.own_users else None)
    try:
        seen: object = os.listdir(path) if os.path.isdir(path) else os.open(path, os.O_RDONLY)
    except OSError:
        return
    if isinstance(seen, int) and stat.S_ISCHR(os.fstat(seen).st_mode):
        return  # covered by /dev/null
    if seen:
        raise OSError(f"{path} can be seen")


def steps(active: ActiveIsolation, scratch: str, user: int | None) -> Iterator[Step]:
    """Put the process that takes them, and all that it starts, behind every active layer. Cannot be undone."""
    own_rules = bool(active.landlock_abi) and active.shared_rules is None
    rules = OwnRules(active, scratch)
    if own_rules:
        yield rules.open
    if user is not None:
        yield partial(linux.become_user, user)
    yield linux.drop_capabilities
    yield linux.be_killed_with_parent
    yield linux.forbid_new_privileges
    if own_rules:
        yield rules.enforce
    elif active.shared_rules is not None:
        yield landlock.enforce_call(active.shared_rules)
    yield linux.close_from_call(JOB_FD + 1)
    if active.seccomp_program:
        yield seccomp.install_call(active.seccomp_program)


def apply(active: ActiveIsolation, scratch: str, user: int | None) -> None:
    for step in steps(active, scratch, user):
        step()


class OwnRules:
    """Of landlock, where they differ from call to call."""

    def __init__(self, active: ActiveIsolation, scratch: str) -> None:
        self._active = active
        self._scratch = scratch
        self._readable: list[int] = []
        self._writable: list[int] = []

    def open(self) -> None:
        """Before the user changes: the new one may not be able to open them by name."""
        self._readable = landlock.open_paths(_proc_paths(self._active))
        self._writable = [] if self._active.namespaces else landlock.open_paths((self._scratch,))

    def enforce(self) -> None:
        active = self._active
        landlock.restrict(active.landlock_abi, (*active.readable, *self._readable), (*active.writable, *self._writable))


def _proc_paths(active: ActiveIsolation) -> tuple[str, ...]:
    """In a pid namespace all of /proc is the call's own. With bubblewrap the rule on "/" counts for it too."""
    if active.namespaces:
        return () if active.config.shell == "bubblewrap" else ("/proc",)
    return _PROC
