"""Memory blocks on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.records import Block
from holdfast.wire.bounds import MAX_NAME, Id, JsonObject, Many, Name

# The widest number both databases keep in an ordinary integer column.
MAX_LIMIT = 2**31 - 1

Label = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Limit = Annotated[int, Field(ge=0, le=MAX_LIMIT)]
Tag = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]

STOCK_DESCRIPTIONS = {
    "persona": "Who you are: your character, manner and purpose. Keep it current as you learn how you should behave.",
    "human": "What you know about the person you are talking to. Add what helps you to serve them better.",
}


class BlockFields(BaseModel):
    """What a caller may say about a block beyond its text."""

    description: str | None = None
    metadata: JsonObject | None = None
    hidden: bool | None = None
    template_name: Name | None = None
    project_id: Id | None = None
    tags: Many[Tag] | None = None


class CreateBlock(BlockFields):
    label: Label
    value: str | None = ""
    limit: Limit = 100_000
    read_only: bool = False
    is_template: bool = False


class BlockUpdate(BlockFields):
    """Only what is sent changes. Null clears what may be empty and leaves the rest alone."""

    label: Label | None = None
    value: str | None = None
    limit: Limit | None = None
    read_only: bool | None = None
    is_template: bool | None = None


class BlockResponse(TypedDict):
    id: str
    label: str
    value: str
    limit: int
    description: str | None
    read_only: bool
    metadata: dict[str, Any]
    tags: list[str]
    hidden: bool | None
    is_template: bool
    template_name: str | None
    template_id: str | None
    base_template_id: str | None
    deployment_id: str | None
    entity_id: str | None
    preserve_on_migration: bool
    project_id: str | None
    created_by_id: str
    last_updated_by_id: str


def new_block(request: CreateBlock, block_id: str, now_us: int, *, stock_description: bool = False) -> Block:
    """The block a request describes. Agents created with a human or persona block get a description for it."""
    description = request.description
    if description is None and stock_description:
        description = STOCK_DESCRIPTIONS.get(request.label)
    return Block(
        id=block_id,
        label=request.label,
        value=request.value or "",
        limit=request.limit,
        description=description,
        read_only=request.read_only,
        metadata=request.metadata or {},
        tags=unique_tags(request.tags),
        hidden=request.hidden,
        is_template=request.is_template,
        template_name=request.template_name,
        project_id=request.project_id,
        created_us=now_us,
        updated_us=now_us,
    )


def block_changes(request: BlockUpdate) -> dict[str, Any]:
    """The fields of a Block that the request sets."""
    sent = {name: getattr(request, name) for name in request.model_fields_set if name in _BLOCK_FIELDS}
    cleared: dict[str, Any] = {"metadata": {}, "tags": ()}
    changes: dict[str, Any] = {}
    for name, value in sent.items():
        if value is not None:
            changes[name] = unique_tags(value) if name == "tags" else value
        elif name in _NULLABLE:
            changes[name] = cleared.get(name)
    return changes


def block_view(block: Block) -> BlockResponse:
    return {
        "id": block.id,
        "label": block.label,
        "value": block.value,
        "limit": block.limit,
        "description": block.description,
        "read_only": block.read_only,
        "metadata": block.metadata,
        "tags": list(block.tags),
        "hidden": block.hidden,
        "is_template": block.is_template,
        "template_name": block.template_name,
        "template_id": None,
        "base_template_id": None,
        "deployment_id": None,
        "entity_id": None,
        "preserve_on_migration": False,
        "project_id": block.project_id,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
    }


def unique_tags(tags: list[str] | None) -> tuple[str, ...]:
    return tuple(sorted(set(tags or ())))


_BLOCK_FIELDS = frozenset(BlockUpdate.model_fields)
_NULLABLE = frozenset({"description", "metadata", "hidden", "template_name", "project_id", "tags"})
