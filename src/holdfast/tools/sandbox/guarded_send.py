"""Messages that the guard sends in place of a tool: read from the tool's memory, sent through the tool's socket."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import struct
from typing import Any, Final

import msgspec

from holdfast.tools.sandbox import other_process
from holdfast.tools.sandbox.destinations import Destination, parse

# Of one message. A call may have hundreds of them waiting, and the guard's memory is outside its limits.
_STREAM_BYTES: Final = 64 << 10  # a stream takes the rest with its next call
_DATAGRAM_BYTES: Final = 256 << 10  # a datagram is sent whole or not at all
MOST_MESSAGES: Final = 64  # of one sendmmsg; its caller sends the rest again
MOST_ADDRESS_BYTES: Final = 128
MULTIPLE_BYTES, SIZE_AT = 64, 56  # of a struct mmsghdr, and where its msg_len is
_HEADER: Final = struct.Struct("=QI4xQQQQi4x")
_PIECE: Final = struct.Struct("=QQ")
_CONTROL: Final = struct.Struct("=Qii")
_MOST_PIECES: Final = 1024
_MOST_CONTROL_BYTES: Final = 4096
_FLAGS: Final = socket.MSG_OOB | socket.MSG_DONTROUTE | socket.MSG_EOR | socket.MSG_MORE | socket.MSG_CONFIRM


class Message(msgspec.Struct, frozen=True):
    data: bytes
    where: Destination | None = None
    ancillary: bool = False
    files: tuple[int, ...] = ()  # handles of ours, to pass on


def copied_bytes(sock: socket.socket, size: int) -> int:
    """How much of a message is copied, or OSError when it is too large to be sent whole."""
    if sock.type == socket.SOCK_STREAM:
        return min(size, _STREAM_BYTES)
    if size > _DATAGRAM_BYTES:
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
    return size


def read_message(sock: socket.socket, pid: int, at: int, after: contextlib.ExitStack) -> Message:
    """A struct msghdr. Files that it passes on are opened here and closed by `after`."""
    name, name_size, pieces, count, control, control_size, _ = _HEADER.unpack(other_process.read(pid, at, _HEADER.size))
    if count > _MOST_PIECES:
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
    where = None
    if name and name_size:
        where = parse(other_process.read(pid, name, min(name_size, MOST_ADDRESS_BYTES)))
    data = bytearray()
    table = list(_PIECE.iter_unpack(other_process.read(pid, pieces, count * _PIECE.size)))
    most = copied_bytes(sock, sum(size for _, size in table))
    for start, size in table:
        data += other_process.read(pid, start, min(size, most - len(data)))
    if not (control and control_size):
        return Message(bytes(data), where)
    if control_size > _MOST_CONTROL_BYTES:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    numbers = _passed(other_process.read(pid, control, control_size))
    return Message(bytes(data), where, ancillary=True, files=_shared(pid, numbers, after))


def send(sock: socket.socket, message: Message, flags: int, target: Any) -> int:
    """Never waits. A tool that ignores broken pipes gets EPIPE, as it would from its own call."""
    flags = (flags & _FLAGS) | socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    if message.files:
        passed = array.array("i", message.files)
        return sock.sendmsg([message.data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)], flags, target)
    if target is None:
        return sock.send(message.data, flags)
    return sock.sendto(message.data, flags, target)


def _passed(control: bytes) -> tuple[int, ...]:
    """File descriptors; whatever else can be attached to a message is left to those outside a sandbox."""
    numbers: list[int] = []
    at = 0
    while at + _CONTROL.size <= len(control):
        size, level, kind = _CONTROL.unpack_from(control, at)
        if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS) or not _CONTROL.size <= size <= len(control) - at:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        body = control[at + _CONTROL.size : at + size]
        numbers += [number for (number,) in struct.iter_unpack("=i", body[: len(body) // 4 * 4])]
        at += (size + 7) // 8 * 8
    return tuple(numbers)


def _shared(pid: int, numbers: tuple[int, ...], after: contextlib.ExitStack) -> tuple[int, ...]:
    handles: list[int] = []
    process = other_process.open_process(pid)
    try:
        for number in numbers:
            handles.append(other_process.share_file(process, number))
            after.callback(os.close, handles[-1])
    finally:
        os.close(process)
    return tuple(handles)
