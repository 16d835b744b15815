"""Egress policies: which addresses a custom tool may connect to.

A policy judges addresses, never names, at the moment of the connection. So it does not matter how a tool spells an
address, or what a name pointed to a moment ago.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Mode = Literal["none", "public", "allow-list", "all"]

MODES: Final[tuple[Mode, ...]] = ("none", "public", "allow-list", "all")
TAG_PREFIX: Final = "egress:"
DNS_PORT: Final = 53
_ALLOW: Final = "allow="
_MOST_HOST_CHARS: Final = 253
# A gateway or a tunnel turns these into the IPv4 address that they contain.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
# Counts as global, but is NAT64 of a local network. Its prefix length is not known, so the address cannot be unwrapped.
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_OLD_SITE_LOCAL: Final = ipaddress.IPv6Network("fec0::/10")


class Entry(msgspec.Struct, frozen=True):
    """One entry of an allow-list: a host name or a network, and perhaps a port."""

    host: str  # a name in lower case, or a network such as 10.0.0.0/8 or 127.0.0.1/32
    port: int | None = None

    @property
    def network(self) -> Network | None:
        try:
            return ipaddress.ip_network(self.host)
        except ValueError:
            return None


class Egress(msgspec.Struct, frozen=True):
    """A policy. What a tool may do is what both the server's policy and the tool's own allow."""

    mode: Mode = "public"
    allow: tuple[Entry, ...] = ()  # for the mode allow-list

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.host for entry in self.allow if entry.network is None)

    @property
    def needs_names(self) -> bool:
        """Whether a tool under this policy may ask the machine's DNS servers."""
        return self.mode in ("public", "all") or bool(self.names)

    def allows(self, address: Address, port: int) -> bool:
        """By address alone. A name of the list may allow more: see `allows_as`."""
        match self.mode:
            case "all":
                return True
            case "none":
                return False
            case "public":
                return is_public(address)
            case "allow-list":  # pragma: no branch - there is no other mode
                return any(_matches(entry, address, port) for entry in self.allow)

    def allows_as(self, name: str, port: int) -> bool:
        """Whether the list allows the port of a host with this name."""
        return any(entry.host == name and entry.port in (None, port) for entry in self.allow)


class UnknownEgress(ValueError):
    """The text of a policy that cannot be understood; the message says what would be."""


def is_public(address: Address) -> bool:
    """Whether the address belongs to the internet, also when it is an IPv4 address within an IPv6 address."""
    address = unwrap_ipv4(address)
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return is_public(inner)
        if address in _LOCAL_NAT64 or address in _OLD_SITE_LOCAL:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def unwrap_ipv4(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped, IPv4-compatible or NAT64 address stands for; others as they are."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.scope_id is not None:
        return ipaddress.IPv6Address(int(address))
    return address


def entries(text: str) -> tuple[Entry, ...]:
    """An allow-list, separated by commas."""
    return tuple(_entry(part.strip()) for part in text.split(",") if part.strip())


def of_tags(tags: Iterable[str]) -> Egress | None:
    """A tool's own policy, set by its tags; None when there are none. Several `egress:allow=` tags are one list."""
    values = [tag.removeprefix(TAG_PREFIX).strip() for tag in tags if tag.startswith(TAG_PREFIX)]
    if not values:
        return None
    listed = [word for word in values if word.startswith(_ALLOW)]
    plain_words = {word for word in values if not word.startswith(_ALLOW)}
    unknown = plain_words - {"none", "public"}
    if unknown:
        raise UnknownEgress(
            f"The tag {TAG_PREFIX}{min(unknown)} is not understood. A tool may be tagged egress:none, egress:public or "
            "egress:allow=HOST:PORT; a tag can only narrow the server's own policy."
        )
    if "none" in plain_words:
        return Egress("none")
    allowed = tuple(entry for word in listed for entry in entries(word.removeprefix(_ALLOW)))
    if listed and not allowed:
        raise UnknownEgress("The tag egress:allow= lists nothing. Write egress:allow=HOST:PORT, or egress:none.")
    return Egress("allow-list", allowed) if listed else Egress("public")


def strictest(policies: Iterable[Egress | None]) -> Egress | None:
    """A policy that allows nothing that any of them forbids; None when none of them narrows anything.

    `none` where the intersection of two is not known: the addresses of a listed name are not looked up here.
    """
    narrowing = list(dict.fromkeys(policy for policy in policies if policy is not None and policy.mode != "all"))
    if len(narrowing) < 2:
        return narrowing[0] if narrowing else None
    if any(policy.mode != "allow-list" for policy in narrowing):
        return Egress("none")
    common = tuple(entry for entry in narrowing[0].allow if all(entry in policy.allow for policy in narrowing[1:]))
    return Egress("allow-list", common) if common else Egress("none")


def _matches(entry: Entry, address: Address, port: int) -> bool:
    network = entry.network
    if network is None or entry.port not in (None, port):
        return False
    judged = unwrap_ipv4(address)
    return judged.version == network.version and judged in network


def _entry(text: str) -> Entry:
    if "://" in text:
        raise UnknownEgress(f"An egress list names hosts and networks, not URLs; found {text!r}.")
    host, port = _host_and_port(text)
    try:
        return Entry(str(_plain_network(ipaddress.ip_network(host, strict=False))), port)
    except ValueError:
        pass  # not a network, so it must be a name
    name = host.rstrip(".").lower()
    usable = name.replace("-", "").replace(".", "").replace("_", "").isalnum() and len(name) <= _MOST_HOST_CHARS
    if not usable or name.replace(".", "").isdecimal():
        raise UnknownEgress(
            f"{text!r} is neither a host such as api.example.com:443 nor a network such as 10.0.0.0/8 or [::1]:8080."
        )
    return Entry(name, port)


def _plain_network(network: Network) -> Network:
    if network.prefixlen == network.max_prefixlen:
        return ipaddress.ip_network(unwrap_ipv4(network.network_address))
    return network


def _host_and_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        after = rest.removeprefix(":") if rest.startswith(":") else ""
        if rest and not after:
            raise UnknownEgress(f"{text!r} has no port after the bracket; write it as [::1]:8080.")
    elif text.count(":") == 1:
        host, _, after = text.partition(":")
    else:
        return text, None  # an IPv6 address without a port has many colons
    if not after:
        return host, None
    if not (after.isdecimal() and after.isascii() and 1 <= int(after) <= 65_535):
        raise UnknownEgress(f"{text!r} does not end with a port from 1 to 65535.")
    return host, int(after)
