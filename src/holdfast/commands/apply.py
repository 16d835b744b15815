"""`holdfast apply FILE`: agents, blocks, tools and archives as a file describes them.

It shows the difference first. What is the same is not touched, so applying twice changes nothing the second time. What
the file no longer names is deleted only with --prune, and only if this file's `name` created it. An agent's own memory
belongs to the agent: it is written when the agent is created, and never again.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.commands.printing import is_terminal, print_json, styled
from holdfast.commands.server_api import ServerApi
from holdfast.errors import ConfigError

Record = dict[str, Any]
_SIGNS: Final = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}
_LIMIT: Final = 1_000


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    tools: list[ToolFile] = []
    blocks: list[BlockFile] = []
    archives: list[ArchiveFile] = []
    agents: list[AgentFile] = []


class ToolFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str  # a Python file, beside the description
    requires_approval: bool = False


class BlockFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block that agents share, told apart by its label."""

    label: str
    value: str = ""
    description: str | None = None
    read_only: bool = False


class ArchiveFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None


class AgentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    model: str | None = None
    system: str | None = None
    description: str | None = None
    tags: list[str] = []
    tools: list[str] = []
    blocks: list[str] = []
    archives: list[str] = []
    memory: dict[str, str] = {}
    tool_rules: list[Record] | None = None


class Change(msgspec.Struct, frozen=True):
    kind: str
    name: str
    action: str
    differences: list[str]
    perform: Callable[[], object]


def run(arguments: argparse.Namespace) -> int:
    described = read(Path(arguments.file))
    api = ServerApi(arguments)
    changes = Planner(api, described, Path(arguments.file).parent).plan(prune=arguments.prune)
    if arguments.json:
        print_json(
            [{"kind": c.kind, "name": c.name, "action": c.action, "differences": c.differences} for c in changes]
        )
    else:
        _show(changes)
    if not changes or arguments.dry_run:
        return 0
    if not arguments.yes and not _confirmed():
        print("Nothing was changed.")
        return 1
    for change in changes:
        change.perform()
    if not arguments.json:
        print(f"Applied {len(changes)} changes.")
    return 0


def _show(changes: list[Change]) -> None:
    if not changes:
        print("Everything is as described.")
    for change in changes:
        sign, style = _SIGNS[change.action]
        print(styled(f"{sign} {change.kind} {change.name}", style))
        for difference in change.differences:
            print(f"    {difference}")


def _confirmed() -> bool:
    if not is_terminal(sys.stdin):
        raise ConfigError("Nothing was changed: add --yes to apply without being asked, or --dry-run to only look.")
    return input("Apply? [y/N] ").strip().lower() in ("y", "yes")


