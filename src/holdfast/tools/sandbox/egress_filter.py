"""The egress filter: every connection that a tool's process begins is handed to a guard outside, which decides.

A seccomp filter, inherited by all processes below the fork server, stops each system call that can name a destination
and notifies the guard (`egress_guard`). Other calls are not slowed. The filter is installed once, when the fork server
starts, so a call that uses no network pays nothing (decision 17).
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import socket
from _thread import allocate_lock, start_new_thread
from typing import Final, Literal, NoReturn

import msgspec

from holdfast.core.egress_policy import Egress
from holdfast.tools.sandbox import bpf, landlock, linux, other_process, seccomp
from holdfast.tools.sandbox.bpf import (
    ALLOW,
    AND,
    ARGUMENTS_AT,
    FAIL,
    JUMP_ANY_BIT,
    JUMP_EQUAL,
    LOAD,
    NOTIFY,
    RETURN,
    Step,
)
from holdfast.tools.sandbox.contract import EgressConfig, ForkServerConfig

EgressLayer = Literal["egress", "egress-none", "egress-port", ""]

_SET_MODE_FILTER: Final = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_KIND_MASK: Final = 0xF  # of a socket's type, without SOCK_CLOEXEC and SOCK_NONBLOCK
_IO_URING: Final = (425, 426, 427)  # its operations pass no filter; the same numbers on every architecture
_NARROW_FD: Final = -0x4846  # no file descriptor: tells the guard that the "address" is a policy


def enclose(config: ForkServerConfig) -> EgressLayer:
    """Go on in a child process behind the egress filter; the caller becomes the guard and ends with that process.

    Where the guard cannot work the caller goes on itself, behind the strongest weaker filter that works here.
    """
    if config.layers.egress and _try_guard(config.egress):
        _fork_behind_guard(config.egress, config.scratch)
        return "egress"
    if config.egress.policy.mode == "none" and bpf.machine() is not None and linux.works(_filter_all):
        _filter_all()
        return "egress-none"
    port = config.egress.port
    if config.layers.landlock and port and landlock.version() >= landlock.NETWORK_ABI and linux.works(_filter_detours):
        _filter_detours()
        landlock.forbid_port(port)
        return "egress-port"
    return ""


def narrow(policy: Egress, layer: EgressLayer) -> None:
    """Called in the child of one call, before the tool's code: only stricter, and for all of the call's processes."""
    if layer == "egress":
        text = msgspec.json.encode(policy)
        linux.call("connect", ctypes.c_int(_NARROW_FD), text, ctypes.c_uint(len(text)))
    elif policy.mode == "none":
        _filter_all()
    elif layer != "egress-none":
        raise OSError(errno.EACCES, f"the tool asks for the egress policy {policy.mode}, which cannot be enforced here")


def _filter_all() -> None:
    """No socket but those between processes of one machine: the policy `none`, without a guard."""
    known = bpf.require_machine()
    linux.forbid_new_privileges()
    seccomp.install(bpf.packed([*_head(known), *_no_network(known), (RETURN, 0, 0, ALLOW)]))


def _filter_detours() -> None:
    """Ways to a TCP port that landlock does not see: data in the first packet instead of a connect, and MPTCP."""
    known = bpf.require_machine()
    steps = [*_head(known), *_only_known_sockets(known)]
    for number, flags in ((known.sendto, 3), (known.sendmsg, 2), (known.sendmmsg, 3)):
        steps += [
            (JUMP_EQUAL, 0, 4, number),
            (LOAD, 0, 0, ARGUMENTS_AT + flags * 8),
            (JUMP_ANY_BIT, 0, 1, socket.MSG_FASTOPEN),
            (RETURN, 0, 0, FAIL | errno.EOPNOTSUPP),
            (RETURN, 0, 0, ALLOW),
        ]
    linux.forbid_new_privileges()
    seccomp.install(bpf.packed([*steps, (RETURN, 0, 0, ALLOW)]))


def _try_guard(config: EgressConfig) -> bool:
    """The whole mechanism once, in processes that are thrown away: a tool's connect is refused by the guard."""
    if bpf.machine() is None:
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
    gc.freeze()  # both go on with what is loaded; a collection in either would copy the pages that they share
    pid = os.fork()
    if pid:
        theirs.close()
        _become_guard(ours, pid, config, scratch)
    ours.close()
    linux.die_with_parent()
    with theirs:
        _install_with_listener(theirs)


