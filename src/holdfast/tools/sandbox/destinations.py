"""Where a tool wants to send something, as the kernel would read it, and whether it may."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import stat
import struct
import time
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from holdfast.core.egress import DNS_PORT, Address, Egress, unwrap_ipv4
from holdfast.netguard import is_public, may_be_of_this_machine
from holdfast.tools.sandbox import other_process
from holdfast.tools.sandbox.contract import EgressConfig

_FAMILY: Final = struct.Struct("=H")
_V4: Final = struct.Struct("!H4s")
_V6: Final = struct.Struct("!HI16s")
_RESOLVER_FILE: Final = "/etc/resolv.conf"
_REMEMBER_S: Final = 600.0  # what a name of the allow-list pointed to; a tool may have looked it up before we do
_LOOK_AGAIN_S: Final = 1.0  # a tool cannot make us ask for names more often than this
_RESOLVE_S: Final = 10.0
_MOST_NAMES: Final = 5_000  # that are remembered; the one that was asked for longest ago goes first


class Destination(msgspec.Struct, frozen=True):
    kind: Literal["inet", "unix", "unspecified"]
    host: str = ""  # an address, or a path
    port: int = 0
    version: int = 4
    flow: int = 0
    scope: int = 0


def parse(data: bytes) -> Destination:
    """A sockaddr. OSError as the kernel would give for one that is too short or of a family that tools cannot use."""
    if len(data) < _FAMILY.size:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    family = _FAMILY.unpack_from(data)[0]
    body = data[_FAMILY.size :]
    if family == socket.AF_UNSPEC:
        return Destination("unspecified")
    if family == socket.AF_UNIX:
        return Destination("unix", _path(body))
    if family not in (socket.AF_INET, socket.AF_INET6):
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    shape = _V4 if family == socket.AF_INET else _V6
    if len(body) < shape.size:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if family == socket.AF_INET:
        port, packed = _V4.unpack_from(body)
        return Destination("inet", str(ipaddress.IPv4Address(packed)), port)
    port, flow, packed = _V6.unpack_from(body)
    scope = int.from_bytes(body[_V6.size : _V6.size + 4].ljust(4, b"\0"), "little")
    # Python wants 20 bits of a flow label in host order.
    return Destination("inet", str(ipaddress.IPv6Address(packed)), port, 6, flow & 0xF_FFFF, scope)


def _path(body: bytes) -> str:
    """A socket in the abstract namespace has no file that says whose it is, so none is reached."""
    name = body.partition(b"\0")[0]
    if not name:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return os.fsdecode(name)


def unix_destination(pid: int, path: str, scratch: str) -> int:
    """A handle of a socket file, if it lies in the directory that belongs to tools. Others, such as the database's or
    another service's, are refused under every policy."""
    if not path.startswith("/"):
        path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)
    handle = other_process.open_beneath_root(pid, path)
    try:
        found, ours = os.fstat(handle), os.stat(f"/proc/{pid}/root{scratch}")
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        if not _is_inside(handle, found, ours, pid, scratch):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError:
        os.close(handle)
        raise
    return handle


def _is_inside(handle: int, found: os.stat_result, outer: os.stat_result, pid: int, scratch: str) -> bool:
    """In the file system of this call alone, or below the directory where calls without one have theirs."""
    try:
        private = os.stat(f"/proc/{pid}/root{scratch}/call")
        if private.st_dev != outer.st_dev and found.st_dev == private.st_dev:
            return True
    except FileNotFoundError:
        pass  # no call has a file system of its own
    return found.st_dev == outer.st_dev and os.readlink(f"/proc/self/fd/{handle}").startswith(f"{scratch}/")


class Judge:
    """Applies policies. The server's own port is refused under every policy."""

    def __init__(self, config: EgressConfig) -> None:
        self.policy = config.policy
        self._port = config.port
        self._resolvers = _resolvers()
        self._known: dict[str, dict[Address, float]] = {}  # name → address → until when it counts
        self._asked: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def is_own_port(self, port: int) -> bool:
        return port == self._port and port != 0

    async def allows(self, policies: Iterable[Egress], address: Address, port: int) -> bool:
        judged = unwrap_ipv4(address)
        local = is_own(judged)
        if self.is_own_port(port) and local:
            return False
        private = local or not is_public(judged)
        for policy in policies:
            if policy.mode == "public" and private and not self._is_resolver(judged, port):
                return False
            if not await self._allows(policy, judged, port):
                return False
        return True

    async def _allows(self, policy: Egress, address: Address, port: int) -> bool:
        if policy.allows(address, port):
            return True
        if policy.needs_names and self._is_resolver(address, port):
            return True
        names = [name for name in policy.names if policy.allows_as(name, port)]
        if any(self._points_to(name, address) for name in names):
            return True
        await asyncio.gather(*(self._look_up(name) for name in names))
        return any(self._points_to(name, address) for name in names)

    def _is_resolver(self, address: Address, port: int) -> bool:
        return port == DNS_PORT and address in self._resolvers

    def _points_to(self, name: str, address: Address) -> bool:
        return self._known.get(name, {}).get(address, 0.0) > time.monotonic()

    async def _look_up(self, name: str) -> None:
        if name not in self._asking:
            if time.monotonic() - self._asked.get(name, -_LOOK_AGAIN_S) < _LOOK_AGAIN_S:
                return
            self._asking[name] = asyncio.get_running_loop().create_task(self._ask(name))
        await self._asking[name]

    async def _ask(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_RESOLVE_S):
                found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # it points nowhere now; what it pointed to may still count
            found = []
        finally:
            self._asked.pop(name, None)
            self._asked[name] = time.monotonic()
            del self._asking[name]
        if len(self._asked) > _MOST_NAMES:
            oldest = next(iter(self._asked))
            del self._asked[oldest]
            self._known.pop(oldest, None)
        now = time.monotonic()
        kept = {address: until for address, until in self._known.get(name, {}).items() if until > now}
        for entry in found:
            kept[unwrap_ipv4(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]))] = now + _REMEMBER_S
        self._known[name] = kept


def is_own(address: Address) -> bool:
    """Whether the address is one of this machine's. If that is not known, it counts as one."""
    return address.is_loopback or address.is_unspecified or may_be_of_this_machine(str(address))


def _resolvers() -> frozenset[Address]:
    """The machine's DNS servers, which are often private addresses."""
    found: set[Address] = set()
    try:
        with open(_RESOLVER_FILE, errors="replace") as lines:
            words = [line.split() for line in lines]
    except OSError:
        return frozenset()
    for word in words:
        if len(word) >= 2 and word[0] == "nameserver":
            try:
                found.add(unwrap_ipv4(ipaddress.ip_address(word[1].partition("%")[0])))
            except ValueError:
                continue  # not an address: the C library skips it too
    return frozenset(found)
