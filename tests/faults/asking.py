"""What these suites ask of a served agent, beside what its client offers."""

from __future__ import annotations

from typing import Any

from holdfast.llm.catalog import ModelCatalog
from tests.served import ServedClient

# The tool itself does nothing; that it asks is what matters.
GUARDED = 'def guarded(what: str) -> str:\n    """Does it.\n\n    Args:\n        what: what\n    """\n    return what\n'


def open_streams(client: ServedClient) -> int:
    """How many replies the offline model is giving right now."""
    assert isinstance(client.deps.catalog, ModelCatalog)
    return client.deps.catalog.offline.model.open_streams


async def history(client: ServedClient, agent_id: str, kind: str | None = None) -> list[Any]:
    """Its messages, oldest first; only those of one kind, if one is named."""
    rows: list[Any] = [row async for row in client.agents.messages.list(agent_id, order="asc", limit=200)]
    return [row for row in rows if kind in (None, row.message_type)]
