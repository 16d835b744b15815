"""Agent files (`.af`) as they are read: sections of records that refer to each other by ids of the file, such as
`tool-3`. Whatever is wrong with one is told with the record's section, place and name.

What this server does not store is kept as it is (`others`): whoever imports says what becomes of it.

Files of the older format, one agent with everything inside it, are put into the present one. They name no ids: blocks
and tools stand in the agent, and messages in the context window are given by their places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError, field_validator

from holdfast.errors import Invalid, Unprocessable
from holdfast.wire.agent_file_messages import FileMessage, read_message
from holdfast.wire.agent_file_sections import (
    LOCAL_IDS,
    ArchiveEntry,
    BlockEntry,
    DocumentEntry,
    FileArchive,
    FileDocument,
    FileFolder,
    FileGroup,
    FileIdentity,
    FileServer,
    FileTool,
    FileWindow,
    FolderEntry,
    GroupEntry,
    IdentityEntry,
    Sections,
    missing_references,
    server_entry,
    tool_entry,
)
from holdfast.wire.agents import AgentFields, AgentName, AgentType, Secrets
from holdfast.wire.blocks import CreateBlock
from holdfast.wire.bounds import Id, Many, Name

LEGACY_GROUPS: Final = "multi_agent_group"  # which names agents that are not in the file

MADE_HERE: Final = "holdfast-"  # how the revision of files begins that this server wrote
_OTHERS: Final = ("skills", LEGACY_GROUPS)
_PROBLEMS_TOLD: Final = 10
_NAMES: Final = ("name", "label", "file_name", "server_name")  # what a record is called, in its section
_MESSAGE_ID: Final = re.compile("message-[0-9]{1,9}")

Model = TypeVar("Model", bound=BaseModel)
Entry = TypeVar("Entry")
_SAME = (
    "name",
    "agent_type",
    "system",
    "description",
    "llm_config",
    "embedding_config",
    "message_buffer_autoclear",
    "tool_rules",
)


class FileAgent(AgentFields):
    """What a request may say of an agent, and what it refers to. Its messages are read apart, for there may be many."""

    agent_type: AgentType = "letta_v1_agent"
    memory_blocks: Many[CreateBlock] | None = None
    tools: Many[Name] | None = None
    group_ids: Many[Id] | None = None
    archive_ids: Many[Id] | None = None
    files_agents: Many[FileWindow] | None = None

    @property
    def folders(self) -> list[str]:
        """By either name."""
        return list(dict.fromkeys([*(self.source_ids or ()), *(self.folder_ids or ())]))

    @field_validator("tool_rules", mode="before")
    @classmethod
    def _drop_rules_about_nothing(cls, rules: Any) -> Any:
        """The old server stored rules that name no tool, and they say nothing."""
        if not isinstance(rules, list):
            return rules
        given = cast("list[Any]", rules)
        return [rule for rule in given if not (isinstance(rule, dict) and cast("Any", rule).get("tool_name") == "")]


class AgentEntry(msgspec.Struct, frozen=True):
    """`where` is how errors and warnings name it."""

    where: str
    fields: FileAgent
    block_ids: list[str]
    messages: list[FileMessage]
    in_context: list[str]


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """By the ids that they have in the file."""

    agents: dict[str, AgentEntry]
    sections: Sections
    others: dict[str, list[dict[str, Any]]]
    is_ours: bool


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    model: str | None = None
    embedding: str | None = None
    secrets: dict[str, str] = {}
    project_id: str | None = None
    override_existing_tools: bool = True
    append_copy_suffix: bool = True
    strip_messages: bool = False


def new_name(written: str | None) -> str | None:
    return None if not written else _field("name", written, TypeAdapter(AgentName))


def given_secrets(written: str | None) -> dict[str, str]:
    """Of a form field that holds a JSON object."""
    if not written:
        return {}
    try:
        value = msgspec.json.decode(written)
    except msgspec.DecodeError as error:
        raise Unprocessable(f'secrets: must be a JSON object such as {{"KEY": "value"}}: {error}') from error
    return _field("secrets", value, TypeAdapter(Secrets))


def _field(name: str, value: object, adapter: TypeAdapter[Entry]) -> Entry:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise Unprocessable(f"{name}: {_told(error)}") from error


def agent_file_of(value: object) -> AgentFile:
    """Raises Invalid with up to ten sentences about what is wrong. Takes long for a long history: use a thread."""
    if not isinstance(value, dict):
        raise Invalid("This is no agent file: it must hold a JSON object.")
    told = cast("dict[str, Any]", value)
    if _is_legacy(told):
        told = _converted(told)
    if not isinstance(told.get("agents"), list):
        raise Invalid(
            "This is no agent file of a known format: it has neither a list `agents` nor the `system`, `core_memory` "
            "and `messages` of the older format."
        )
    return _Reading(told).result()


class _Reading:
    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told = told
        self._problems: list[str] = []

    def result(self) -> AgentFile:
        sections = self._sections()
        agents = self._section("agents", lambda where, one: self._agent(where, one, sections.blocks))
        others = {name: self._records(name) for name in _OTHERS}
        for entry in agents.values():
            self._check_references(entry, sections)
        self._problems += missing_references(sections, agents)
        if not agents and not self._problems:
            self._problems.append("agents: the file holds no agent")
        if self._problems:
            shown = self._problems[:_PROBLEMS_TOLD]
            more = len(self._problems) - len(shown)
            raise Invalid("; ".join(shown) + (f"; and {more} more" if more else ""))
        metadata = self._told.get("metadata")
        revision = cast("dict[str, Any]", metadata).get("revision_id") if isinstance(metadata, dict) else None
        return AgentFile(agents=agents, sections=sections, others=others, is_ours=str(revision).startswith(MADE_HERE))

    def _sections(self) -> Sections:
        return Sections(
            blocks=self._section("blocks", lambda where, one: BlockEntry(where, _valid(CreateBlock, one))),
            tools=self._section("tools", lambda where, one: tool_entry(where, _valid(FileTool, one))),
            archives=self._section("archives", lambda where, one: ArchiveEntry(where, _valid(FileArchive, one))),
            groups=self._section("groups", lambda where, one: GroupEntry(where, _valid(FileGroup, one))),
            folders=self._section("sources", lambda where, one: FolderEntry(where, _valid(FileFolder, one))),
            documents=self._section("files", lambda where, one: DocumentEntry(where, _valid(FileDocument, one))),
            servers=self._section("mcp_servers", lambda where, one: server_entry(where, _valid(FileServer, one))),
            identities=self._section("identities", lambda where, one: IdentityEntry(where, _valid(FileIdentity, one))),
        )

    def _records(self, section: str) -> list[dict[str, Any]]:
        listed = self._told.get(section)
        if listed is None:
            return []
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in cast("list[Any]", listed)):
            self._problems.append(f"{section}: must be a list of objects")
            return []
        return cast("list[dict[str, Any]]", listed)

    def _section(self, section: str, read: Callable[[str, dict[str, Any]], Entry]) -> dict[str, Entry]:
        pattern = re.compile(f"{LOCAL_IDS[section]}-[0-9]{{1,9}}")
        found: dict[str, Entry] = {}
        for index, one in enumerate(self._records(section)):
            name, local = next((one[key] for key in _NAMES if one.get(key)), None), one.get("id")
            where = f"{section}[{index}]" + (f" {name!r}" if isinstance(name, str) else "")
            if not isinstance(local, str) or not pattern.fullmatch(local):
                self._problems.append(f"{where}: its id must look like {LOCAL_IDS[section]}-0, not {local!r}")
            elif local in found:
                self._problems.append(f"{where}: the id {local} is used twice")
            else:
                try:
                    found[local] = read(where, one)
                except Invalid as error:
                    self._problems.append(f"{where}: {error.message}")
        return found

    def _agent(self, where: str, one: dict[str, Any], blocks: dict[str, BlockEntry]) -> AgentEntry:
        in_context = one.get("in_context_message_ids")
        fields = _valid(FileAgent, {name: value for name, value in one.items() if name != "messages"})
        read: list[FileMessage] = []
        for index, message in enumerate(_as_list("messages", one.get("messages"))):
            try:
                read.append(read_message(message))
            except Invalid as error:
                self._problems.append(f"{where} messages[{index}]: {error.message}")
        block_ids = list(fields.block_ids or ())
        for inline in fields.memory_blocks or ():
            local = f"block-{max((int(name.partition('-')[2]) for name in blocks), default=-1) + 1}"
            blocks[local] = BlockEntry(f"{where} memory_blocks {inline.label!r}", inline)
            block_ids.append(local)
        # A file that does not say which messages are in the context window means all of them.
        known = [message.id for message in read]
        return AgentEntry(where, fields, block_ids, read, known if in_context is None else _ids(in_context))

    def _check_references(self, entry: AgentEntry, sections: Sections) -> None:
        fields = entry.fields
        named: dict[str, tuple[Iterable[str] | None, Mapping[str, object]]] = {
            "tool": (fields.tool_ids, sections.tools),
            "block": (entry.block_ids, sections.blocks),
            "archive": (fields.archive_ids, sections.archives),
            "folder": (fields.folders, sections.folders),
            "file": ([seen.file_id for seen in fields.files_agents or ()], sections.documents),
        }
        for kind, (local_ids, known) in named.items():
            for local in local_ids or ():
                if local not in known:
                    self._problems.append(f"{entry.where}: its {kind} {local} is not in the file")
        messages = {message.id for message in entry.messages}
        if len(messages) < len(entry.messages):
            self._problems.append(f"{entry.where}: two of its messages have the same id")
        if strange := [local for local in messages if not _MESSAGE_ID.fullmatch(local)]:
            self._problems.append(f"{entry.where}: ids of messages must look like message-0, not {min(strange)!r}")
        if missing := [local for local in entry.in_context if local not in messages]:
            self._problems.append(
                f"{entry.where}: in_context_message_ids names {missing[0]}, which is not among its messages"
            )


def _valid(model: type[Model], value: object) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Invalid(_told(error)) from error


def _told(error: ValidationError) -> str:
    """Without the values: they may be long, or secret."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return ", ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}".removeprefix(": ")
        for problem in problems[:_PROBLEMS_TOLD]
    )


