"""The few kernel calls that Python does not offer, through ctypes. Each raises OSError when the kernel says no."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

_libc: Final = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 32, 4096, 16384
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_MNT_DETACH: Final = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_CAPABILITY_VERSION_3: Final = 0x2008_0522
_CLOSE_RANGE: Final = 436  # the same on every architecture
_CLOSE_RANGE_SINCE: Final = (5, 9)
_ANY_CHILD: Final = (
    ctypes.c_int(os.P_ALL),
    ctypes.c_uint(0),
    ctypes.create_string_buffer(128),  # a siginfo_t
    ctypes.c_int(os.WEXITED | os.WNOHANG | os.WNOWAIT),
)
_RESET_SIGNALS: Final = tuple(int(one) for one in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM))
_DEFAULT_ACTION: Final = int(signal.SIG_DFL)
_signal: Final[Any] = importlib.import_module("_signal")  # what `signal` wraps in enums
_CAPABILITY_HEADER: Final = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES: Final = (ctypes.c_uint32 * 6)()
TOOL_UID: Final = 1000  # seen inside; not 0, so that no exec gives capabilities back


class SystemCall:
    """A function of libc and its arguments, made ready ahead of time: the call itself then touches few objects. A
    forked child copies each page of objects that it touches (decision 33)."""

    __slots__ = ("_arguments", "_function", "_name")

    def __init__(self, name: str, *arguments: object) -> None:
        self._name = name
        self._function = getattr(_libc, name, None)
        self._arguments = arguments

    def __call__(self) -> int:
        if self._function is None:
            raise OSError(0, f"{self._name} does not exist on {sys.platform}")
        result: int = self._function(*self._arguments)
        if result < 0:  # then errno is set
            code = ctypes.get_errno()
            raise OSError(code, f"{self._name}: {os.strerror(code)}")
        return result


def call(name: str, *arguments: object) -> int:
    return SystemCall(name, *arguments)()


def syscall_call(number: int, *arguments: object) -> SystemCall:
    return SystemCall("syscall", ctypes.c_long(number), *arguments)


def syscall(number: int, *arguments: object) -> int:
    return syscall_call(number, *arguments)()


def prctl_call(option: int, *arguments: object) -> SystemCall:
    values = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in (*arguments, 0, 0, 0, 0)[:4]]
    return SystemCall("prctl", ctypes.c_int(option), *values)


def prctl(option: int, *arguments: int) -> None:
    prctl_call(option, *arguments)()


def die_with_parent(with_signal: signal.Signals = signal.SIGKILL) -> None:
    prctl(_PR_SET_PDEATHSIG, int(with_signal))


def reset_signals() -> None:
    """As a new program has them. Enums would be a tenth of all the pages that a call has copied."""
    _signal.set_wakeup_fd(-1)
    for number in _RESET_SIGNALS:
        _signal.signal(number, _DEFAULT_ACTION)


def adopt_orphans() -> None:
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stay_open_to_ancestors() -> None:
    """New credentials close a process to all but root; the guard, outside with the same user, must see into it."""
    prctl(_PR_SET_DUMPABLE, 1)


def mount_call(kind: str, target: str, flags: int, options: str = "") -> SystemCall:
    return SystemCall("mount", kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    mount_call(kind, target, flags, options)()


def seal(directory: str) -> None:
    """Make it read-only for this mount namespace, but for what is mounted over directories inside it."""
    call("mount", directory.encode(), directory.encode(), None, ctypes.c_ulong(_MS_BIND), None)
    flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    call("mount", None, directory.encode(), None, ctypes.c_ulong(flags), None)


def cover(path: str) -> None:
    """Put something empty over a file or directory, for this mount namespace and those made from it."""
    if os.path.isdir(path):
        mount("tmpfs", path, _MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=0")
    elif os.path.exists(path):
        call("mount", os.devnull.encode(), path.encode(), None, ctypes.c_ulong(_MS_BIND), None)


def show_only(directory: str, names: Iterable[str]) -> None:
    """Put a new directory over this one and, in it, what these names lead to. Files made later are not seen."""
    kept: dict[str, int] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
            kept[name] = os.open(os.path.join(directory, name), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    mount("tmpfs", directory, MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    for name, handle in kept.items():
        target, mode = os.path.join(directory, name), os.fstat(handle).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink("", dir_fd=handle), target)
            continue
        if stat.S_ISDIR(mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        flags = ctypes.c_ulong(_MS_BIND | _MS_REC)
        call("mount", f"/proc/self/fd/{handle}".encode(), target.encode(), None, flags, None)
    for handle in kept.values():
        os.close(handle)


def make_all_read_only() -> None:
    """Every mount there is, for this mount namespace; what is mounted later is not. Since Linux 5.12."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    syscall(_MOUNT_SETATTR, ctypes.c_int(_AT_FDCWD), b"/", ctypes.c_uint(_AT_RECURSIVE), attributes, size)


