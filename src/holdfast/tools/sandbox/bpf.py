"""Seccomp filters as the kernel reads them: instructions, the beginning of every filter, and system call numbers."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable
from typing import Final

import msgspec

ALLOW, FAIL, NOTIFY = 0x7FFF_0000, 0x0005_0000, 0x7FC0_0000
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ARGUMENTS_AT: Final = 16
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_X32_BIT: Final = 0x4000_0000

Step = tuple[int, int, int, int]


class Machine(msgspec.Struct, frozen=True):
    """An architecture, and the numbers of system calls that differ between architectures."""

    architecture: int  # as the audit subsystem calls it
    column: int  # in tables of numbers of x86_64 and aarch64
    clone: int
    seccomp: int
    socket: int
    connect: int
    sendto: int
    sendmsg: int
    sendmmsg: int
    listen: int


_MACHINES: Final = {
    "x86_64": Machine(0xC000_003E, 0, 56, 317, 41, 42, 44, 46, 307, 50),
    "aarch64": Machine(0xC000_00B7, 1, 220, 277, 198, 203, 206, 211, 269, 201),
}


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def machine() -> Machine | None:
    """This one, or None where the numbers are not known."""
    return _MACHINES.get(platform.machine())


def require_machine() -> Machine:
    known = machine()
    if known is None:
        raise OSError(errno.ENOSYS, f"no system call numbers are known for {platform.machine()}")
    return known


def head(known: Machine) -> list[Step]:
    """Loads the number of the call. Another architecture's numbers mean other calls, so those of others fail."""
    fail: Step = (RETURN, 0, 0, FAIL | errno.EPERM)
    return [
        (LOAD, 0, 0, _ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, known.architecture),
        fail,
        (LOAD, 0, 0, _NUMBER_AT),
        (JUMP_AT_LEAST, 0, 1, _X32_BIT),
        fail,
    ]


def packed(steps: Iterable[Step]) -> bytes:
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def described(program: bytes) -> Program:
    return Program(len(program) // 8, program)
