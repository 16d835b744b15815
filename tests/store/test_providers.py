"""Providers that users brought, on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast import ids
from holdfast.core.records import Provider
from holdfast.errors import NotFound
from holdfast.store import providers
from holdfast.store.paging import Page
from holdfast.store.transaction import Database

from .world import NOW, call, look, walk


def a_provider(name: str = "mine", **fields: Any) -> Provider:
    known: dict[str, Any] = {
        "id": ids.new("provider"),
        "name": name,
        "provider_type": "openai",
        "created_us": NOW,
        "updated_us": NOW,
    }
    return Provider(**known | fields)


async def add(database: Database, name: str = "mine", **fields: Any) -> Provider:
    provider = a_provider(name, **fields)
    assert await call(database, providers.insert, provider)
    return provider


async def listed(database: Database, **filters: Any) -> set[str]:
    return {one.name for one in await look(database, providers.list_providers, Page(), **filters)}


async def test_a_provider_comes_back_as_it_went_in(database: Database) -> None:
    provider = await add(
        database,
        base_url="https://x",
        region="eu",
        api_version="1",
        api_key="sealed",
        access_key="sealed too",
        last_synced_us=NOW + 1,
    )
    assert await look(database, providers.get, provider.id) == provider
    assert await call(database, providers.get, provider.id, lock=True) == provider
    assert await call(database, providers.find_named, "mine") == provider
    assert await look(database, providers.all_not_deleted) == [provider]


async def test_an_unknown_provider_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound, match=r"Provider provider-.* not found"):
        await look(database, providers.get, ids.new("provider"))
    assert await call(database, providers.find_named, "none") is None


async def test_of_many_who_take_a_provider_s_name_at_once_one_gets_it(database: Database) -> None:
    outcomes = await asyncio.gather(*(call(database, providers.insert, a_provider()) for _ in range(10)))
    assert sum(outcomes) == 1


async def test_an_update_keeps_the_name_and_changes_everything_else(database: Database) -> None:
    provider = await add(database)
    changed = msgspec.structs.replace(provider, provider_type="groq", api_key="new", updated_us=NOW + 5)
    await call(database, providers.update_provider, msgspec.structs.replace(changed, name="other"))
    assert await look(database, providers.get, provider.id) == changed


async def test_a_deleted_provider_is_found_by_its_name_only(database: Database) -> None:
    provider = await add(database)
    gone = msgspec.structs.replace(provider, deleted_us=NOW + 1)
    await call(database, providers.update_provider, gone)
    with pytest.raises(NotFound):
        await look(database, providers.get, provider.id)
    assert await listed(database) == set()
    assert await look(database, providers.all_not_deleted) == []
    assert await call(database, providers.find_named, "mine") == gone
    assert not await call(database, providers.insert, a_provider())


async def test_every_filter_narrows_the_list_of_providers(database: Database) -> None:
    await add(database)
    await add(database, "theirs", provider_type="anthropic")
    assert await listed(database) == {"mine", "theirs"}
    assert await listed(database, name="mine") == {"mine"}
    assert await listed(database, provider_type="anthropic") == {"theirs"}
    assert await listed(database, name="mine", provider_type="anthropic") == set()


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_walking_the_list_meets_every_provider_once(database: Database, order: Any) -> None:
    added = [await add(database, f"provider-{index}", created_us=NOW + index // 3) for index in range(7)]

    async def page(**cursor: str) -> list[Provider]:
        return await look(database, providers.list_providers, Page(limit=3, order=order, **cursor))  # type: ignore[arg-type]

    assert sorted(await walk(page)) == sorted(provider.id for provider in added)
