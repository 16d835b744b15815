"""Groups: list, make, change and delete them, share blocks among their agents, read what was said in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import ids
from holdfast.actions.agents import sleeptime
from holdfast.actions.agents.create import NO_TURN_YET, asked_blocks, check_can_be_looked_after
from holdfast.actions.queries import read_page
from holdfast.actions.threads.context import recompile_system
from holdfast.actions.threads.find import require_idle
from holdfast.core.messages import Message
from holdfast.core.records import Group
from holdfast.engine.checkpoint import cancel_parked
from holdfast.engine.clock import Clock
from holdfast.errors import Conflict, Invalid, NotFound, Unsupported
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store import groups as group_rows
from holdfast.store import holds, threads
from holdfast.store import messages as message_rows
from holdfast.store.groups import SLEEPTIME, GroupFilter
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.groups import GroupCreate, GroupUpdate, pattern_changes, pattern_fields


async def list_groups(database: Database, filters: GroupFilter, page: Page) -> list[Group]:
    return await database.read(lambda tx: group_rows.list_groups(tx, filters, page))


async def list_groups_of_agent(database: Database, agent_id: str, manager_type: str | None, page: Page) -> list[Group]:
    """Those that it is a member of, not those that it manages."""
    filters = GroupFilter(agent_id=agent_id, manager_type=manager_type, show_hidden=True)

    async def read(tx: Transaction) -> list[Group]:
        await agent_rows.require(tx, agent_id)
        return await group_rows.list_groups(tx, filters, page)

    return await database.read(read)


async def count_groups(database: Database) -> int:
    return await database.read(group_rows.count_groups)


async def read_group(database: Database, group_id: str) -> Group:
    return await database.read(lambda tx: group_rows.get(tx, group_id))


async def create_group(database: Database, request: GroupCreate, now_us: int) -> Group:
    config = request.manager_config
    if config.manager_type == "voice_sleeptime":
        raise Unsupported("Voice agents are not part of Holdfast: no group can look after one.")
    group = Group(
        id=ids.new("group"),
        manager_type=config.manager_type,
        agent_ids=tuple(dict.fromkeys(request.agent_ids)),
        description=request.description,
        project_id=request.project_id,
        turns_counter=NO_TURN_YET if config.manager_type == SLEEPTIME else None,
        hidden=request.hidden,
        created_us=now_us,
        updated_us=now_us,
        **pattern_fields(config),
    )

    async def write(tx: Transaction) -> Group:
        await _check_agents(tx, group)
        if group.manager_type == SLEEPTIME and group.manager_agent_id is not None:
            await _begin_looking_after(tx, group.manager_agent_id)
        await group_rows.insert(tx, group)
        await _share(tx, group, request.shared_block_ids)
        if group.manager_type == SLEEPTIME and group.manager_agent_id is not None:
            await sleeptime.share_blocks(tx, group.manager_agent_id)
        return await group_rows.get(tx, group.id)

    return await database.write(write)


async def update_group(database: Database, group_id: str, request: GroupUpdate, now_us: int) -> Group:
    changes: dict[str, Any] = {
        name: value
        for name in ("description", "project_id")
        if (value := getattr(request, name)) is not None or (name == "project_id" and name in request.model_fields_set)
    }
    if request.agent_ids is not None:
        changes["agent_ids"] = tuple(dict.fromkeys(request.agent_ids))

    async def write(tx: Transaction) -> Group:
        known = await group_rows.get(tx, group_id, lock=True)
        group = msgspec.structs.replace(known, **changes, **_changed_pattern(known, request), updated_us=now_us)
        await _check_agents(tx, group)
        await group_rows.update_group(tx, group)
        for block_id in known.shared_block_ids if request.shared_block_ids is not None else ():
            if block_id not in (request.shared_block_ids or ()):
                await _unshare(tx, known, block_id)
        await _share(
            tx, group, known.shared_block_ids if request.shared_block_ids is None else request.shared_block_ids
        )
        return await group_rows.get(tx, group_id)

    return await database.write(write)


async def delete_group(database: Database, group_id: str) -> None:
    """Its agents stay. Nobody looks after the manager of a sleeptime group from then on."""

    async def write(tx: Transaction) -> None:
        group = await group_rows.get(tx, group_id, lock=True)
        if group.manager_type == SLEEPTIME:
            await sleeptime.dissolve(tx, group)
        else:
            await group_rows.delete_group(tx, group_id)

    await database.write(write)


async def attach_block(database: Database, group_id: str, block_id: str) -> None:
    _check_block_id(block_id)

    async def write(tx: Transaction) -> None:
        await _share(tx, await group_rows.get(tx, group_id, lock=True), [block_id])

    await database.write(write)


async def detach_block(database: Database, group_id: str, block_id: str) -> None:
    _check_block_id(block_id)

    async def write(tx: Transaction) -> None:
        group = await group_rows.get(tx, group_id, lock=True)
        if block_id not in group.shared_block_ids:
            raise NotFound(f"Block {block_id} is not shared by the group {group_id}")
        await _unshare(tx, group, block_id)

    await database.write(write)


async def list_messages(database: Database, group_id: str, page: Page) -> list[Message]:
    """What the group's agents were sent as its members, and what they did about it."""

    async def read(tx: Transaction) -> list[Message]:
        await group_rows.get(tx, group_id)
        return await message_rows.list_of_group(tx, group_id, page)

    return await read_page(database, read, page)


