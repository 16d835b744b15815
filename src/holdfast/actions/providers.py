"""Providers that users bring: their keys are sealed when they come in, and opened only to call the vendor."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.actions.queries import Page
from holdfast.core.records import Provider
from holdfast.errors import AddressRefused, Conflict, Invalid, ModelUnavailable, Rejected, Unsupported, WrongKey
from holdfast.llm.base import Catalog
from holdfast.llm.catalog.discovery import can_list
from holdfast.llm.catalog.environment import bedrock_endpoint, vertex_endpoint
from holdfast.llm.endpoint import Endpoint, base_url
from holdfast.secretbox import SecretBox
from holdfast.settings import Settings
from holdfast.ssrf_guard import check_url
from holdfast.store import providers as provider_rows
from holdfast.store import sealed
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.providers import ProviderCheck, ProviderCreate, ProviderUpdate, provider_changes

_KEYS: Final = ("api_key", "access_key")
# The first was the old vendor's own service; the second logs in as a browser does.
_UNUSABLE: Final = frozenset({"letta", "chatgpt_oauth"})

_log = logging.getLogger(__name__)


class Surroundings(msgspec.Struct, frozen=True):
    """What every one of these needs."""

    settings: Settings
    database: Database
    catalog: Catalog
    secretbox: SecretBox


async def list_providers(
    database: Database, page: Page, *, name: str | None, provider_type: str | None
) -> list[Provider]:
    return await database.read(
        lambda tx: provider_rows.list_providers(tx, page, name=name, provider_type=provider_type)
    )


async def read_provider(database: Database, provider_id: str) -> Provider:
    return await database.read(lambda tx: provider_rows.get(tx, provider_id))


async def create_provider(around: Surroundings, request: ProviderCreate, now_us: int) -> Provider:
    if around.catalog.is_reserved(request.name):
        raise Invalid(f"The name {request.name} belongs to a provider of this server: choose another.")
    wanted = Provider(
        id=ids.new("provider"),
        name=request.name,
        provider_type=request.provider_type,
        base_url=request.base_url,
        region=request.region,
        api_version=request.api_version,
        api_key=_sealed(around.secretbox, request.api_key),
        access_key=_sealed(around.secretbox, request.access_key),
        created_us=now_us,
        updated_us=now_us,
    )
    if wanted.provider_type == "bedrock" and not (wanted.api_key and wanted.access_key):
        raise Invalid("Bedrock needs access_key (the id of the AWS key) and api_key (its secret).")
    await _require_usable(around, wanted)

    async def write(tx: Transaction) -> Provider:
        if await provider_rows.insert(tx, wanted):
            return wanted
        known = await provider_rows.find_named(tx, wanted.name)
        if known is None or known.deleted_us is None:
            raise Conflict(f"There is a provider called {wanted.name} already: change it, or choose another name.")
        revived = msgspec.structs.replace(wanted, id=known.id)
        await provider_rows.update_provider(tx, revived)
        return revived

    created = await around.database.write(write)
    await around.catalog.reload()
    return created


async def update_provider(around: Surroundings, provider_id: str, request: ProviderUpdate, now_us: int) -> Provider:
    changes: dict[str, Any] = provider_changes(request)
    for name in _KEYS:
        if name in changes:
            changes[name] = _sealed(around.secretbox, changes[name])
    known = await around.database.read(lambda tx: provider_rows.get(tx, provider_id))
    await _require_usable(around, msgspec.structs.replace(known, **changes))

    async def write(tx: Transaction) -> Provider:
        current = await provider_rows.get(tx, provider_id, lock=True)
        changed = msgspec.structs.replace(current, **changes, updated_us=now_us)
        await provider_rows.update_provider(tx, changed)
        return changed

    updated = await around.database.write(write)
    await around.catalog.reload()
    return updated


async def delete_provider(around: Surroundings, provider_id: str, now_us: int) -> None:
    """Its keys go at once; the row stays for its name."""

    async def write(tx: Transaction) -> None:
        known = await provider_rows.get(tx, provider_id, lock=True)
        gone = msgspec.structs.replace(known, api_key=None, access_key=None, deleted_us=now_us, updated_us=now_us)
        await provider_rows.update_provider(tx, gone)

    await around.database.write(write)
    await around.catalog.reload()


async def check_keys(around: Surroundings, request: ProviderCheck) -> None:
    """Really asks the vendor. Raises a ModelError when it says no, and Invalid when nobody is there to say anything."""
    described = Provider(
        id="",
        name=request.provider_type,
        provider_type=request.provider_type,
        base_url=request.base_url,
        region=request.region,
        api_version=request.api_version,
    )
    await _require_usable(around, described)
    await _check(around, described, _endpoint(described, request.api_key, request.access_key))


async def check_provider(around: Surroundings, provider_id: str) -> Provider:
    provider = await around.database.read(lambda tx: provider_rows.get(tx, provider_id))
    await _require_usable(around, provider)
    await _check(around, provider, endpoint_of(provider, around.secretbox))
    return provider


async def refresh_provider(around: Surroundings, provider_id: str, now_us: int) -> Provider:
    """Lists its models anew, and remembers when that worked."""
    provider = await around.database.read(lambda tx: provider_rows.get(tx, provider_id))
    with _blaming_the_address_of(provider):
        await around.catalog.refresh(provider.name)

    async def write(tx: Transaction) -> Provider:
        current = await provider_rows.get(tx, provider_id, lock=True)
        synced = msgspec.structs.replace(current, last_synced_us=now_us)
        await provider_rows.update_provider(tx, synced)
        return synced

    return await around.database.write(write)


async def load_endpoints(database: Database, secretbox: SecretBox) -> list[Endpoint]:
    """What the catalog is given. One whose key cannot be opened is used without, and the log says why."""
    return [_usable_endpoint(provider, secretbox) for provider in await database.read(provider_rows.all_not_deleted)]


def endpoint_of(provider: Provider, secretbox: SecretBox) -> Endpoint:
    """Raises Invalid when something is missing, and WrongKey when the keys were sealed by another server."""
    opened = {name: _opened(secretbox, getattr(provider, name)) for name in _KEYS}
    return _endpoint(provider, opened["api_key"], opened["access_key"])


def _usable_endpoint(provider: Provider, secretbox: SecretBox) -> Endpoint:
    try:
        return endpoint_of(provider, secretbox)
    except WrongKey as error:
        _log.error("provider %s: %s", provider.name, error)
        return _endpoint(provider, None, None)


def _endpoint(provider: Provider, api_key: str | None, access_key: str | None) -> Endpoint:
    match provider.provider_type:
        case "bedrock":
            made = bedrock_endpoint(provider.name, provider.region, access_key=access_key or "", secret=api_key or "")
        case "google_vertex":
            made = vertex_endpoint(provider.name, provider.region, api_key=api_key)
        case _:
            made = Endpoint(
                provider_name=provider.name,
                provider_type=provider.provider_type,
                base_url=_address(provider),
                api_key=api_key,
                options={"api_version": provider.api_version} if provider.api_version else {},
            )
    return msgspec.structs.replace(made, category="byok")


async def _check(around: Surroundings, provider: Provider, endpoint: Endpoint) -> None:
    if not can_list(endpoint.provider_type):
        raise Unsupported(f"Keys for {endpoint.provider_type} cannot be checked without calling a model.")
    with _blaming_the_address_of(provider):
        await around.catalog.check(endpoint)


@contextmanager
def _blaming_the_address_of(provider: Provider) -> Generator[None]:
    """Whoever wrote an address can mend it: that it leads nowhere is their answer, and no failure of the server."""
    try:
        yield
    except AddressRefused as error:
        raise Invalid(error.message) from error
    except (ModelUnavailable, Rejected) as error:
        # A vendor that says itself that it is out of order has been found; what a network did wrong has a cause.
        found = isinstance(error, ModelUnavailable) and error.__cause__ is None
        if provider.base_url is None or found:
            raise
        raise Invalid(
            f"{error.message.removesuffix('.')}. Check base_url: it must be the address of a server that this one can "
            f"reach and trust, and that speaks as {provider.provider_type} does."
        ) from error


async def _require_usable(around: Surroundings, provider: Provider) -> None:
    if provider.provider_type in _UNUSABLE:
        raise Invalid(f"Providers of type {provider.provider_type} cannot be used with this server.")
    address = _address(provider)
    # Judged again at every connection; here so that its writer is told at once.
    if provider.base_url and address and around.settings.guards_providers:
        await check_url(address, around.settings.allowed_hosts)


def _address(provider: Provider) -> str:
    """Empty where the region makes it."""
    if provider.provider_type in ("bedrock", "google_vertex"):
        return ""
    try:
        return base_url(provider.provider_type, provider.base_url)
    except ValueError as error:
        raise Invalid(f"base_url {error}.") from error


def _sealed(secretbox: SecretBox, key: str | None) -> str | None:
    return None if key is None else sealed.as_text(secretbox.seal(key))


def _opened(secretbox: SecretBox, stored: str | None) -> str | None:
    return None if stored is None else secretbox.open(sealed.from_text(stored))
