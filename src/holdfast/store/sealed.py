"""Every value that is stored sealed: agents' secrets, the keys of providers, what MCP servers and logins at them hold.

For sealing them with another key.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from sqlalchemy import bindparam, select, update

from holdfast.store.tables import agent_secrets, mcp_logins, mcp_servers, providers
from holdfast.store.transaction import Transaction

# A secret keeps its row and its id: an approval counts on the id to tell that the value has not changed.
_SECRETS = select(agent_secrets.c.id, agent_secrets.c.value_enc)
_PUT_SECRET = (
    update(agent_secrets)
    .where(agent_secrets.c.id == bindparam("of"), agent_secrets.c.value_enc == bindparam("before"))
    .values(value_enc=bindparam("after"))
)
# Sealed as text, in tables whose rows have an id.
_KEYS: Final = {
    column: select(column.table.c.id, column).where(column.is_not(None))
    for column in (providers.c.api_key, providers.c.access_key, mcp_servers.c.secrets, mcp_logins.c.secrets)
}
_PUT_KEY: Final = {
    column: update(column.table)
    .where(column.table.c.id == bindparam("of"), column == bindparam("before"))
    .values({column: bindparam("after")})
    for column in _KEYS
}


def as_text(sealed: bytes) -> str:
    """How the key of a provider is stored, and every value that was sealed after it."""
    return base64.b64encode(sealed).decode()


def from_text(stored: str) -> bytes:
    return base64.b64decode(stored)


async def replace(tx: Transaction, change: Callable[[bytes], bytes]) -> int:
    """Put `change` of each value in its place; gives how many were changed. One that somebody else changes meanwhile is
    left to them."""
    changed = 0
    for row in await tx.fetch_all(_SECRETS):
        if (after := change(row["value_enc"])) != row["value_enc"]:
            changed += await tx.execute(_PUT_SECRET, {"of": row["id"], "before": row["value_enc"], "after": after})
    for column, keys in _KEYS.items():
        for row in await tx.fetch_all(keys):
            before: str = row[column.name]
            if (after := as_text(change(from_text(before)))) != before:
                changed += await tx.execute(_PUT_KEY[column], {"of": row["id"], "before": before, "after": after})
    return changed
