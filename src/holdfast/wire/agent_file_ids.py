"""The ids that records have in an agent file that is written: numbers, in the order in which they are met."""

from __future__ import annotations


class LocalIds:
    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def of(self, prefix: str, id: str) -> str:
        known = self._known.setdefault(prefix, {})
        return known.setdefault(id, f"{prefix}-{len(known)}")

    def find(self, prefix: str, id: str) -> str | None:
        """None for what is not in the file."""
        return self._known.get(prefix, {}).get(id)
