"""Identities on the wire. Unlike elsewhere, unknown keys are refused, as they always were here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.records import Identity
from holdfast.wire.bounds import Id, JsonObject, Many, Name

IdentityType = Literal["org", "user", "other"]
Key = Annotated[Name, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class IdentityProperty(_Strict):
    key: Key
    value: str | bool | int | float | JsonObject
    type: Literal["string", "number", "boolean", "json"]


class IdentityUpdate(_Strict):
    """What is sent is added or changed; what is not, stays."""

    identifier_key: Key | None = None
    name: Name | None = None
    identity_type: IdentityType | None = None
    agent_ids: Many[Id] | None = None
    block_ids: Many[Id] | None = None
    properties: Many[IdentityProperty] | None = None


class IdentityCreate(_Strict):
    identifier_key: Key
    name: Name
    identity_type: IdentityType
    project_id: Id | None = None
    agent_ids: Many[Id] | None = None
    block_ids: Many[Id] | None = None
    properties: Many[IdentityProperty] | None = None


class IdentityView(TypedDict):
    id: str
    identifier_key: str
    name: str
    identity_type: str
    project_id: str | None
    agent_ids: list[str]
    block_ids: list[str]
    organization_id: str
    properties: list[dict[str, Any]]


def properties_of(sent: list[IdentityProperty] | None) -> tuple[dict[str, Any], ...]:
    """Each key once: the last one counts."""
    return tuple({each.key: each.model_dump() for each in sent or ()}.values())


def identity_view(identity: Identity) -> IdentityView:
    return {
        "id": identity.id,
        "identifier_key": identity.identifier_key,
        "name": identity.name,
        "identity_type": identity.identity_type,
        "project_id": identity.project_id,
        "agent_ids": list(identity.agent_ids),
        "block_ids": list(identity.block_ids),
        "organization_id": ids.DEFAULT_ORG,
        "properties": list(identity.properties),
    }
