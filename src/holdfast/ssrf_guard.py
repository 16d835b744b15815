"""Which addresses the server may be sent to by a URL that somebody else wrote: of webhooks, images and providers.

A URL is judged twice. `check_url` judges it when it comes in, so that its writer is told at once. A `Guard` judges it
again whenever a connection is made: it looks the name up, checks every address that the name has, and the connection
goes to one of exactly these. A name that leads elsewhere after the first look (DNS rebinding) is refused by the second.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.core import egress_policy
from holdfast.core.egress_policy import Address
from holdfast.errors import Invalid

LOOKUP_S: Final = 5.0
# What `ipaddress` calls public, in some of its versions, and is not.
_NOT_PUBLIC: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # inside every virtual machine of Azure: its agent's service
            "192.0.0.0/24",  # reserved by IETF; Oracle's cloud has its metadata there
            "3fff::/20",  # documentation
        ),
    )
)
# Where clouds answer every program of a virtual machine with its credentials.
METADATA: Final = (
    "169.254.0.0/16",
    "fe80::/10",
    "fd00:ec2::254/128",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
)
# Kept for documentation, so that no machine has it: an IPv4 and an IPv6 address.
_NOBODYS: Final = ("192.0.2.1", "2001:db8::1")
_NOT_OURS: Final = (errno.EADDRNOTAVAIL, errno.EINVAL, errno.EAFNOSUPPORT)  # what binding to another's address gives

_log = logging.getLogger(__name__)


class NotPublic(OSError):
    """Raised in place of a connection. An OSError, because HTTP clients pass those on, as the cause of their own."""

    def __init__(self, host: str, *, ever: bool = True) -> None:
        """`ever`: whether it could be allowed."""
        way_out = (
            f"If that is wanted, the operator of this server adds {host} to HOLDFAST_ALLOWED_HOSTS."
            if ever
            else "It belongs to the machine's own network, where clouds keep credentials, and is never connected to."
        )
        super().__init__(errno.EACCES, f"{host} is not a public address, or leads to one that is not. {way_out}")


class Unresolved(Invalid):
    """The name could not be looked up now; it may be another time."""


class Guard(msgspec.Struct, frozen=True):
    """`allowed`: the hosts and networks that may be reached although they are not public. `denied`: networks that may
    not be reached, even if they are allowed."""

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """The addresses of a host, all of them allowed. Raises NotPublic if one is not, gaierror if there are none.

        One that is not spoils the others: which of them is connected to is decided by whoever is fastest.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise socket.gaierror(socket.EAI_AGAIN, f"no answer within {LOOKUP_S:g} seconds") from error
        except UnicodeError as error:
            raise socket.gaierror(socket.EAI_NONAME, "it cannot be a name") from error
        # A scope such as fe80::1%eth0 is dropped: link-local addresses are refused or listed without it.
        addresses = tuple(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
        for address in addresses:
            denied = self._denies(address)
            if denied or not (self.allows_name(host) or self.allows(address)):
                _log.info("%s is not connected to, because it leads to %s", host, address)
                raise NotPublic(host, ever=not denied)
        return addresses

    def allows_name(self, host: str) -> bool:
        return plain_host(host) in self.allowed

    def allows(self, address: str) -> bool:
        """Of what is not written as an address ought to be, nothing is known, and it is refused."""
        try:
            judged = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if _is_listed(judged, self.denied):
            return False
        return _is_listed(judged, self.allowed) or (is_public(judged) and not is_of_this_machine(address))

    def _denies(self, address: str) -> bool:
        return bool(self.denied) and _is_listed(ipaddress.ip_address(address), self.denied)


async def check_url(url: str, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """The addresses of its host. Raises Invalid unless it is an http(s) URL and each of these may be reached."""
    parts = require_web_url(url)
    host = plain_host(parts.hostname or "")
    try:
        return await Guard(tuple(allowed)).resolve(host, parts.port or (443 if parts.scheme == "https" else 80))
    except NotPublic as error:
        raise Invalid(str(error.strerror)) from error
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise Unresolved(f"The host {host} could not be found for now ({error.strerror}): try again.") from error
        raise Invalid(f"The host {host} could not be found ({error.strerror}): check how it is written.") from error


def require_web_url(url: str) -> SplitResult:
    """Raises Invalid for anything that is not an http(s) URL with a host, and for one that carries credentials."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise Invalid(f"{url!r} is not a URL: {error}.") from error
    if not usable:
        raise Invalid(f"{url!r} is not an http or https URL with a host.")
    if parts.username is not None or parts.password is not None:
        raise Invalid("A URL must not carry a user name or password.")
    return parts


def plain_host(host: str) -> str:
    """As hosts are listed: in small letters, without the dot of the root."""
    return host.rstrip(".").lower()


def is_of_this_machine(address: str) -> bool:
    """Whether it is one of the machine's own: what listens there may be closed to everybody else.

    Only to its own addresses can a socket be bound. Where the kernel lets sockets be bound to any (`ip_nonlocal_bind`),
    that tells nothing, which is found out with an address that nobody has.
    """
    return may_be_of_this_machine(address) and _bind_problem(_NOBODYS[":" in address]) != 0


def may_be_of_this_machine(address: str) -> bool:
    """Also when that cannot be told, as when this process has no file left to open a socket with."""
    return _bind_problem(address) not in _NOT_OURS


def _bind_problem(address: str) -> int:
    """The error number of an attempt to bind a socket to it, or 0."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trying:
            trying.bind((address, 0))
    except OSError as problem:
        return problem.errno or errno.EIO
    return 0


def is_public(address: Address) -> bool:
    """Stricter than the policy of the same name: it knows services of clouds that have public addresses."""
    address = _destination(address)
    if any(address.version == network.version and address in network for network in _NOT_PUBLIC):
        return False
    return egress_policy.is_public(address)


def _destination(address: Address) -> Address:
    """The IPv4 address that a gateway or a tunnel makes of an IPv6 one; others as they are."""
    address = egress_policy.unwrap_ipv4(address)
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return (address.teredo[1] if address.teredo else address.sixtofour) or address


def _is_listed(address: Address, allowed: Sequence[str]) -> bool:
    judged = _destination(address)
    for entry in allowed:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError:
            continue  # a host name, compared elsewhere
        if judged.version == network.version and judged in network:
            return True
    return False
