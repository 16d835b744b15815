"""Providers that users brought, on the wire. Keys go in and never come out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.records import Provider
from holdfast.wire.models import ProviderType
from holdfast.wire.times import optional_timestamp, timestamp


def _empty_is_null(value: object) -> object:
    return value.strip() or None if isinstance(value, str) else value


def _fits_a_header(key: str) -> str:
    if not (key.isascii() and key.isprintable()):
        raise ValueError("must hold nothing but printable ASCII characters, because it is sent in a header")
    return key


# A name is the first half of handles, so it holds no slash.
ProviderName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Key = Annotated[
    Annotated[str, Field(max_length=20_000), AfterValidator(_fits_a_header)] | None, BeforeValidator(_empty_is_null)
]
# It becomes part of a host's name, and must not lead to another host.
Region = Annotated[
    Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9-]+$")] | None, BeforeValidator(_empty_is_null)
]
Detail = Annotated[Annotated[str, Field(max_length=2_000)] | None, BeforeValidator(_empty_is_null)]


class ProviderFields(BaseModel):
    model_config = ConfigDict(extra="forbid")

    access_key: Key = None
    region: Region = None
    base_url: Detail = None
    api_version: Detail = None


class ProviderCreate(ProviderFields):
    name: ProviderName
    provider_type: ProviderType
    api_key: Key


class ProviderUpdate(ProviderFields):
    """Only what is sent changes; null and the empty text clear."""

    api_key: Key = None


class ProviderCheck(ProviderFields):
    model_config = ConfigDict(extra="ignore")

    provider_type: ProviderType
    api_key: Key


class ProviderView(TypedDict):
    id: str
    name: str
    provider_type: str
    provider_category: Literal["byok"]
    api_key: None
    base_url: str | None
    access_key: None
    region: str | None
    api_version: str | None
    organization_id: str
    updated_at: str
    last_synced: str | None
    api_key_enc: None
    access_key_enc: None
    has_api_key: bool
    has_access_key: bool


class ProviderStatusView(TypedDict):
    name: str
    provider_type: str
    provider_category: str
    base_url: str
    status: Literal["ok", "failed", "not_asked", "unlistable"]
    since: str | None
    problem: str | None
    models: int


def provider_view(provider: Provider) -> ProviderView:
    return {
        "id": provider.id,
        "name": provider.name,
        "provider_type": provider.provider_type,
        "provider_category": "byok",
        "api_key": None,
        "base_url": provider.base_url,
        "access_key": None,
        "region": provider.region,
        "api_version": provider.api_version,
        "organization_id": ids.DEFAULT_ORG,
        "updated_at": timestamp(provider.updated_us),
        "last_synced": optional_timestamp(provider.last_synced_us),
        "api_key_enc": None,
        "access_key_enc": None,
        "has_api_key": provider.api_key is not None,
        "has_access_key": provider.access_key is not None,
    }


def provider_changes(request: ProviderUpdate) -> dict[str, Any]:
    """The fields that the request sets, keys still as they were sent."""
    return {name: getattr(request, name) for name in request.model_fields_set}
