"""What the guard needs of another process: its memory, its sockets, and which call it belongs to."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from typing import Final

from holdfast.tools.sandbox import linux

_PIDFD_OPEN, _PIDFD_GETFD = 434, 438  # the same on every architecture
_PIDFD_THREAD: Final = os.O_EXCL  # since Linux 6.9: a handle for a thread, not only for a process
_OPENAT2: Final = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_MOST_ANCESTORS: Final = 4096
_TRIES: Final = 5


class _Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def read(pid: int, address: int, size: int) -> bytes:
    """Exactly so many bytes of the memory of a process; OSError (EFAULT) when they are not there."""
    if size == 0:
        return b""
    buffer = ctypes.create_string_buffer(size)
    here, there = _Piece(ctypes.addressof(buffer), size), _Piece(address, size)
    if _move("process_vm_readv", pid, here, there) != size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return buffer.raw


def write(pid: int, address: int, data: bytes) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    here, there = _Piece(ctypes.addressof(buffer), len(data)), _Piece(address, len(data))
    if _move("process_vm_writev", pid, here, there) != len(data):
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))


def _move(name: str, pid: int, here: _Piece, there: _Piece) -> int:
    one, no_flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    return linux.call(name, ctypes.c_int(pid), ctypes.byref(here), one, ctypes.byref(there), one, no_flags)


def open_process(pid: int, *, thread: bool = True) -> int:
    """A handle of a thread, or of the process that it belongs to where the kernel has none of threads."""
    if not thread:
        return linux.syscall(_PIDFD_OPEN, ctypes.c_int(pid), ctypes.c_uint(0))
    try:
        return linux.syscall(_PIDFD_OPEN, ctypes.c_int(pid), ctypes.c_uint(_PIDFD_THREAD))
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
    return linux.syscall(_PIDFD_OPEN, ctypes.c_int(_status(pid, "Tgid")), ctypes.c_uint(0))


def share_socket(pid: int, fd: int) -> socket.socket:
    """The very socket that the process has under this number. What is done to ours is done to its."""
    process = open_process(pid)
    try:
        shared = share_file(process, fd)
    finally:
        os.close(process)
    try:
        return socket.socket(fileno=shared)
    except OSError:  # it is no socket
        os.close(shared)
        raise


def share_file(process: int, fd: int) -> int:
    return linux.syscall(_PIDFD_GETFD, ctypes.c_int(process), ctypes.c_int(fd), ctypes.c_uint(0))


def open_beneath_root(pid: int, path: str) -> int:
    """A handle of a file as that process would find it, without leaving the process's own root."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    how = _How(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    try:
        size = ctypes.c_size_t(ctypes.sizeof(how))
        return linux.syscall(_OPENAT2, ctypes.c_int(root), os.fsencode(path), ctypes.byref(how), size)
    finally:
        os.close(root)


def ancestors(pid: int, until: int) -> list[int]:
    """From the process itself up to, and without, the given ancestor. OSError when that is none of its ancestors."""
    for _ in range(_TRIES):  # a parent may end while we look, and its children get another
        try:
            return _ancestors(pid, until)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))


def _ancestors(pid: int, until: int) -> list[int]:
    found = [_status(pid, "Tgid")]
    while len(found) < _MOST_ANCESTORS:
        parent = _status(found[-1], "PPid")
        if parent == until:
            return found
        if parent == 0:
            break
        found.append(parent)
    raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))


def _status(pid: int, field: str) -> int:
    with open(f"/proc/{pid}/status", "rb") as status:
        for line in status:
            if line.startswith(field.encode() + b":"):
                return int(line.split()[1])
    raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))


def exit_code(pid: int) -> int:
    """Waits for a child, and gives what a process that ends in its place should end with."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF
