"""The guard: a process outside the sandbox that carries out what the egress filter stopped.

The filter (see `egress`) suspends a tool's connect, sendto, sendmsg, sendmmsg or listen and notifies the guard. It
copies the arguments, judges the address it copied, and performs the operation itself on the tool's own socket. A tool
never continues a call that was judged, so changing the address or the descriptor meanwhile gains it nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import os
import resource
import select
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from holdfast.core.egress_policy import Egress
from holdfast.tools.sandbox import bpf, guarded_send, linux, other_process
from holdfast.tools.sandbox.contract import MOST_EGRESS_ENTRIES, EgressConfig
from holdfast.tools.sandbox.destinations import Destination, Judge, parse, unix_destination

_MOST_POLICY_BYTES: Final = 64 << 10
_RECEIVE, _ANSWER, _IS_VALID = 0xC050_2100, 0xC018_2101, 0x4008_2102
_NOTICE: Final = struct.Struct("=QIIiIQ6Q")
_REPLY: Final = struct.Struct("=QqiI")
_ALIVE_CHECK_S: Final = 1.0  # how often a waiting operation checks that its tool still lives
_BACKLOG_PAUSE_S: Final = 0.01  # no event says when a full unix listener accepts again


class Notice(msgspec.Struct, frozen=True):
    """One suspended system call."""

    number: int
    pid: int
    call: int
    arguments: tuple[int, ...]

    def signed(self, at: int) -> int:
        return ctypes.c_int(self.arguments[at] & 0xFFFF_FFFF).value


def watch(listener: int, child: int, config: EgressConfig, scratch: str) -> int:
    """Until the child has ended; then with its exit code."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each waiting operation holds a few files
    return asyncio.run(_Guard(listener, child, config, scratch).watch())


class _Guard:
    def __init__(self, listener: int, child: int, config: EgressConfig, scratch: str) -> None:
        self._listener = listener
        self._child = child
        self._scratch = scratch
        self._judge = Judge(config)
        self._narrowed: dict[int, Egress] = {}  # by the first process of a call
        self._tasks: set[asyncio.Task[None]] = set()
        known = bpf.require_machine()
        self._perform: dict[int, Callable[[Notice], Coroutine[Any, Any, int]]] = {
            known.connect: self._connect,
            known.sendto: self._sendto,
            known.sendmsg: self._sendmsg,
            known.sendmmsg: self._sendmmsg,
            known.listen: self._listen,
        }

    async def watch(self) -> int:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        handle = other_process.open_process(self._child, thread=False)
        loop.add_reader(handle, ended.set)
        loop.add_reader(self._listener, self._receive)
        await ended.wait()
        return other_process.exit_code(self._child)

    def _receive(self) -> None:
        ready = select.poll()
        ready.register(self._listener, select.POLLIN)
        if not any(event & select.POLLIN for _, event in ready.poll(0)):
            asyncio.get_running_loop().remove_reader(self._listener)  # nobody is left behind the filter
            return
        buffer = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, buffer)
        except (FileNotFoundError, InterruptedError):  # its process was killed
            return
        number, pid, _, call, _, _, *arguments = _NOTICE.unpack(buffer)
        notice = Notice(number, pid, call, tuple(arguments))
        task = asyncio.get_running_loop().create_task(self._carry_out(notice))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, notice: Notice) -> None:
        try:
            result, problem = await self._perform[notice.call](notice), 0
        except OSError as error:  # the errno that the tool gets
            result, problem = 0, -(error.errno or errno.EACCES)
        reply = bytearray(_REPLY.pack(notice.number, result, problem, 0))
        with contextlib.suppress(FileNotFoundError):  # its process was killed meanwhile
            fcntl.ioctl(self._listener, _ANSWER, reply)

    def _check_alive(self, notice: Notice) -> None:
        """What was read by process number belongs to the process that waits, not to one that got its number since."""
        fcntl.ioctl(self._listener, _IS_VALID, bytearray(struct.pack("=Q", notice.number)))

    async def _connect(self, notice: Notice) -> int:
        fd = notice.signed(0)
        if fd < 0:
            return self._narrow(notice)
        with self._socket(notice) as sock:
            where = self._address(notice, notice.arguments[1], notice.arguments[2])
            self._check_alive(notice)
            if where is None:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            await self._permit(notice, sock, where)
            with contextlib.ExitStack() as after:
                target = _target(notice, where, self._scratch, after)
                await self._connected(notice, sock, target)
        return 0

    def _narrow(self, notice: Notice) -> int:
        """Once for each call, before the tool's code begins. What tools pass here must not fill our memory."""
        size = notice.arguments[2] & 0xFFFF_FFFF
        if not 0 < size <= _MOST_POLICY_BYTES:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        text = other_process.read(notice.pid, notice.arguments[1], size)
        root = self._root(notice.pid)
        self._check_alive(notice)
        try:
            policy = msgspec.json.decode(text, type=Egress)
        except msgspec.MsgspecError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
        if root in self._narrowed or len(policy.allow) > MOST_EGRESS_ENTRIES:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._forget_when_ended(root)
        self._narrowed[root] = policy
        return 0

    def _forget_when_ended(self, root: int) -> None:
        loop = asyncio.get_running_loop()
        handle = other_process.open_process(root, thread=False)

        def forget() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            self._narrowed.pop(root, None)

        loop.add_reader(handle, forget)

    def _root(self, pid: int) -> int:
        """The first process of a call: of its own pid namespace, or else the reaper, the fork server's own child."""
        ancestors = other_process.ancestors(pid, self._child)
        namespace = os.stat(f"/proc/{ancestors[0]}/ns/pid").st_ino
        root = ancestors[0]
        for parent in ancestors[1:]:
            if os.stat(f"/proc/{parent}/ns/pid").st_ino != namespace:
                break
            root = parent
        return root

    async def _sendto(self, notice: Notice) -> int:
        with self._socket(notice) as sock:
            size = guarded_send.copied_bytes(sock, notice.arguments[2])
            data = other_process.read(notice.pid, notice.arguments[1], size)
            where = self._address(notice, notice.arguments[4], notice.arguments[5])
            self._check_alive(notice)
            return await self._send(notice, sock, guarded_send.Message(data, where), notice.signed(3))

    async def _sendmsg(self, notice: Notice) -> int:
        with self._socket(notice) as sock, contextlib.ExitStack() as after:
            message = guarded_send.read_message(sock, notice.pid, notice.arguments[1], after)
            self._check_alive(notice)
            return await self._send(notice, sock, message, notice.signed(2))

    async def _sendmmsg(self, notice: Notice) -> int:
        """Sends what can be sent at once; like the kernel, reports a failure only if nothing was sent."""
        sent = 0
        with self._socket(notice) as sock:
            for at in range(min(notice.arguments[2] & 0xFFFF_FFFF, guarded_send.MOST_MESSAGES)):
                place = notice.arguments[1] + at * guarded_send.MULTIPLE_BYTES
                try:
                    with contextlib.ExitStack() as after:
                        message = guarded_send.read_message(sock, notice.pid, place, after)
                        self._check_alive(notice)
                        size = await self._send(notice, sock, message, notice.signed(3))
                    other_process.write(notice.pid, place + guarded_send.SIZE_AT, struct.pack("=I", size))
                except OSError:
                    if not sent:
                        raise
                    break
                sent += 1
        return sent

    async def _listen(self, notice: Notice) -> int:
        """A tool may listen, but not where a client of the server could take it for the server."""
        with self._socket(notice) as sock:
            self._check_alive(notice)
            if sock.family != socket.AF_UNIX:
                if any(policy.mode == "none" for policy in self._policies(notice)):
                    raise _refusal()
                if self._judge.is_own_port(sock.getsockname()[1]):
                    raise _refusal()
            sock.listen(max(0, notice.signed(1)))
        return 0

    async def _send(self, notice: Notice, sock: socket.socket, message: guarded_send.Message, flags: int) -> int:
        if flags & socket.MSG_FASTOPEN:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        unix = sock.family == socket.AF_UNIX
        if message.ancillary and not unix:
            raise _refusal()
        where = message.where if unix or sock.type == socket.SOCK_DGRAM else None  # a stream ignores it
        if where is not None:
            if where.kind == "unspecified":
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            await self._permit(notice, sock, where)
        with contextlib.ExitStack() as after:
            target = _target(notice, where, self._scratch, after)
            while True:
                try:
                    return guarded_send.send(sock, message, flags, target)
                except BlockingIOError:
                    if flags & socket.MSG_DONTWAIT or not os.get_blocking(sock.fileno()):
                        raise
                await self._writable(notice, sock)

    async def _connected(self, notice: Notice, sock: socket.socket, target: Any) -> None:
        """As the tool's own connect would: at once when its socket does not block, else when it is decided."""
        if target is None:
            _dissolve(sock)
            return
        blocking = os.get_blocking(sock.fileno())
        while True:
            code = _begin(sock, target, blocking)
            if code in (errno.EINPROGRESS, errno.EALREADY) and blocking:
                await self._writable(notice, sock)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == errno.EAGAIN and blocking and sock.family == socket.AF_UNIX:
                await asyncio.sleep(_BACKLOG_PAUSE_S)
                self._check_alive(notice)
                continue
            if code:
                raise OSError(code, os.strerror(code))
            return

    async def _writable(self, notice: Notice, sock: socket.socket) -> None:
        """Given up when the tool has been killed meanwhile, so that it leaves no half-made connection here."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        with sock.dup() as watched:  # two waiters may watch the same socket
            loop.add_writer(watched.fileno(), ready.set)
            try:
                while not ready.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_ALIVE_CHECK_S):
                            await ready.wait()
                    self._check_alive(notice)
            finally:
                loop.remove_writer(watched.fileno())

    async def _permit(self, notice: Notice, sock: socket.socket, where: Destination) -> None:
        """Raises unless every policy of the call allows the destination."""
        if where.kind == "inet":
            if sock.family != (socket.AF_INET if where.version == 4 else socket.AF_INET6):
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            address = ipaddress.ip_address(where.host)
            if not await self._judge.allows(self._policies(notice), address, where.port):
                raise _refusal()
        elif (where.kind == "unix") != (sock.family == socket.AF_UNIX) and where.kind != "unspecified":
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    def _policies(self, notice: Notice) -> tuple[Egress, ...]:
        own = self._narrowed.get(self._root(notice.pid)) if self._narrowed else None
        return (self._judge.policy,) if own is None else (self._judge.policy, own)

    def _socket(self, notice: Notice) -> socket.socket:
        sock = other_process.share_socket(notice.pid, notice.signed(0))
        if sock.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            sock.close()
            raise _refusal()
        return sock

    def _address(self, notice: Notice, at: int, size: int) -> Destination | None:
        size &= 0xFFFF_FFFF
        if at == 0 or size == 0:
            return None
        if size > guarded_send.MOST_ADDRESS_BYTES:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return parse(other_process.read(notice.pid, at, size))


def _target(notice: Notice, where: Destination | None, scratch: str, after: contextlib.ExitStack) -> Any:
    """The address as the socket module takes it. A unix socket is reached through a handle of ours."""
    if where is None or where.kind == "unspecified":
        return None
    if where.kind == "unix":
        handle = unix_destination(notice.pid, where.host, scratch)
        after.callback(os.close, handle)
        return f"/proc/self/fd/{handle}"
    return (where.host, where.port) if where.version == 4 else (where.host, where.port, where.flow, where.scope)


def _begin(sock: socket.socket, target: Any, blocking: bool) -> int:
    """The tool's socket is ours too: for an instant it does not block either of us."""
    if not blocking:
        return _attempt(sock, target)
    os.set_blocking(sock.fileno(), False)
    try:
        return _attempt(sock, target)
    finally:
        os.set_blocking(sock.fileno(), True)


def _attempt(sock: socket.socket, target: Any) -> int:
    try:
        return sock.connect_ex(target)
    except OSError as problem:  # an address that does not fit the socket's family
        return problem.errno or errno.EAFNOSUPPORT


def _dissolve(sock: socket.socket) -> None:
    unspecified = struct.pack("=H14x", socket.AF_UNSPEC)
    linux.call("connect", ctypes.c_int(sock.fileno()), unspecified, ctypes.c_uint(len(unspecified)))


def _refusal() -> OSError:
    return OSError(errno.EACCES, os.strerror(errno.EACCES))