def become_user(uid: int) -> None:
    """Cannot be undone. The group gets the same number. Files of root, and signals to it, are then out of reach."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    prctl(_PR_SET_DUMPABLE, 1)  # otherwise its own /proc/self would be closed to it


def unshare_call(flags: int) -> SystemCall:
    return SystemCall("unshare", ctypes.c_int(flags))


def unshare(flags: int) -> None:
    unshare_call(flags)()


def enter_pid_namespace_call(fd: int) -> SystemCall:
    """Affects children to come, never the caller."""
    return SystemCall("setns", ctypes.c_int(fd), ctypes.c_int(CLONE_NEWPID))


def create_namespaces() -> None:
    """Go on as process 1 of new user, pid and mount namespaces. The caller stays outside and ends with that process.

    To create a pid namespace for every call, and to come back from it, a process must own its pid namespace too; under
    bubblewrap it does not, hence one more level.
    """
    _uncover_proc()
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"{TOOL_UID} {uid} 1")
    write_file("/proc/self/gid_map", f"{TOOL_UID} {gid} 1")
    die_with_parent()  # a change of credentials clears it
    inside = os.fork()
    if inside:
        # The control socket stays open here: the server sees it close only once the whole namespace is gone.
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) & 0xFF)
    die_with_parent()
    mount_proc()


def close_from_call(lowest: int) -> Callable[[], object]:
    if release() < _CLOSE_RANGE_SINCE:
        return partial(os.closerange, lowest, os.sysconf("SC_OPEN_MAX"))
    return syscall_call(_CLOSE_RANGE, ctypes.c_uint(lowest), ctypes.c_uint(0xFFFF_FFFF), ctypes.c_uint(0))


def has_children() -> bool:
    """Python's own would raise for none, which is the usual case, and an exception touches many pages."""
    return _libc.waitid(*_ANY_CHILD) == 0


mount_proc: Final = mount_call("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
drop_capabilities: Final = SystemCall("capset", _CAPABILITY_HEADER, _NO_CAPABILITIES)
forbid_new_privileges: Final = prctl_call(_PR_SET_NO_NEW_PRIVS, 1)
be_killed_with_parent: Final = prctl_call(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def release() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor.partition("-")[0])


def works(attempt: Callable[[], None]) -> bool:
    """Whether the attempt succeeds, found out in a process that is thrown away."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            attempt()
            code = 0
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _uncover_proc() -> None:
    """For root, bubblewrap hides parts of /proc under mounts; the kernel then refuses a fresh /proc further in."""
    with open("/proc/self/mountinfo") as table:
        covers = [line.split()[4] for line in table]
    for path in covers:
        if path.startswith("/proc/") and "/proc/sys" not in path:
            try:
                call("umount2", path.encode(), ctypes.c_int(_MNT_DETACH))
            except OSError:
                return  # not ours to lift; mounting /proc will tell whether that matters


def write_file(path: str, text: str) -> None:
    """A setting of the kernel: in one write, and without the layers of a text file."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
