"""A domain name system that a test makes up, and two servers on loopback for its names to lead to.

Whoever looks up a name ends at `socket.getaddrinfo`: asyncio, aiohttp, anyio and our own guard. That is where the names
of a test are answered; every other name is looked up as usual.
"""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, repeat
from typing import Any

# Allowed by the test's server: it stands for an address on the internet, where no test may go.
PUBLIC = "127.0.0.2"
# Not allowed: it stands for a service inside the network of the server.
PRIVATE = "127.0.0.1"

_look_up = socket.getaddrinfo  # as it is before any test replaces it


class Names:
    """`names.point("a.example", [PUBLIC], [PRIVATE])`: the first lookup says PUBLIC, every later one PRIVATE."""

    def __init__(self) -> None:
        self._answers: dict[str, Iterator[list[str]]] = {}
        self._failing: set[str] = set()
        self.lookups: list[str] = []

    def point(self, name: str, *answers: list[str]) -> None:
        self._answers[name] = chain(answers, repeat(answers[-1]))

    def fail_for_now(self, name: str) -> None:
        """As when the name server does not answer."""
        self.point(name, [])
        self._failing.add(name)

    def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else str(host)
        known = self._answers.get(name.rstrip(".").lower())
        if known is None:
            return _look_up(host, port, family, type, proto, flags)
        self.lookups.append(name)
        if name in self._failing:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        found = [entry for text in next(known) for entry in self._numeric(text, port, family, type, proto)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    @staticmethod
    def _numeric(text: str, port: Any, family: int, type: int, proto: int) -> list[Any]:
        of = socket.AF_INET6 if ":" in text else socket.AF_INET
        wanted = family in (socket.AF_UNSPEC, of)
        return _look_up(text, port, of, type, proto, socket.AI_NUMERICHOST) if wanted else []


@contextmanager
def one_port_on(*addresses: str) -> Generator[list[socket.socket]]:
    """Bound sockets with the same port at each address: a name leads from one to the other, its port stays."""
    while True:
        with ExitStack() as stack:
            bound = [stack.enter_context(socket.socket()) for _ in addresses]
            bound[0].bind((addresses[0], 0))
            try:
                for each, address in zip(bound[1:], addresses[1:], strict=True):
                    each.bind((address, bound[0].getsockname()[1]))
            except OSError:
                continue  # somebody else has that port there
            yield bound
            return
