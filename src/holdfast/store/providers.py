"""Providers that users brought. One that was deleted keeps its row, and comes back when its name is used again."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import bindparam, select, update

from holdfast.core.records import Provider
from holdfast.errors import NotFound
from holdfast.store.paging import Ordering, Page, fetch_page
from holdfast.store.statements import insert_or_ignore
from holdfast.store.tables import providers
from holdfast.store.transaction import Row, Transaction

_BY_AGE = Ordering(sort=providers.c.created_us, id=providers.c.id, what="Provider")
_LIVING = providers.c.deleted_us.is_(None)
_INSERT = insert_or_ignore(providers)
_ONE = select(providers).where(providers.c.id == bindparam("id"), _LIVING)
_ONE_LOCKED = _ONE.with_for_update()
_NAMED_LOCKED = select(providers).where(providers.c.name == bindparam("name")).with_for_update()
_ALL = select(providers).where(_LIVING).order_by(providers.c.name)
_UPDATE = (
    update(providers)
    .where(providers.c.id == bindparam("of_provider"))
    .values({column: bindparam(f"new_{column.name}") for column in providers.c if column.name not in ("id", "name")})
)


async def insert(tx: Transaction, provider: Provider) -> bool:
    """False when the name is taken, be it by one that was deleted."""
    return await tx.execute(_INSERT, msgspec.structs.asdict(provider)) == 1


async def get(tx: Transaction, provider_id: str, *, lock: bool = False) -> Provider:
    """`lock` keeps the row as it is until the transaction ends, for a change that depends on what it holds."""
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": provider_id})
    if row is None:
        raise NotFound(f"Provider {provider_id} not found")
    return _record(row)


async def find_named(tx: Transaction, name: str) -> Provider | None:
    """Also one that was deleted. Locked: whoever looks one up by its name is about to write it."""
    row = await tx.fetch_one(_NAMED_LOCKED, {"name": name})
    return None if row is None else _record(row)


async def update_provider(tx: Transaction, provider: Provider) -> None:
    """Write the whole row; its name stays."""
    columns = msgspec.structs.asdict(provider)
    changed = {f"new_{name}": value for name, value in columns.items() if name not in ("id", "name")}
    await tx.execute(_UPDATE, {"of_provider": provider.id, **changed})


async def all_not_deleted(tx: Transaction) -> list[Provider]:
    return [_record(row) for row in await tx.fetch_all(_ALL)]


async def list_providers(
    tx: Transaction, page: Page, *, name: str | None = None, provider_type: str | None = None
) -> list[Provider]:
    query = select(providers).where(_LIVING)
    if name is not None:
        query = query.where(providers.c.name == name)
    if provider_type is not None:
        query = query.where(providers.c.provider_type == provider_type)
    return [_record(row) for row in await fetch_page(tx, query, _BY_AGE, page)]


def _record(row: Row) -> Provider:
    fields: dict[str, Any] = {name: row[name] for name in Provider.__struct_fields__}
    return Provider(**fields)
