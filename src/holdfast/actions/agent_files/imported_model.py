"""Which models the agents of a file have on this server: those that the file names, or those that the caller names
instead. An agent whose model is not here would be imported and fail at its first message, so it is refused."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.actions.agent_files.errors import named
from holdfast.actions.agents.create import compaction_of
from holdfast.actions.agents.model_choice import Defaults, Embedding, asked_handle, chosen_embedding, revised_choice
from holdfast.core import heartbeat_loop
from holdfast.core.records import CompactionSettings, ModelChoice
from holdfast.errors import Invalid, NotFound
from holdfast.llm.base import Catalog
from holdfast.llm.catalog.presets import preset
from holdfast.wire.agent_file_sections import FileArchive, FileFolder
from holdfast.wire.agent_files import AgentEntry, AgentFile, FileAgent, ImportOptions
from holdfast.wire.agents import UpdateAgent
from holdfast.wire.model_settings import ModelSettings


class FileModel(msgspec.Struct, frozen=True):
    choice: ModelChoice
    compaction: CompactionSettings
    file_handle: str  # of the model that the agent had where it comes from


async def file_models(
    file: AgentFile, options: ImportOptions, catalog: Catalog, defaults: Defaults, warnings: list[str]
) -> dict[str, FileModel]:
    """By the agent's id in the file. A 400 names all models that are missing."""
    if options.model is not None:
        await catalog.find(options.model)
    found: dict[str, FileModel] = {}
    missing: list[str] = []
    for local, entry in file.agents.items():
        try:
            found[local] = await _model(entry, options, catalog, defaults, warnings)
        except NotFound as error:
            missing.append(f"{entry.where}: {error.message}")
    if missing:
        raise Invalid(
            f"{'; '.join(missing)}. Configure the provider, or import with `model` set to one that this server has."
        )
    return found


async def _model(
    entry: AgentEntry, options: ImportOptions, catalog: Catalog, defaults: Defaults, warnings: list[str]
) -> FileModel:
    fields = entry.fields
    told = asked_handle(fields)
    handle = options.model or told or defaults.model
    if handle is None:
        raise NotFound("it names no model, and this server has no default")
    info = await catalog.find(handle)
    in_words = fields.agent_type in heartbeat_loop.AGENT_TYPES
    request = _said(fields) if handle == told else _said_of_any_model(fields)
    usual = preset(info, defaults.window, in_words=in_words)
    with named(entry.where):
        choice = revised_choice(usual, request, info, defaults.window, fields.agent_type)
    compaction = CompactionSettings()
    if fields.compaction_settings is not None:
        compaction = compaction_of(fields.compaction_settings, compaction, told or handle)
    if compaction.model is not None and not await _exists(catalog, compaction.model):
        warnings.append(
            f"{entry.where}: {compaction.model}, which was to write its summaries, is not available here; its own "
            "model does"
        )
        compaction = msgspec.structs.replace(compaction, model=None)
    return FileModel(choice, compaction, told or handle)


def _said(fields: FileAgent) -> UpdateAgent:
    names = ("llm_config", "model_settings", "context_window_limit", "max_tokens", "parallel_tool_calls")
    return _request(fields, (*names, "response_format"))


def _said_of_any_model(fields: FileAgent) -> UpdateAgent:
    """What is left of it when the agent is given another model."""
    kept = _request(fields, ("parallel_tool_calls", "response_format"))
    config = fields.model_settings or fields.llm_config
    if config is None:
        return kept
    names = ("temperature", "parallel_tool_calls", "response_format")
    settings: dict[str, Any] = {name: value for name in names if (value := getattr(config, name)) is not None}
    return kept.model_copy(update={"model_settings": ModelSettings(**settings)})


def _request(fields: FileAgent, names: tuple[str, ...]) -> UpdateAgent:
    said: dict[str, Any] = {name: value for name in names if (value := getattr(fields, name)) is not None}
    return UpdateAgent(**said)


async def _exists(catalog: Catalog, handle: str) -> bool:
    try:
        await catalog.find(handle)
    except NotFound:
        return False
    return True


class Embeddings:
    """The embedding models of a file. One that is not here is kept all the same: what would be searched by it is
    searched by words, and by it as soon as it is configured."""

    def __init__(self, catalog: Catalog, options: ImportOptions, default: str | None, warnings: list[str]) -> None:
        self._catalog = catalog
        self._wanted = options.embedding
        self._default = default
        self._warnings = warnings

    async def of(self, where: str, fields: FileAgent | FileArchive | FileFolder) -> Embedding:
        if self._wanted is not None:
            return await chosen_embedding(self._catalog, None, UpdateAgent(embedding=self._wanted))
        if fields.embedding is None and fields.embedding_config is None:
            return Embedding()
        kept = UpdateAgent(embedding=fields.embedding, embedding_config=fields.embedding_config)
        if fields.embedding_config is None and not await self._is_here(fields.embedding or ""):
            chosen = Embedding(fields.embedding)
        else:
            chosen = await chosen_embedding(self._catalog, self._default, kept)
        handle = chosen.handle if chosen.config is None else fields.embedding or chosen.handle
        if handle is not None and not await self._is_here(handle):
            self._warnings.append(
                f"{where}: its embedding model {handle} is not available here; its memory is searched by words"
            )
        return Embedding(handle, chosen.config)

    async def _is_here(self, handle: str) -> bool:
        found = await self._catalog.embedding_models()
        return any(handle in (each["handle"], each.get("alias")) for each in found)