def _become_guard(sock: socket.socket, pid: int, config: EgressConfig, scratch: str) -> NoReturn:
    code = 1
    try:
        with sock:
            _, handles, _, _ = socket.recv_fds(sock, 1, 1)
        # Only this process needs asyncio: what is loaded before the fork makes every call dearer.
        from holdfast.tools.sandbox import egress_guard  # noqa: PLC0415

        code = egress_guard.watch(handles[0], pid, config, scratch) if handles else other_process.exit_code(pid)
    finally:
        os._exit(code)


def _install_with_listener(sock: socket.socket) -> None:
    """The thread is not under the filter, shares our files, and so can hand over the listener.

    Not by `threading`: what that does after a fork would be done in every call.
    """
    known = bpf.require_machine()
    installed = allocate_lock()
    installed.acquire()
    handle: list[int] = []

    def hand_over() -> None:
        installed.acquire()
        if handle:
            socket.send_fds(sock, [b"!"], handle)

    start_new_thread(hand_over, ())
    try:
        linux.forbid_new_privileges()
        handle.append(_listen(known))
    finally:
        installed.release()
        while len(os.listdir("/proc/self/task")) > 1:  # with a second thread there would be no new user namespace
            os.sched_yield()
    os.close(handle[0])


def _listen(known: bpf.Machine) -> int:
    described = bpf.described(bpf.packed(_guarded(known)))
    try:
        flags = _NEW_LISTENER | _WAIT_KILLABLE
        return _seccomp(known, flags, described)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
    return _seccomp(known, _NEW_LISTENER, described)  # before Linux 5.19


def _seccomp(known: bpf.Machine, flags: int, described: bpf.Program) -> int:
    return linux.syscall(known.seccomp, ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(flags), ctypes.byref(described))


def _guarded(known: bpf.Machine) -> list[Step]:
    notify: Step = (RETURN, 0, 0, NOTIFY)
    steps = [*_head(known), *_only_known_sockets(known)]
    for number in (known.connect, known.sendmsg, known.sendmmsg, known.listen):
        steps += [(JUMP_EQUAL, 0, 1, number), notify]
    # sendto without an address is send(), which goes where the socket is connected to.
    address_at, flags_at = ARGUMENTS_AT + 4 * 8, ARGUMENTS_AT + 3 * 8
    steps += [
        (JUMP_EQUAL, 0, 7, known.sendto),
        (LOAD, 0, 0, address_at),
        (JUMP_EQUAL, 0, 4, 0),
        (LOAD, 0, 0, address_at + 4),
        (JUMP_EQUAL, 0, 2, 0),
        (LOAD, 0, 0, flags_at),
        (JUMP_ANY_BIT, 0, 1, socket.MSG_FASTOPEN),
        notify,
        (RETURN, 0, 0, ALLOW),
    ]
    return steps


def _head(known: bpf.Machine) -> list[Step]:
    steps = bpf.head(known)
    for number in _IO_URING:
        steps += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | errno.EPERM)]
    return steps


def _only_known_sockets(known: bpf.Machine) -> list[Step]:
    """Unix, TCP and UDP sockets. No netlink, raw, packet, vsock or other kinds, which the guard could not judge."""
    allow: Step = (RETURN, 0, 0, ALLOW)
    no_family: Step = (RETURN, 0, 0, FAIL | errno.EAFNOSUPPORT)
    no_protocol: Step = (RETURN, 0, 0, FAIL | errno.EPROTONOSUPPORT)
    inside: list[Step] = [
        (LOAD, 0, 0, ARGUMENTS_AT),
        (JUMP_EQUAL, 0, 1, socket.AF_UNIX),
        allow,
        (JUMP_EQUAL, 2, 0, socket.AF_INET),
        (JUMP_EQUAL, 1, 0, socket.AF_INET6),
        no_family,
        (LOAD, 0, 0, ARGUMENTS_AT + 8),
        (AND, 0, 0, _KIND_MASK),
        (JUMP_EQUAL, 2, 0, socket.SOCK_STREAM),
        (JUMP_EQUAL, 1, 0, socket.SOCK_DGRAM),
        no_protocol,
        (LOAD, 0, 0, ARGUMENTS_AT + 16),
        (JUMP_EQUAL, 3, 0, 0),
        (JUMP_EQUAL, 2, 0, socket.IPPROTO_TCP),
        (JUMP_EQUAL, 1, 0, socket.IPPROTO_UDP),
        no_protocol,
        allow,
    ]
    return [(JUMP_EQUAL, 0, len(inside), known.socket), *inside]


def _no_network(known: bpf.Machine) -> list[Step]:
    inside: list[Step] = [
        (LOAD, 0, 0, ARGUMENTS_AT),
        (JUMP_EQUAL, 0, 1, socket.AF_UNIX),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, FAIL | errno.EACCES),
    ]
    return [(JUMP_EQUAL, 0, len(inside), known.socket), *inside]
