"""A short list of system calls that no tool needs and that weaken isolation. They fail with EPERM; all others pass."""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from holdfast.tools.sandbox import bpf, linux
from holdfast.tools.sandbox.bpf import ALLOW, ARGUMENTS_AT, FAIL, JUMP_ANY_BIT, JUMP_EQUAL, LOAD, RETURN

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_NAMESPACE_FLAGS: Final = 0x7E02_0000  # every CLONE_NEW…
_CLONE3: Final = 435  # the same on every architecture

# name: (x86_64, aarch64)
_DENIED: Final = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    # Memory that no process need map, so that the fork server could not count it. System V's also outlives the call.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
}
# Space on a disk that is taken without a byte being written. The C library writes zeros instead.
_FALLOCATE: Final = (285, 47)


def program(*, counts_writes: bool) -> bytes | None:
    """The filter for this machine, or None where the numbers are not known.

    `counts_writes`: where files are limited by what was written, and not by the size of a file system.
    """
    known = bpf.machine()
    if known is None:
        return None
    denied = [numbers[known.column] for numbers in _DENIED.values()]
    fail, absent = (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, FAIL | errno.ENOSYS)
    unsupported = (RETURN, 0, 0, FAIL | errno.EOPNOTSUPP)
    steps = [
        *bpf.head(known),
        (JUMP_EQUAL, 0, 1, _CLONE3),
        absent,  # its flags lie in memory, out of a filter's sight; libc falls back to clone
        (JUMP_EQUAL, 0, 1, _FALLOCATE[known.column] if counts_writes else _CLONE3),
        unsupported,
        (JUMP_EQUAL, 0, 3, known.clone),
        (LOAD, 0, 0, ARGUMENTS_AT),
        (JUMP_ANY_BIT, len(denied) + 2, 0, _NAMESPACE_FLAGS),
        (RETURN, 0, 0, ALLOW),
    ]
    # Each hit jumps over the rest of the list and the final "allow".
    steps += [(JUMP_EQUAL, len(denied) - at, 0, number) for at, number in enumerate(denied)]
    steps += [(RETURN, 0, 0, ALLOW), fail]
    return bpf.packed(steps)


def install_call(filter_program: bytes) -> linux.SystemCall:
    """Applies to the process that makes it and all that this one starts, and cannot be undone. Needs no_new_privs."""
    described = bpf.described(filter_program)
    return linux.prctl_call(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(described))


def install(filter_program: bytes) -> None:
    install_call(filter_program)()
