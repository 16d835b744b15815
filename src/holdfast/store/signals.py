"""Signals between the processes that share a database. A signal is a hint, never the truth: it may be lost or repeated.

Whoever hears one looks at the record. SQLite has one process, and so no signals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit


class Signals(Protocol):
    connected: bool  # False: signals are being lost, so the record must be looked at more often

    def send(self, signal: str) -> None:
        """To every other process, soon. Never waits."""
        ...

    async def run_forever(self, heard: Callable[[str], None], missed: Callable[[], None]) -> None:
        """`heard` is called with each signal of another process; `missed`, when some may have been lost."""
        ...


def open_signals(url: str) -> Signals | None:
    """`url` must lead to PostgreSQL itself: a proxy that pools transactions passes no notifications on."""
    if not urlsplit(url).scheme.startswith("postgres"):
        return None
    # asyncpg takes a noticeable part of the start-up budget, which SQLite users should not pay.
    from holdfast.store.postgres_signals import PostgresSignals  # noqa: PLC0415

    return PostgresSignals("postgresql" + url[url.index(":") :])