def read(path: Path) -> Described:
    """YAML, TOML or JSON, by the name of the file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return msgspec.convert(_parsed(path, text), Described)
    except (msgspec.ValidationError, msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _parsed(path: Path, text: str) -> Any:
    match path.suffix:
        case ".json":
            return msgspec.json.decode(text)
        case ".toml":
            return tomllib.loads(text)
        case ".yaml" | ".yml":
            return _yaml(path, text)
        case other:
            raise ConfigError(
                f"{path}: a description is YAML, TOML or JSON, not {other or 'a file without an ending'}."
            )


def _yaml(path: Path, text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise ConfigError(f"{path}: reading YAML needs PyYAML: pip install pyyaml, or write TOML or JSON.") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}") from error


class Planner:
    """Compares what is described with what the server has."""

    def __init__(self, api: ServerApi, described: Described, folder: Path) -> None:
        self._api = api
        self._described = described
        self._folder = folder
        self._mark = f"applied:{described.name}"
        self._changes: list[Change] = []

    def plan(self, *, prune: bool) -> list[Change]:
        tools = self._tools()
        blocks = self._blocks()
        self._archives()
        agents = self._agents()
        if prune:
            self._prune("agent", "/v1/agents", agents, {agent.name for agent in self._described.agents}, "name")
            self._prune("block", "/v1/blocks", blocks, {block.label for block in self._described.blocks}, "label")
            named = {_function_name(self._source(tool)) for tool in self._described.tools}
            self._prune("tool", "/v1/tools", tools, named, "name")
        return self._changes

    def _add(self, kind: str, name: str, action: str, differences: list[str], perform: Callable[[], object]) -> None:
        self._changes.append(Change(kind, name, action, differences, perform))

    def _prune(self, kind: str, path: str, found: list[Record], named: set[str], by: str) -> None:
        for record in found:
            if self._mark in (record.get("tags") or ()) and record[by] not in named:
                self._add(
                    kind, record[by], "delete", [], lambda place=f"{path}/{record['id']}": self._api.delete(place)
                )

    def _source(self, tool: ToolFile) -> str:
        place = self._folder / tool.source
        try:
            return place.read_text()
        except OSError as error:
            raise ConfigError(f"{place} cannot be read: {error.strerror}.") from error

    def _tools(self) -> list[Record]:
        found: list[Record] = self._api.get("/v1/tools/", limit=_LIMIT)
        known = {tool["name"]: tool for tool in found}
        for tool in self._described.tools:
            source = self._source(tool)
            name = _function_name(source)
            wanted = {"source_code": source, "default_requires_approval": tool.requires_approval}
            before = known.get(name)
            if before is None:
                body = {**wanted, "tags": [self._mark]}  # one that was there before is never pruned
                self._add("tool", name, "create", [], lambda body=body: self._api.post("/v1/tools/", body))
            elif differences := _differences(before, wanted):
                place = f"/v1/tools/{before['id']}"
                self._add("tool", name, "update", differences, lambda at=place, body=wanted: self._api.patch(at, body))
        return found

    def _blocks(self) -> list[Record]:
        found: list[Record] = self._api.get("/v1/blocks/", tags=[self._mark], limit=_LIMIT)
        known = {block["label"]: block for block in found}
        for block in self._described.blocks:
            wanted = {"label": block.label, "value": block.value, "read_only": block.read_only}
            wanted |= {"description": block.description} if block.description is not None else {}
            before = known.get(block.label)
            if before is None:
                body = {**wanted, "tags": [self._mark]}
                self._add("block", block.label, "create", [], lambda body=body: self._api.post("/v1/blocks/", body))
            elif differences := _differences(before, wanted):
                place = f"/v1/blocks/{before['id']}"
                self._add(
                    "block", block.label, "update", differences, lambda at=place, body=wanted: self._api.patch(at, body)
                )
        return found

    def _archives(self) -> None:
        """Created where they are missing; never changed or deleted, because they hold what agents have learnt."""
        known = {archive["name"] for archive in self._api.get("/v1/archives/", limit=_LIMIT)}
        for archive in self._described.archives:
            if archive.name not in known:
                body = {"name": archive.name, "description": archive.description}
                self._add(
                    "archive", archive.name, "create", [], lambda body=body: self._api.post("/v1/archives/", body)
                )

    def _agents(self) -> list[Record]:
        found: list[Record] = self._api.get("/v1/agents/", tags=[self._mark], limit=_LIMIT)
        known = {agent["name"]: agent for agent in found}
        for agent in self._described.agents:
            wanted = _settings(agent) | {"tags": sorted({*agent.tags, self._mark})}
            before = known.get(agent.name)
            if before is None:
                self._add(
                    "agent", agent.name, "create", [], lambda one=agent, body=wanted: self._create_agent(one, body)
                )
                continue
            differences = _differences({**before, "tags": sorted(before["tags"])}, wanted)
            relations = self._relations(before, agent)
            differences += [f"{verb} {kind} {name}" for verb, kind, name in relations]
            if differences:
                self._add(
                    "agent", agent.name, "update", differences,
                    lambda one=before, body=wanted, moves=relations: self._update_agent(one["id"], body, moves),
                )  # fmt: skip
        return found

    def _create_agent(self, agent: AgentFile, settings: Record) -> None:
        body = settings | {"name": agent.name, "tools": agent.tools, "include_base_tools": True}
        body["memory_blocks"] = [{"label": label, "value": value} for label, value in agent.memory.items()]
        made = self._api.post("/v1/agents/", body)
        moves = [("attach", "blocks", name) for name in agent.blocks] + [
            ("attach", "archives", name) for name in agent.archives
        ]
        self._move(made["id"], moves)

    def _update_agent(self, agent_id: str, settings: Record, moves: list[tuple[str, str, str]]) -> None:
        self._api.patch(f"/v1/agents/{agent_id}", settings)
        self._move(agent_id, moves)

    def _relations(self, before: Record, agent: AgentFile) -> list[tuple[str, str, str]]:
        """What is to be attached. Nothing is detached: an agent may have been given more by hand."""
        archives = self._api.get("/v1/archives/", agent_id=before["id"], limit=_LIMIT)
        attached = {
            "tools": {tool["name"] for tool in before["tools"]},
            "blocks": {block["label"] for block in before["blocks"]},
            "archives": {archive["name"] for archive in archives},
        }
        wanted = {"tools": agent.tools, "blocks": agent.blocks, "archives": agent.archives}
        return [
            ("attach", kind, name) for kind, names in wanted.items() for name in names if name not in attached[kind]
        ]

    def _move(self, agent_id: str, moves: list[tuple[str, str, str]]) -> None:
        """Names are looked up now: what is attached may have been created a moment ago."""
        places = {"tools": "tools", "blocks": "core-memory/blocks", "archives": "archives"}
        for verb, kind, name in moves:
            self._api.patch(f"/v1/agents/{agent_id}/{places[kind]}/{verb}/{self._id_of(kind, name)}")

    def _id_of(self, kind: str, name: str) -> str:
        query = {"tools": {"name": name}, "blocks": {"label": name, "tags": [self._mark]}, "archives": {"name": name}}[
            kind
        ]
        found: list[Record] = self._api.get(f"/v1/{kind}/", **query)
        if not found:
            raise ConfigError(f"There is no {kind[:-1]} called {name!r}, and the file describes none.")
        return found[0]["id"]


def _settings(agent: AgentFile) -> Record:
    names = ("model", "system", "description", "tool_rules")
    return {name: value for name in names if (value := getattr(agent, name)) is not None}


def _differences(before: Record, wanted: Record) -> list[str]:
    return [
        f"{name}: {_short(before.get(name))} → {_short(value)}"
        for name, value in wanted.items()
        if before.get(name) != value
    ]


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}…"


def _function_name(source: str) -> str:
    for line in source.splitlines():
        if line.startswith("def "):
            return line[4:].partition("(")[0].strip()
    raise ConfigError("A tool's file must define a function: def name(…).")
