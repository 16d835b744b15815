"""Archives and passages on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.records import Archive, Passage
from holdfast.errors import Invalid
from holdfast.wire.blocks import Tag
from holdfast.wire.bounds import Id, JsonObject, Many, Name, SearchText
from holdfast.wire.model_settings import EmbeddingConfig, EmbeddingHandle
from holdfast.wire.times import microseconds, timestamp

TagMatchMode = Literal["any", "all"]
StorageUnit = Literal["B", "KB", "MB", "GB", "TB"]
ArchiveName = Annotated[Name, Field(min_length=1)]


class ArchiveCreate(BaseModel):
    name: ArchiveName
    description: str | None = None
    embedding: EmbeddingHandle | None = None
    embedding_config: EmbeddingConfig | None = None


class ArchiveUpdate(BaseModel):
    """Only what is sent changes."""

    name: ArchiveName | None = None
    description: str | None = None


class AgentPassageCreate(BaseModel):
    text: str
    tags: Many[Tag] | None = None
    created_at: Name | None = None


class PassageCreate(AgentPassageCreate):
    metadata: JsonObject | None = None


class PassageUpdate(BaseModel):
    """Only what is sent changes; `null` changes nothing."""

    text: str | None = None
    tags: Many[Tag] | None = None
    metadata: JsonObject | None = None


class PassageBatchCreate(BaseModel):
    passages: Many[PassageCreate]


class PassageSearch(BaseModel):
    query: SearchText | None = None
    agent_id: Id | None = None
    archive_id: Id | None = None
    tags: Many[Tag] | None = None
    tag_match_mode: TagMatchMode = "any"
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    start_date: Name | None = None
    end_date: Name | None = None


class ArchiveView(TypedDict):
    id: str
    name: str
    description: str | None
    vector_db_provider: Literal["native"]
    embedding_config: dict[str, Any] | None
    metadata: dict[str, Any] | None
    organization_id: str
    created_by_id: str
    last_updated_by_id: str
    created_at: str
    updated_at: str


class PassageView(TypedDict):
    id: str
    text: str
    archive_id: str | None
    tags: list[str] | None
    metadata: dict[str, Any]
    embedding: list[float] | None
    embedding_config: dict[str, Any] | None
    source_id: str | None
    file_id: str | None
    file_name: str | None
    is_deleted: bool
    organization_id: str
    created_by_id: str
    last_updated_by_id: str
    created_at: str
    updated_at: str


class FoundPassage(TypedDict):
    passage: PassageView
    score: float
    metadata: dict[str, Any]


class FoundMemory(TypedDict):
    id: str
    timestamp: str
    content: str
    tags: list[str]


class MemorySearchAnswer(TypedDict):
    results: list[FoundMemory]
    count: int


def archive_view(archive: Archive) -> ArchiveView:
    return {
        "id": archive.id,
        "name": archive.name,
        "description": archive.description,
        "vector_db_provider": "native",
        "embedding_config": archive.embedding_config,
        "metadata": None,
        "organization_id": ids.DEFAULT_ORG,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
        "created_at": timestamp(archive.created_us),
        "updated_at": timestamp(archive.updated_us),
    }


def passage_view(passage: Passage, archive: Archive | None) -> PassageView:
    """Without its vector: nobody reads thousands of numbers, and every list would be made of them."""
    return {
        "id": passage.id,
        "text": passage.text,
        "archive_id": passage.archive_id,
        "tags": list(passage.tags) or None,
        "metadata": passage.metadata,
        "embedding": None,
        "embedding_config": archive.embedding_config if archive else None,
        "source_id": None,
        "file_id": None,
        "file_name": None,
        "is_deleted": False,
        "organization_id": ids.DEFAULT_ORG,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
        "created_at": timestamp(passage.created_us),
        "updated_at": timestamp(passage.updated_us),
    }


def moment_us(written: str | None) -> int | None:
    """`created_at` as a caller wrote it."""
    if written is None:
        return None
    try:
        moment = microseconds(datetime.fromisoformat(written))
        timestamp(moment)  # in UTC it may be outside the years 1 to 9999, and then nothing can show it
        return moment
    except (ValueError, OverflowError) as error:
        raise Invalid(str(error)) from error


def in_unit(size: int, unit: StorageUnit) -> float:
    return size / 1024 ** get_args(StorageUnit).index(unit)
