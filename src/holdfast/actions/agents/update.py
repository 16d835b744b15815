"""Change agents and delete them. What was not sent stays; null clears what may be empty; lists replace the set."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.actions.agents import create as creation
from holdfast.actions.agents import sleeptime
from holdfast.actions.agents.model_choice import (
    Defaults,
    Embedding,
    changed_handle,
    chosen_embedding,
    concerns_model,
    revised_choice,
)
from holdfast.actions.agents.read import whole_state
from holdfast.actions.folders.attach import replace_folders
from holdfast.actions.identities import require_identities
from holdfast.actions.runs.cancel import CancelRuns
from holdfast.core.records import Agent, CompactionSettings, ModelChoice
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.clock import Clock
from holdfast.errors import Conflict, Unsupported
from holdfast.llm.base import Catalog, ModelInfo
from holdfast.secretbox import SecretBox
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store import groups as group_rows
from holdfast.store import identities as identity_rows
from holdfast.store import tools as tool_rows
from holdfast.store.identities import AGENTS
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.agents import MASKED, AgentState, UpdateAgent
from holdfast.wire.tool_rules import rules_of

_CLEARABLE: Final = frozenset(
    {
        "description",
        "metadata",
        "hidden",
        "enable_sleeptime",
        "max_files_open",
        "per_file_view_window_char_limit",
        "project_id",
        "template_id",
        "base_template_id",
    }
)
_PLAIN: Final = _CLEARABLE | {"name", "system", "timezone", "message_buffer_autoclear"}


class _Resolved(msgspec.Struct, frozen=True):
    """What had to be asked of the catalog before the transaction; None: not touched by the request."""

    model: ModelInfo | None
    embedding: Embedding | None


async def update_agent(
    agent_id: str,
    request: UpdateAgent,
    *,
    database: Database,
    catalog: Catalog,
    secretbox: SecretBox,
    defaults: Defaults,
    now_us: int,
) -> AgentState:
    creation.refuse_unbuilt(request)
    creation.check_file_limits(request)
    resolved = await _resolve(agent_id, request, database, catalog, defaults)

    async def write(tx: Transaction) -> AgentState:
        known = await agent_rows.get(tx, agent_id, lock=True)
        agent = _changed(known, request, resolved, defaults, now_us)
        await agent_rows.update_agent(tx, agent)
        await _replace_relations(tx, agent, request, secretbox, now_us)
        await _follow_sleeptime(tx, agent, request, now_us)
        state = await whole_state(tx, agent_id, request.given_secrets or {})
        _check_window(request, state)
        return state

    return await database.write(write)


def _check_window(request: UpdateAgent, state: AgentState) -> None:
    """What was read may be written back."""
    if request.message_ids is not None and request.message_ids != list(state["message_ids"]):
        raise Unsupported(
            "message_ids is derived from the context window and cannot be set: reset or compact the messages."
        )


async def delete_agent(
    agent_id: str, *, database: Database, cancel: CancelRuns, archival: ArchivalMemory, clock: Clock
) -> None:
    """Its runs are stopped first, and those of the sleeptime agents that go with it. Blocks and tools outlive it; the
    archive that was made for it does not."""
    for going in (agent_id, *await database.read(lambda tx: sleeptime.going_with(tx, agent_id))):
        await cancel.before_deleting_agent(going)

    async def write(tx: Transaction) -> list[str | None]:
        now_us = clock.now_us()
        going = [agent_id, *await sleeptime.going_with(tx, agent_id)]
        await sleeptime.leave_groups(tx, agent_id)
        return [await agent_rows.delete_agent(tx, each, now_us) for each in going]

    for archive_id in await database.write(write):
        if archive_id is not None:
            await archival.clear(archive_id)


async def _resolve(
    agent_id: str, request: UpdateAgent, database: Database, catalog: Catalog, defaults: Defaults
) -> _Resolved:
    async def known_handle(tx: Transaction) -> str:
        return (await agent_rows.get(tx, agent_id)).model.handle

    handle = await database.read(known_handle)
    info = await catalog.find(changed_handle(request, handle) or handle) if concerns_model(request) else None
    embedding = None
    if {"embedding", "embedding_config"} & request.model_fields_set:
        named = request.embedding is not None or request.embedding_config is not None
        embedding = await chosen_embedding(catalog, defaults.embedding if named else None, request)
    return _Resolved(info, embedding)


def _changed(agent: Agent, request: UpdateAgent, resolved: _Resolved, defaults: Defaults, now_us: int) -> Agent:
    changes: dict[str, Any] = {
        name: value
        for name in _PLAIN & request.model_fields_set
        if (value := getattr(request, name)) is not None or name in _CLEARABLE
    }
    if resolved.model is not None:
        changes["model"] = _model(agent, request, resolved.model, defaults)
    if resolved.embedding is not None:
        changes |= {"embedding": resolved.embedding.handle, "embedding_config": resolved.embedding.config}
    if request.tool_rules is not None:
        changes["tool_rules"] = rules_of(request.tool_rules)
        handle = changes.get("model", agent.model).handle
        creation.check_first_rules(changes["tool_rules"], handle.partition("/")[2])
    if request.compaction_settings is not None:
        changes["compaction"] = creation.compaction_of(
            request.compaction_settings, agent.compaction, agent.model.handle
        )
    elif "compaction_settings" in request.model_fields_set:
        changes["compaction"] = CompactionSettings()
    if agent.agent_type == "workflow_agent":
        changes.pop("message_buffer_autoclear", None)
    return msgspec.structs.replace(agent, **changes, updated_us=now_us)


def _model(agent: Agent, request: UpdateAgent, info: ModelInfo, defaults: Defaults) -> ModelChoice:
    if changed_handle(request, agent.model.handle) is None and agent.model.handle != info.handle:
        raise Conflict("The agent's model was changed by another request at the same time. Send the change again.")
    return revised_choice(agent.model, request, info, defaults.window, agent.agent_type)


async def _replace_relations(
    tx: Transaction, agent: Agent, request: UpdateAgent, secretbox: SecretBox, now_us: int
) -> None:
    if request.tags is not None:
        await agent_rows.set_tags(tx, agent.id, request.tags)
    if request.tool_ids is not None:
        tools = await creation.asked_tools(tx, request.tool_ids, (), now_us)
        await tool_rows.detach_all(tx, agent.id)
        await tool_rows.attach_many(tx, agent.id, [tool.id for tool in tools])
    if request.block_ids is not None:
        blocks = await creation.asked_blocks(tx, request.block_ids)
        before = {block.id for block in await block_rows.of_agent(tx, agent.id)}
        await block_rows.detach_all(tx, agent.id)
        await block_rows.attach_many(tx, agent.id, blocks)
        await sleeptime.share_blocks(tx, agent.id, before - {block.id for block in blocks})
    if request.identity_ids is not None:
        await require_identities(tx, request.identity_ids)
        await identity_rows.replace_owners(tx, AGENTS, agent.id, request.identity_ids)
    if request.given_folders is not None:
        await replace_folders(tx, agent.id, list(dict.fromkeys(request.given_folders)), now_us)
    if request.given_secrets is not None:
        await _replace_secrets(tx, agent.id, request.given_secrets, secretbox)


async def _follow_sleeptime(tx: Transaction, agent: Agent, request: UpdateAgent, now_us: int) -> None:
    """Switched off, the second agent stays, idle; switched on again, it goes on."""
    if "enable_sleeptime" not in request.model_fields_set:
        return
    group = await group_rows.sleeptime_group_of(tx, agent.id)
    if request.enable_sleeptime and group is None:
        await sleeptime.check_roles(tx, agent.id, ())
        await creation.add_sleeptime_agent(tx, agent, await block_rows.of_agent(tx, agent.id), now_us)
    elif not request.enable_sleeptime and group is not None:
        await group_rows.forget_turns(tx, group.id)


async def _replace_secrets(tx: Transaction, agent_id: str, values: dict[str, str], secretbox: SecretBox) -> None:
    """A value that did not change keeps its ciphertext and its id. One that comes back masked, as it was read, did not
    change."""
    known = {secret.key: secret for secret in (await agent_rows.secrets_of(tx, (agent_id,))).get(agent_id, ())}
    kept = {
        key: secret
        for key, secret in known.items()
        if key in values and (values[key] == MASKED or secretbox.open(secret.sealed) == values[key])
    }
    sealed = creation.seal_secrets({key: value for key, value in values.items() if key not in kept}, secretbox)
    await agent_rows.set_secrets(tx, agent_id, [*kept.values(), *sealed])
