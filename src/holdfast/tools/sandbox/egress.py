"""The egress wall: every connection that a tool's process begins is handed to a guard outside, which decides.

A seccomp filter, inherited by all processes below the fork server, stops each system call that can name a destination
and notifies the guard (see `guard`). Other calls are not slowed. The filter is installed once, when the fork server
starts, so a call that uses no network pays nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import threading
from typing import Final, Literal, NoReturn

import msgspec

from holdfast.core.egress import Egress
from holdfast.tools.sandbox import foreign, guard, landlock, linux, seccomp
from holdfast.tools.sandbox.contract import EgressConfig, ZygoteConfig

Standing = Literal["egress", "egress-none", "egress-port", ""]

_SECCOMP, _SET_MODE_FILTER = (317, 277), 1  # the number on x86_64, on aarch64
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_ALLOW, _FAIL, _NOTIFY = 0x7FFF_0000, 0x0005_0000, 0x7FC0_0000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_BIT: Final = 0x4000_0000
_MSG_FASTOPEN: Final = 0x2000_0000
_KIND_MASK: Final = 0xF  # of a socket's type, without SOCK_CLOEXEC and SOCK_NONBLOCK
_IO_URING: Final = (425, 426, 427)  # its operations pass no filter; the same numbers on every architecture
_NARROW_FD: Final = -0x4846  # no file descriptor: tells the guard that the "address" is a policy

Step = tuple[int, int, int, int]


class Numbers(msgspec.Struct, frozen=True):
    """System call numbers of one architecture."""

    architecture: int
    column: int
    socket: int
    connect: int
    sendto: int
    sendmsg: int
    sendmmsg: int
    listen: int


_MACHINES: Final = {
    "x86_64": Numbers(0xC000_003E, 0, 41, 42, 44, 46, 307, 50),
    "aarch64": Numbers(0xC000_00B7, 1, 198, 203, 206, 211, 269, 201),
}


def numbers() -> Numbers | None:
    return _MACHINES.get(platform.machine())


def enclose(config: ZygoteConfig) -> Standing:
    """Go on in a child process behind the egress wall; the caller becomes the guard and ends with that process.

    Where the guard cannot work the caller goes on itself, behind the strongest weaker wall that this machine has.
    """
    if config.walls.egress and _try_guard(config.egress):
        _fork_behind_guard(config.egress, config.scratch)
        return "egress"
    known = numbers()
    if config.egress.policy.mode == "none" and known is not None and linux.works(_filter_all):
        _filter_all()
        return "egress-none"
    port = config.egress.port
    if config.walls.landlock and port and landlock.version() >= landlock.NETWORK_ABI and linux.works(_filter_detours):
        _filter_detours()
        landlock.forbid_port(port)
        return "egress-port"
    return ""


def narrow(policy: Egress, standing: Standing) -> None:
    """Called in the child of one call, before the tool's code: only stricter, and for all of the call's processes."""
    if standing == "egress":
        text = msgspec.json.encode(policy)
        linux.call("connect", ctypes.c_int(_NARROW_FD), text, ctypes.c_uint(len(text)))
    elif policy.mode == "none":
        _filter_all()
    elif standing != "egress-none":
        raise OSError(errno.EACCES, f"the tool asks for the egress policy {policy.mode}, which cannot be enforced here")


def _filter_all() -> None:
    """No socket but those between processes of one machine: the policy `none`, without a guard."""
    known = numbers()
    if known is None:
        raise OSError(errno.ENOSYS, f"no system call numbers are known for {platform.machine()}")
    linux.forbid_new_privileges()
    seccomp.install(_packed([*_head(known), *_no_network(known), (_RETURN, 0, 0, _ALLOW)]))


def _filter_detours() -> None:
    """Ways to a TCP port that landlock does not see: data in the first packet instead of a connect, and MPTCP."""
    known = numbers()
    if known is None:
        raise OSError(errno.ENOSYS, f"no system call numbers are known for {platform.machine()}")
    steps = [*_head(known), *_only_known_sockets(known)]
    for number, flags in ((known.sendto, 3), (known.sendmsg, 2), (known.sendmmsg, 3)):
        steps += [
            (_JUMP_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _ARGUMENTS_AT + flags * 8),
            (_JUMP_ANY_BIT, 0, 1, _MSG_FASTOPEN),
            (_RETURN, 0, 0, _FAIL | errno.EOPNOTSUPP),
            (_RETURN, 0, 0, _ALLOW),
        ]
    linux.forbid_new_privileges()
    seccomp.install(_packed([*steps, (_RETURN, 0, 0, _ALLOW)]))


def _try_guard(config: EgressConfig) -> bool:
    """The whole mechanism once, in processes that are thrown away: a tool's connect is refused by the guard."""
    if numbers() is None:
        return False

    def attempt() -> None:
        _fork_behind_guard(msgspec.structs.replace(config, policy=Egress("none")), "/")
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            refused = probe.connect_ex(("127.0.0.1", 9))
        if refused != errno.EACCES:
            raise OSError(refused, f"the guard did not refuse a connection: {os.strerror(refused)}")

    return linux.works(attempt)


