"""Tools on the wire: how they are written, listed, found and run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.messages import Content, Status, Text, content_text
from holdfast.core.records import Tool
from holdfast.wire import times
from holdfast.wire.bounds import MAX_ITEMS, MAX_NAME, JsonObject, Many, Name, SearchText, Source

ToolType = Literal[
    "custom",
    "letta_core",
    "letta_memory_core",
    "letta_multi_agent_core",
    "letta_sleeptime_core",
    "letta_voice_sleeptime_core",
    "letta_builtin",
    "letta_files_core",
    "external_langchain",
    "external_composio",
    "external_mcp",
]
TOOL_TYPES: frozenset[str] = frozenset(ToolType.__args__)  # pyright: ignore[reportAttributeAccessIssue]
# Everything that ships with the server rather than being written by its users.
SHIPPED_TYPES = frozenset(name for name in TOOL_TYPES if name.startswith("letta_"))

ReturnLimit = Annotated[int, Field(ge=1, le=1_000_000)]


class Requirement(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    version: Name | None = None


class ToolCreate(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source_code: Source
    source_type: Name = "python"
    description: str | None = None
    tags: Many[Name] | None = None
    json_schema: JsonObject | None = None
    args_json_schema: JsonObject | None = None
    return_char_limit: ReturnLimit = 50_000
    pip_requirements: Many[Requirement] | None = None
    npm_requirements: Many[Requirement] | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = False


class ToolUpdate(BaseModel):
    """Only what is sent changes."""

    source_code: Source | None = None
    source_type: Name | None = None
    description: str | None = None
    tags: Many[Name] | None = None
    json_schema: JsonObject | None = None
    args_json_schema: JsonObject | None = None
    return_char_limit: ReturnLimit | None = None
    pip_requirements: Many[Requirement] | None = None
    npm_requirements: Many[Requirement] | None = None
    metadata_: JsonObject | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None


class ToolRunFromSource(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source_code: Source
    args: JsonObject
    env_vars: Annotated[dict[Name, str], Field(max_length=MAX_ITEMS)] | None = None
    name: Name | None = None
    source_type: Name | None = None
    args_json_schema: JsonObject | None = None
    json_schema: JsonObject | None = None
    pip_requirements: Many[Requirement] | None = None
    npm_requirements: Many[Requirement] | None = None


class ToolSearchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: SearchText | None = None
    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    tool_types: Many[Name] | None = None
    tags: Many[Name] | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 50


class CodeInput(BaseModel):
    code: Source
    source_type: Name | None = "python"


class ToolExecuteRequest(BaseModel):
    args: JsonObject = {}


class ModifyApprovalRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    requires_approval: bool


class ToolView(TypedDict):
    id: str
    name: str
    tool_type: str
    description: str
    source_type: str | None
    source_code: str | None
    json_schema: dict[str, Any]
    args_json_schema: JsonObject | None
    tags: list[str]
    return_char_limit: int
    pip_requirements: list[dict[str, Any]] | None
    npm_requirements: list[dict[str, Any]] | None
    default_requires_approval: bool | None
    enable_parallel_execution: bool
    metadata_: dict[str, Any]
    project_id: str | None
    created_by_id: str
    last_updated_by_id: str


class ToolSearchResult(TypedDict):
    tool: ToolView
    embedded_text: str | None
    fts_rank: int | None
    vector_rank: int | None
    combined_score: float


class ToolExecutionResult(TypedDict):
    status: Status
    func_return: Any
    agent_state: None
    stdout: list[str]
    stderr: list[str]
    sandbox_config_fingerprint: str | None


class ReturnedContent(TypedDict):
    type: Literal["tool"]
    tool_return: str | list[dict[str, Any]]
    status: Status
    tool_call_id: str
    stdout: list[str]
    stderr: list[str]


class ToolRunResponse(TypedDict):
    id: str
    date: str
    name: str
    message_type: Literal["tool_return_message"]
    otid: str | None
    sender_id: str | None
    step_id: str | None
    is_err: bool | None
    seq_id: int | None
    run_id: str | None
    tool_return: str
    status: Status
    tool_call_id: str
    stdout: list[str]
    stderr: list[str]
    tool_returns: list[ReturnedContent]


def tool_view(tool: Tool) -> ToolView:
    return {
        "id": tool.id,
        "name": tool.name,
        "tool_type": tool.tool_type,
        "description": tool.description,
        "source_type": tool.source_type,
        "source_code": tool.source_code,
        "json_schema": tool.json_schema,
        "args_json_schema": tool.args_json_schema,
        "tags": list(tool.tags),
        "return_char_limit": tool.return_char_limit,
        "pip_requirements": tool.pip_requirements,
        "npm_requirements": tool.npm_requirements,
        "default_requires_approval": tool.default_requires_approval,
        "enable_parallel_execution": tool.enable_parallel_execution,
        "metadata_": tool.metadata,
        "project_id": tool.project_id,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
    }


def search_view(tool: Tool, rank: int) -> ToolSearchResult:
    return {
        "tool": tool_view(tool),
        "embedded_text": None,
        "fts_rank": rank,
        "vector_rank": None,
        "combined_score": 1 / rank,
    }


def run_view(
    name: str,
    status: Status,
    content: Content,
    stdout: tuple[str, ...] | None,
    stderr: tuple[str, ...] | None,
    now_us: int,
) -> ToolRunResponse:
    """A run outside any conversation: it has no message and no call, and says so with the text `null`."""
    out, err = list(stdout or ()), list(stderr or ())
    return {
        "id": "null",
        "date": times.message_date(now_us),
        "name": name,
        "message_type": "tool_return_message",
        "otid": None,
        "sender_id": None,
        "step_id": None,
        "is_err": status == "error",
        "seq_id": None,
        "run_id": None,
        "tool_return": content_text(content),
        "status": status,
        "tool_call_id": "null",
        "stdout": out,
        "stderr": err,
        "tool_returns": [
            {
                "type": "tool",
                "tool_return": content_view(content),
                "status": status,
                "tool_call_id": "null",
                "stdout": out,
                "stderr": err,
            }
        ],
    }


def execution_view(
    status: Status,
    content: Content,
    stdout: tuple[str, ...] | None,
    stderr: tuple[str, ...] | None,
    isolation: str | None,
) -> ToolExecutionResult:
    """On an error there is no return value; its text joins stderr."""
    failed = status == "error"
    return {
        "status": status,
        "func_return": None if failed else content_view(content),
        "agent_state": None,
        "stdout": list(stdout or ()),
        "stderr": [*((content_text(content),) if failed else ()), *(stderr or ())],
        "sandbox_config_fingerprint": isolation,
    }


def content_view(content: Content) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {
            "type": "image",
            "source": {"type": "base64", "media_type": part.media_type, "data": part.data, "detail": part.detail},
        }
        for part in content
    ]
