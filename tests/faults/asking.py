"""What these suites ask of a served agent, beside what its client offers."""

from __future__ import annotations

from typing import Any

from tests.served import ServedClient

# The tool itself does nothing; that it asks is what matters.
GUARDED = 'def guarded(what: str) -> str:\n    """Does it.\n\n    Args:\n        what: what\n    """\n    return what\n'


async def history(client: ServedClient, agent_id: str, kind: str | None = None) -> list[Any]:
    """Its messages, oldest first; only those of one kind, if one is named."""
    rows: list[Any] = [row async for row in client.agents.messages.list(agent_id, order="asc", limit=200)]
    return [row for row in rows if kind in (None, row.message_type)]