def _fork_behind_guard(config: EgressConfig, scratch: str) -> None:
    """Returns in the child only."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        _become_guard(ours, pid, config, scratch)
    ours.close()
    linux.die_with_parent()
    with theirs:
        _install_with_listener(theirs)


def _become_guard(line: socket.socket, pid: int, config: EgressConfig, scratch: str) -> NoReturn:
    code = 1
    try:
        with line:
            _, handles, _, _ = socket.recv_fds(line, 1, 1)
        code = guard.watch(handles[0], pid, config, scratch) if handles else foreign.exit_code(pid)
    finally:
        os._exit(code)


def _install_with_listener(line: socket.socket) -> None:
    """The thread is not under the filter, shares our files, and so can hand over the listener."""
    known = numbers()
    if known is None:
        raise OSError(errno.ENOSYS, f"no system call numbers are known for {platform.machine()}")
    installed = threading.Event()
    handle: list[int] = []

    def hand_over() -> None:
        installed.wait()
        if handle:
            socket.send_fds(line, [b"!"], handle)

    messenger = threading.Thread(target=hand_over)
    messenger.start()
    try:
        linux.forbid_new_privileges()
        handle.append(_listen(known))
    finally:
        installed.set()
        messenger.join()
    os.close(handle[0])


def _listen(known: Numbers) -> int:
    program = _packed(_guarded(known))
    described = seccomp.Program(len(program) // 8, program)
    try:
        flags = _NEW_LISTENER | _WAIT_KILLABLE
        return _seccomp(known, flags, described)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
    return _seccomp(known, _NEW_LISTENER, described)  # before Linux 5.19


def _seccomp(known: Numbers, flags: int, described: seccomp.Program) -> int:
    return linux.syscall(
        _SECCOMP[known.column], ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(flags), ctypes.byref(described)
    )


def _guarded(known: Numbers) -> list[Step]:
    notify: Step = (_RETURN, 0, 0, _NOTIFY)
    steps = [*_head(known), *_only_known_sockets(known)]
    for number in (known.connect, known.sendmsg, known.sendmmsg, known.listen):
        steps += [(_JUMP_EQUAL, 0, 1, number), notify]
    # sendto without an address is send(), which goes where the socket is connected to.
    address_at, flags_at = _ARGUMENTS_AT + 4 * 8, _ARGUMENTS_AT + 3 * 8
    steps += [
        (_JUMP_EQUAL, 0, 7, known.sendto),
        (_LOAD, 0, 0, address_at),
        (_JUMP_EQUAL, 0, 4, 0),
        (_LOAD, 0, 0, address_at + 4),
        (_JUMP_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, flags_at),
        (_JUMP_ANY_BIT, 0, 1, _MSG_FASTOPEN),
        notify,
        (_RETURN, 0, 0, _ALLOW),
    ]
    return steps


def _head(known: Numbers) -> list[Step]:
    fail: Step = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    steps: list[Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, known.architecture),
        fail,
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        fail,
    ]
    for number in _IO_URING:
        steps += [(_JUMP_EQUAL, 0, 1, number), fail]
    return steps


def _only_known_sockets(known: Numbers) -> list[Step]:
    """Unix, TCP and UDP sockets. No netlink, raw, packet, vsock or other kinds, which the guard could not judge."""
    allow: Step = (_RETURN, 0, 0, _ALLOW)
    no_family: Step = (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT)
    no_protocol: Step = (_RETURN, 0, 0, _FAIL | errno.EPROTONOSUPPORT)
    inside: list[Step] = [
        (_LOAD, 0, 0, _ARGUMENTS_AT),
        (_JUMP_EQUAL, 0, 1, socket.AF_UNIX),
        allow,
        (_JUMP_EQUAL, 2, 0, socket.AF_INET),
        (_JUMP_EQUAL, 1, 0, socket.AF_INET6),
        no_family,
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8),
        (_AND, 0, 0, _KIND_MASK),
        (_JUMP_EQUAL, 2, 0, socket.SOCK_STREAM),
        (_JUMP_EQUAL, 1, 0, socket.SOCK_DGRAM),
        no_protocol,
        (_LOAD, 0, 0, _ARGUMENTS_AT + 16),
        (_JUMP_EQUAL, 3, 0, 0),
        (_JUMP_EQUAL, 2, 0, socket.IPPROTO_TCP),
        (_JUMP_EQUAL, 1, 0, socket.IPPROTO_UDP),
        no_protocol,
        allow,
    ]
    return [(_JUMP_EQUAL, 0, len(inside), known.socket), *inside]


def _no_network(known: Numbers) -> list[Step]:
    inside: list[Step] = [
        (_LOAD, 0, 0, _ARGUMENTS_AT),
        (_JUMP_EQUAL, 0, 1, socket.AF_UNIX),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | errno.EACCES),
    ]
    return [(_JUMP_EQUAL, 0, len(inside), known.socket), *inside]


def _packed(steps: list[Step]) -> bytes:
    return b"".join(struct.pack("HBBI", *step) for step in steps)
