"""Which addresses the server may be sent to by a URL that somebody else wrote: webhooks and images.

A host is resolved once and every address is judged. `outgoing` connects to the very addresses that were judged, so a
name cannot point elsewhere between the check and the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.errors import Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Public by its own look, but a gateway turns it into the IPv4 address in its last 32 bits.
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class Target(msgspec.Struct, frozen=True):
    """A URL that was judged, and the addresses it may be fetched from."""

    url: str
    host: str
    port: int
    addresses: tuple[str, ...]


async def check_url(url: str, allowed: Sequence[str] = ()) -> Target:
    """Raises Invalid unless the URL is http(s) and every address of its host is public or allow-listed."""
    parts = _split(url)
    host = (parts.hostname or "").rstrip(".").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = await _resolve(host, port)
    if host not in allowed:
        for address in addresses:
            if not _is_public(address) and not _is_listed(address, allowed):
                raise Invalid(
                    f"{url} leads to {address}, which is not a public address. "
                    f"If that is wanted, add {host} to HOLDFAST_ALLOWED_HOSTS."
                )
    return Target(url, host, port, tuple(str(address) for address in addresses))


def _split(url: str) -> SplitResult:
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


async def _resolve(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Invalid(f"The host {host} could not be found ({error}): check how it is written.") from error
    # A scope such as fe80::1%eth0 is dropped: link-local addresses are refused or listed without it.
    texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return [ipaddress.ip_address(text) for text in texts]


def _is_public(address: Address) -> bool:
    inner = _embedded_ipv4(address)
    if inner is not None:
        return _is_public(inner)
    return address.is_global and not address.is_multicast and not address.is_reserved


def _embedded_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


def _is_listed(address: Address, allowed: Sequence[str]) -> bool:
    """IPv4-mapped addresses are judged by the IPv4 address they stand for."""
    judged = _embedded_ipv4(address) or address
    for entry in allowed:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError:
            continue  # a host name, compared elsewhere
        if judged.version == network.version and judged in network:
            return True
    return False
