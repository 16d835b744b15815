"""The sections of an agent file beside its agents: tools, archives, groups, folders with their files, MCP servers and
identities. `archives` and `identities` are sections that only this server writes.

Each record refers to others by the ids that these have in the file.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator

from holdfast.core.chunking import FEWEST_TOKENS, MOST_TOKENS
from holdfast.core.records import LONGEST_NAME, MCP_TAG
from holdfast.errors import Invalid
from holdfast.wire.blocks import CreateBlock, Tag
from holdfast.wire.bounds import MAX_LINES, Handle, Id, JsonObject, Many, Name, Source
from holdfast.wire.folders import FolderName
from holdfast.wire.groups import Frequency, Turns
from holdfast.wire.identities import IdentityProperty, IdentityType, Key
from holdfast.wire.mcp import Env, HeaderName, Headers, HeaderValue, ServerName, Url, Word, Words
from holdfast.wire.model_settings import EmbeddingConfig
from holdfast.wire.tools import Requirement, ReturnLimit, ToolType

_MOST_BYTES: Final = 2**53
_DONE: Final = "DONE!"


class FileTool(BaseModel):
    name: Name | None = None
    tool_type: ToolType = "custom"
    description: str | None = None
    source_type: Name | None = None
    source_code: Source | None = None
    json_schema: JsonObject | None = None
    args_json_schema: JsonObject | None = None
    tags: Many[Name] | None = None
    return_char_limit: ReturnLimit = 50_000
    pip_requirements: Many[Requirement] | None = None
    npm_requirements: Many[Requirement] | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None
    metadata_: JsonObject | None = None

    @property
    def called(self) -> str:
        """By its own name, or by that of its schema."""
        return self.name or str((self.json_schema or {}).get("name") or "")

    @property
    def mcp(self) -> dict[str, Any]:
        """What is said of its MCP server."""
        told: Any = (self.metadata_ or {}).get("mcp")
        return cast("dict[str, Any]", told) if isinstance(told, dict) else {}

    @property
    def mcp_servers(self) -> list[str]:
        """The names that its MCP server may have."""
        told = [self.mcp.get("server_name"), *(tag.removeprefix(MCP_TAG) for tag in self._server_tags)]
        return [name for name in told if isinstance(name, str)]

    @property
    def _server_tags(self) -> list[str]:
        return [tag for tag in self.tags or () if tag.startswith(MCP_TAG)]


class FilePassage(BaseModel):
    text: str
    tags: Many[Tag] | None = None
    metadata: JsonObject | None = None
    created_at: datetime | None = None


class FileArchive(BaseModel):
    name: Name
    description: str | None = None
    embedding: Handle | None = None
    embedding_config: EmbeddingConfig | None = None
    passages: Annotated[list[FilePassage], Field(max_length=MAX_LINES, fail_fast=True)] = []


class FilePattern(BaseModel):
    """How a group works. A kind of group that this server does not know is read, and left out."""

    manager_type: Name = "round_robin"
    manager_agent_id: Id | None = None
    max_turns: Turns | None = None
    termination_token: Name | None = None
    sleeptime_agent_frequency: Frequency | None = None


class FileGroup(BaseModel):
    agent_ids: Many[Id]
    description: str = ""
    manager_config: FilePattern = FilePattern()
    shared_block_ids: Many[Id] | None = None
    hidden: bool | None = None
    enable_sleeptime: bool = True  # ours: false when the manager's sleeptime is switched off

    @field_validator("manager_config", mode="before")
    @classmethod
    def _usual_pattern(cls, given: Any) -> Any:
        return {} if given is None else given

    @property
    def kind(self) -> str:
        return self.manager_config.manager_type

    @property
    def fields(self) -> dict[str, Any]:
        """Those of a Group that belong to its pattern, without its manager."""
        config = self.manager_config
        match self.kind:
            case "round_robin":
                return {"max_turns": config.max_turns}
            case "dynamic":
                sent = "termination_token" in config.model_fields_set
                return {
                    "max_turns": config.max_turns,
                    "termination_token": config.termination_token if sent else _DONE,
                }
            case "sleeptime":
                return {"sleeptime_agent_frequency": config.sleeptime_agent_frequency}
            case _:
                return {}


class FileFolder(BaseModel):
    name: FolderName
    description: str | None = None
    instructions: str | None = None
    metadata: JsonObject | None = None
    embedding: Handle | None = None
    embedding_chunk_size: Annotated[int, Field(ge=FEWEST_TOKENS, le=MOST_TOKENS)] | None = None
    embedding_config: EmbeddingConfig | None = None


class FileDocument(BaseModel):
    """A file of a folder: its text, not the bytes that were uploaded."""

    source_id: Id
    file_name: Annotated[str, Field(max_length=3 * LONGEST_NAME)] | None = None
    original_file_name: Annotated[str, Field(max_length=3 * LONGEST_NAME)] | None = None
    file_type: Handle | None = None
    file_size: Annotated[int, Field(ge=0, le=_MOST_BYTES)] | None = None
    processing_status: Name | None = None
    error_message: str | None = None
    content: str | None = None


class FileWindow(BaseModel):
    """What an agent sees of a file."""

    file_id: Id
    is_open: bool = True
    start_line: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    end_line: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    last_accessed_at: datetime | None = None


class StdioConfig(BaseModel):
    command: Annotated[Word, Field(min_length=1)]
    args: Words | None = None


class ServerExtras(BaseModel):
    """Ours: the names of what is secret. A value that only names a secret of the agent is one that can be told."""

    auth_header: HeaderName | None = None
    auth_token: HeaderValue | None = None
    custom_headers: Headers | None = None
    env: Env | None = None


class FileServer(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    server_name: ServerName
    server_type: Literal["stdio", "sse", "streamable_http"]
    server_url: Url | None = None
    stdio_config: StdioConfig | None = None
    metadata_: JsonObject | None = None
    access: ServerExtras | None = None  # ours


class FileIdentity(BaseModel):
    identifier_key: Key
    name: Name
    identity_type: IdentityType
    properties: Many[IdentityProperty] | None = None
    agent_ids: Many[Id] | None = None
    block_ids: Many[Id] | None = None


class BlockEntry(msgspec.Struct, frozen=True):
    """`where`, here and below: how errors and warnings name it."""

    where: str
    block: CreateBlock


class ToolEntry(msgspec.Struct, frozen=True):
    where: str
    tool: FileTool


class ArchiveEntry(msgspec.Struct, frozen=True):
    where: str
    archive: FileArchive


class GroupEntry(msgspec.Struct, frozen=True):
    where: str
    group: FileGroup


class FolderEntry(msgspec.Struct, frozen=True):
    where: str
    folder: FileFolder


class DocumentEntry(msgspec.Struct, frozen=True):
    where: str
    file: FileDocument


class ServerEntry(msgspec.Struct, frozen=True):
    where: str
    server: FileServer


class IdentityEntry(msgspec.Struct, frozen=True):
    where: str
    identity: FileIdentity


class Sections(msgspec.Struct, frozen=True, kw_only=True):
    """By the ids that they have in the file."""

    blocks: dict[str, BlockEntry]
    tools: dict[str, ToolEntry]
    archives: dict[str, ArchiveEntry]
    groups: dict[str, GroupEntry]
    folders: dict[str, FolderEntry]
    documents: dict[str, DocumentEntry]
    servers: dict[str, ServerEntry]
    identities: dict[str, IdentityEntry]


def tool_entry(where: str, tool: FileTool) -> ToolEntry:
    if not tool.called:
        raise Invalid("has no name")
    return ToolEntry(where, tool)


def server_entry(where: str, server: FileServer) -> ServerEntry:
    if server.server_type == "stdio":
        if server.stdio_config is None:
            raise Invalid("a server of type stdio needs its command in `stdio_config`")
    elif server.server_url is None:
        raise Invalid(f"a server of type {server.server_type} needs its `server_url`")
    return ServerEntry(where, server)


# How ids begin in each section.
LOCAL_IDS: Final = {
    "agents": "agent",
    "blocks": "block",
    "tools": "tool",
    "archives": "archive",
    "groups": "group",
    "sources": "source",
    "files": "file",
    "mcp_servers": "mcp_server",
    "identities": "identity",
}


def missing_references(sections: Sections, agents: dict[str, Any]) -> list[str]:
    """Sentences about records that name what is not in the file."""
    problems: list[str] = []

    def check(where: str, what: str, named: list[str] | None, known: dict[str, Any]) -> None:
        problems.extend(
            f"{where}: its {what} {local} is not in the file" for local in named or () if local not in known
        )

    for entry in sections.groups.values():
        manager = entry.group.manager_config.manager_agent_id
        check(entry.where, "agent", entry.group.agent_ids, agents)
        check(entry.where, "manager", None if manager is None else [manager], agents)
        check(entry.where, "block", entry.group.shared_block_ids, sections.blocks)
    for entry in sections.documents.values():
        check(entry.where, "folder", [entry.file.source_id], sections.folders)
    for entry in sections.identities.values():
        check(entry.where, "agent", entry.identity.agent_ids, agents)
        check(entry.where, "block", entry.identity.block_ids, sections.blocks)
    return problems
