"""Folders and files on the wire. `Source` is the retired name of a folder, and has one more field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.chunking import FEWEST_TOKENS, MOST_TOKENS
from holdfast.core.records import AgentFile, File, Folder, Passage
from holdfast.wire.archives import PassageView
from holdfast.wire.bounds import JsonObject, Name
from holdfast.wire.model_settings import EmbeddingConfig, EmbeddingHandle
from holdfast.wire.times import optional_timestamp, timestamp

FolderName = Annotated[Name, Field(min_length=1)]
DuplicateHandling = Literal["skip", "error", "suffix", "replace"]


class FolderCreate(BaseModel):
    name: FolderName
    description: str | None = None
    instructions: str | None = None
    metadata: JsonObject | None = None
    embedding: EmbeddingHandle | None = None
    embedding_chunk_size: Annotated[int, Field(ge=FEWEST_TOKENS, le=MOST_TOKENS)] | None = None
    embedding_config: EmbeddingConfig | None = None


class FolderUpdate(BaseModel):
    """Only what is sent changes."""

    name: FolderName | None = None
    description: str | None = None
    instructions: str | None = None
    metadata: JsonObject | None = None
    embedding_config: EmbeddingConfig | None = None


class FolderView(TypedDict):
    name: str
    description: str | None
    instructions: str | None
    metadata: dict[str, Any] | None
    id: str
    embedding_config: dict[str, Any] | None
    organization_id: str
    created_by_id: str
    last_updated_by_id: str
    created_at: str
    updated_at: str


class SourceView(FolderView):
    vector_db_provider: Literal["native"]


class FileView(TypedDict):
    source_id: str
    file_name: str
    original_file_name: str
    file_path: str | None
    file_type: str
    file_size: int
    file_creation_date: str | None
    file_last_modified_date: str | None
    processing_status: str
    error_message: str | None
    total_chunks: int | None
    chunks_embedded: int
    content: str | None
    id: str
    organization_id: str
    created_at: str
    updated_at: str


class AgentFileView(TypedDict):
    id: str
    file_id: str
    file_name: str
    folder_id: str
    folder_name: str
    is_open: bool
    last_accessed_at: str | None
    visible_content: str | None
    start_line: int | None
    end_line: int | None


class AgentFilesPage(TypedDict):
    files: list[AgentFileView]
    next_cursor: str | None
    has_more: bool


class FileStats(TypedDict):
    file_id: str
    file_name: str
    file_size: int


class FolderStats(TypedDict):
    source_id: str
    source_name: str
    file_count: int
    total_size: int
    files: list[FileStats]


class AllStats(TypedDict):
    total_sources: int
    total_files: int
    total_size: int
    sources: list[FolderStats]


class UploadBody(BaseModel):
    """What a form has to hold, for the API's description."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]


class FileContent(msgspec.Struct, frozen=True):
    """A file with its text, where that was asked for."""

    file: File
    text: str | None = None


class FileBlockView(TypedDict):
    id: str
    label: str
    value: str
    limit: int
    read_only: bool
    file_id: str
    source_id: str
    is_open: bool
    last_accessed_at: str | None


class SeenFile(msgspec.Struct, frozen=True):
    """A file of an agent, with what it sees of it if it is open."""

    file: AgentFile
    visible: str | None


def folder_view(folder: Folder) -> FolderView:
    return {
        "name": folder.name,
        "description": folder.description,
        "instructions": folder.instructions,
        "metadata": folder.metadata,
        "id": folder.id,
        "embedding_config": folder.embedding_config,
        "organization_id": folder.organization_id,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
        "created_at": timestamp(folder.created_us),
        "updated_at": timestamp(folder.updated_us),
    }


def source_view(folder: Folder) -> SourceView:
    return {**folder_view(folder), "vector_db_provider": "native"}


def file_view(shown: FileContent) -> FileView:
    file = shown.file
    return {
        "source_id": file.folder_id,
        "file_name": file.name,
        "original_file_name": file.original_name,
        "file_path": None,
        "file_type": file.media_type,
        "file_size": file.size,
        "file_creation_date": None,
        "file_last_modified_date": None,
        "processing_status": file.status,
        "error_message": file.error,
        "total_chunks": file.total_chunks,
        "chunks_embedded": file.chunks_embedded,
        "content": shown.text,
        "id": file.id,
        "organization_id": ids.DEFAULT_ORG,
        "created_at": timestamp(file.created_us),
        "updated_at": timestamp(file.updated_us),
    }


def agent_file_view(seen: SeenFile) -> AgentFileView:
    file = seen.file
    return {
        "id": file.id,
        "file_id": file.file_id,
        "file_name": file.full_name,
        "folder_id": file.folder_id,
        "folder_name": file.folder_name,
        "is_open": file.is_open,
        "last_accessed_at": optional_timestamp(file.accessed_us),
        "visible_content": seen.visible,
        "start_line": file.first_line,
        "end_line": file.last_line,
    }


def file_block_view(seen: SeenFile, limit: int) -> FileBlockView:
    """As a block of the agent's memory, which it can read and not write."""
    file = seen.file
    return {
        "id": ids.derive("block", file.id),
        "label": file.full_name,
        "value": seen.visible or "",
        "limit": limit,
        "read_only": True,
        "file_id": file.file_id,
        "source_id": file.folder_id,
        "is_open": file.is_open,
        "last_accessed_at": optional_timestamp(file.accessed_us),
    }


def agent_files_page(files: Sequence[SeenFile], has_more: bool) -> AgentFilesPage:
    return {
        "files": [agent_file_view(file) for file in files],
        "next_cursor": files[-1].file.id if files and has_more else None,
        "has_more": has_more,
    }


def chunk_view(passage: Passage, folder: Folder, file_name: str | None) -> PassageView:
    """A chunk of a file, as passages are shown. It has no archive."""
    return {
        "id": passage.id,
        "text": passage.text,
        "archive_id": None,
        "tags": None,
        "metadata": passage.metadata,
        "embedding": None,
        "embedding_config": folder.embedding_config,
        "source_id": folder.id,
        "file_id": passage.file_id,
        "file_name": file_name,
        "is_deleted": False,
        "organization_id": folder.organization_id,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
        "created_at": timestamp(passage.created_us),
        "updated_at": timestamp(passage.updated_us),
    }