def _as_list(name: str, value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Invalid(f"{name}: must be a list")
    return cast("list[Any]", value)


def _ids(value: object) -> list[str]:
    listed: Iterable[Any] = _as_list("in_context_message_ids", value)
    if not all(isinstance(one, str) for one in listed):
        raise Invalid("in_context_message_ids: must be a list of ids")
    return list(dict.fromkeys(listed))


def _is_legacy(told: Mapping[str, Any]) -> bool:
    return "agents" not in told and {"system", "core_memory", "messages"} <= told.keys()


def _converted(told: Mapping[str, Any]) -> dict[str, Any]:
    blocks = _numbered("block", _listed(told, "core_memory"))
    tools = _numbered("tool", _listed(told, "tools"))
    messages = _numbered("message", _listed(told, "messages"))
    agent = {name: told[name] for name in _SAME if told.get(name) is not None} | {
        "id": "agent-0",
        "metadata": told.get("metadata_"),
        "tags": [tag.get("tag") for tag in _listed(told, "tags")],
        "secrets": {
            variable.get("key"): variable.get("value") or ""
            for variable in _listed(told, "tool_exec_environment_variables")
        },
        "block_ids": [block["id"] for block in blocks],
        "tool_ids": [tool["id"] for tool in tools],
        "messages": messages,
        "in_context_message_ids": _in_context(told, len(messages)),
    }
    group = told.get(LEGACY_GROUPS)
    return {
        "agents": [agent],
        "blocks": [{**block, "metadata": block.get("metadata_")} for block in blocks],
        "tools": tools,
        LEGACY_GROUPS: [group] if isinstance(group, dict) else [],
    }


def _listed(told: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value: object = told.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in cast("list[Any]", value)):
        raise Invalid(f"{name}: must be a list of objects")
    return cast("list[dict[str, Any]]", value)


def _numbered(prefix: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**record, "id": f"{prefix}-{index}"} for index, record in enumerate(records)]


def _in_context(told: Mapping[str, Any], count: int) -> list[str] | None:
    places = told.get("in_context_message_indices")
    if places is None:
        return None
    if not isinstance(places, list) or not all(isinstance(place, int) for place in cast("list[Any]", places)):
        raise Invalid("in_context_message_indices: must be a list of numbers")
    for place in cast("list[int]", places):
        if not 0 <= place < count:
            raise Invalid(f"in_context_message_indices: there is no message {place}; the file has {count}")
    return [f"message-{place}" for place in cast("list[int]", places)]