async def reset_messages(database: Database, group_id: str, clock: Clock) -> None:
    """Takes what was said in the group out of the windows of its agents. It stays listable; nothing in it stays
    pending."""

    async def write(tx: Transaction) -> None:
        group = await group_rows.get(tx, group_id, lock=True)
        said = await message_rows.ids_of_group(tx, group_id)
        for agent_id in (*group.agent_ids, *([group.manager_agent_id] if group.manager_agent_id else [])):
            await _forget(tx, agent_id, said, clock)
        await group_rows.restart(tx, group_id, clock.now_us())

    await database.write(write)


async def _forget(tx: Transaction, agent_id: str, said: set[str], clock: Clock) -> None:
    evicted = [message_id for message_id in await threads.window_ids(tx, agent_id) if message_id in said]
    if not evicted:
        return
    await require_idle(tx, agent_id, "reset the messages")
    hold = await holds.open_of_thread(tx, agent_id)
    if hold is not None and hold.request_id in said:
        await cancel_parked(tx, clock, hold.run_id)
    await threads.replace_window(tx, agent_id, evicted)
    await recompile_system(tx, agent_id, clock.now_us(), update_timestamp=True)


async def _check_agents(tx: Transaction, group: Group) -> None:
    if not group.agent_ids:
        raise Invalid("A group needs at least one agent: name it in agent_ids.")
    named = [*group.agent_ids, *([group.manager_agent_id] if group.manager_agent_id else [])]
    if missing := await agent_rows.missing(tx, named):
        raise NotFound(f"Agents not found: {', '.join(missing)}")
    if group.manager_type == SLEEPTIME and group.manager_agent_id is not None:
        await sleeptime.check_roles(tx, group.manager_agent_id, group.agent_ids)
    elif group.manager_agent_id in group.agent_ids:
        raise Invalid("The manager of a group is not one of its members: leave it out of agent_ids.")


async def _begin_looking_after(tx: Transaction, agent_id: str) -> None:
    agent = await agent_rows.get(tx, agent_id, lock=True)
    check_can_be_looked_after(agent.agent_type)
    group = await group_rows.sleeptime_group_of(tx, agent_id)
    if group is not None:
        raise Conflict(
            f"The agent {agent_id} is looked after by the group {group.id} already: change or delete that one."
        )
    await agent_rows.set_sleeptime(tx, agent_id, True)


def _changed_pattern(group: Group, request: GroupUpdate) -> dict[str, Any]:
    config = request.manager_config
    if config is None:
        return {}
    if config.manager_type != group.manager_type:
        raise Invalid(
            f"The group is of the type {group.manager_type}, which cannot be changed to {config.manager_type}: make "
            "another group."
        )
    changes = pattern_changes(config)
    moved = changes.get("manager_agent_id", group.manager_agent_id) != group.manager_agent_id
    if moved and group.manager_type == SLEEPTIME:
        raise Invalid("A sleeptime group stays with the agent that it looks after: make another group for another one.")
    return changes


async def _share(tx: Transaction, group: Group, block_ids: Sequence[str]) -> None:
    """Each of its agents gets the blocks, the manager too."""
    blocks = await asked_blocks(tx, block_ids)
    await group_rows.add_blocks(tx, group.id, [block.id for block in blocks])
    for agent_id in (*group.agent_ids, *([group.manager_agent_id] if group.manager_agent_id else [])):
        await block_rows.attach_many(tx, agent_id, blocks)


async def _unshare(tx: Transaction, group: Group, block_id: str) -> None:
    await group_rows.remove_block(tx, group.id, block_id)
    for agent_id in (*group.agent_ids, *([group.manager_agent_id] if group.manager_agent_id else [])):
        await block_rows.detach_if_attached(tx, agent_id, block_id)


def _check_block_id(block_id: str) -> None:
    if not ids.is_id("block", block_id):
        raise Invalid(f"{block_id!r} is not the id of a block.")
