"""The groups and identities of an agent file.

The agents of a file that says of one only that it has sleeptime get a group here. An identity whose key is known here
is used as it is: a file does not change a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast import ids
from holdfast.actions.agent_files.errors import named
from holdfast.actions.agents.create import NO_TURN_YET
from holdfast.core.records import Block, Group, Identity
from holdfast.errors import Invalid
from holdfast.store import blocks as block_rows
from holdfast.store import groups as group_rows
from holdfast.store import identities as identity_rows
from holdfast.store.groups import SLEEPTIME
from holdfast.store.identities import AGENTS, BLOCKS
from holdfast.store.transaction import Transaction
from holdfast.wire.agent_file_sections import GroupEntry
from holdfast.wire.agent_files import AgentFile
from holdfast.wire.identities import properties_of

_MANAGED: Final = ("supervisor", "dynamic", SLEEPTIME)
_KNOWN: Final = ("round_robin", *_MANAGED)


class GroupPlan(msgspec.Struct, frozen=True):
    where: str
    group: Group
    blocks: Sequence[Block]  # that its agents share


def planned_groups(
    file: AgentFile,
    new_ids: Mapping[str, str],
    blocks: Mapping[str, Block],
    project_id: str | None,
    warnings: list[str],
    now_us: int,
) -> list[GroupPlan]:
    """`new_ids`: of the agents and groups of the file. A kind of group that this server does not have is left out."""
    plans: list[GroupPlan] = []
    for number, (local, entry) in enumerate(file.sections.groups.items()):
        if entry.group.kind not in _KNOWN:
            warnings.append(
                f"{entry.where}: it is left out, because this server has no groups of the kind {entry.group.kind}: its "
                "agents are imported, each by itself"
            )
            continue
        with named(entry.where):
            _check(entry)
        shared = [blocks[each] for each in dict.fromkeys(entry.group.shared_block_ids or ())]
        manager = entry.group.manager_config.manager_agent_id
        group = Group(
            id=new_ids[local],
            manager_type=entry.group.kind,
            agent_ids=tuple(new_ids[each] for each in dict.fromkeys(entry.group.agent_ids)),
            description=entry.group.description,
            manager_agent_id=None if manager is None or entry.group.kind == "round_robin" else new_ids[manager],
            shared_block_ids=tuple(block.id for block in shared),
            project_id=project_id,
            turns_counter=NO_TURN_YET if entry.group.kind == SLEEPTIME else None,
            hidden=entry.group.hidden,
            created_us=now_us + number,
            updated_us=now_us + number,
            **entry.group.fields,
        )
        plans.append(GroupPlan(entry.where, group, shared))
    _check_roles(plans)
    return plans


def sleeptime_flags(file: AgentFile) -> dict[str, bool]:
    """Of the agents that a sleeptime group of the file looks after: whether it is switched on."""
    return {
        manager: entry.group.enable_sleeptime
        for entry in file.sections.groups.values()
        if entry.group.kind == SLEEPTIME and (manager := entry.group.manager_config.manager_agent_id) is not None
    }


def new_group_ids(file: AgentFile) -> dict[str, str]:
    return {local: ids.new("group") for local in file.sections.groups}


async def write_group(tx: Transaction, plan: GroupPlan) -> None:
    group = plan.group
    with named(plan.where):
        await group_rows.insert(tx, group)
        for agent_id in (*group.agent_ids, *([group.manager_agent_id] if group.manager_agent_id else [])):
            await block_rows.attach_many(tx, agent_id, plan.blocks)


def _check(entry: GroupEntry) -> None:
    manager = entry.group.manager_config.manager_agent_id
    if not entry.group.agent_ids:
        raise Invalid("a group needs at least one agent")
    if entry.group.kind in _MANAGED and manager is None:
        raise Invalid(f"a group of the kind {entry.group.kind} needs the agent that manages it in manager_agent_id")
    if entry.group.kind in _MANAGED and manager in entry.group.agent_ids:
        raise Invalid("the agent that manages a group is not one of its members")


def _check_roles(plans: Sequence[GroupPlan]) -> None:
    """An agent is looked after by one group, or looks after others."""
    looked_after: set[str | None] = set()
    sleeptime = [plan for plan in plans if plan.group.manager_type == SLEEPTIME]
    looking_after = {agent_id for plan in sleeptime for agent_id in plan.group.agent_ids}
    for plan in sleeptime:
        with named(plan.where):
            if plan.group.manager_agent_id in looked_after:
                raise Invalid("another group of the file looks after the same agent")
            if plan.group.manager_agent_id in looking_after:
                raise Invalid("the agent that it looks after looks after another one itself")
        looked_after.add(plan.group.manager_agent_id)


class IdentityPlan(msgspec.Struct, frozen=True):
    where: str
    identity: Identity  # with the new ids of its agents and blocks


def planned_identities(
    file: AgentFile, agents: Mapping[str, str], blocks: Mapping[str, str], project_id: str | None, now_us: int
) -> list[IdentityPlan]:
    """`agents` and `blocks`: their new ids."""
    return [
        IdentityPlan(
            entry.where,
            Identity(
                id=ids.new("identity"),
                identifier_key=entry.identity.identifier_key,
                name=entry.identity.name,
                identity_type=entry.identity.identity_type,
                project_id=project_id,
                properties=properties_of(entry.identity.properties),
                agent_ids=tuple(agents[local] for local in entry.identity.agent_ids or ()),
                block_ids=tuple(blocks[local] for local in entry.identity.block_ids or ()),
                created_us=now_us + number,
                updated_us=now_us + number,
            ),
        )
        for number, entry in enumerate(file.sections.identities.values())
    ]


async def write_identities(tx: Transaction, plans: Sequence[IdentityPlan]) -> list[str]:
    """Gives warnings. In the order of their keys, so that two imports at once do not wait for each other's rows."""
    warnings: list[str] = []
    for plan in sorted(plans, key=lambda plan: plan.identity.identifier_key):
        wanted = plan.identity
        known = await identity_rows.find_by_key(tx, wanted.identifier_key, wanted.project_id)
        if known is None and not await identity_rows.insert_unless_taken(tx, wanted):
            known = await identity_rows.find_by_key(tx, wanted.identifier_key, wanted.project_id)
        identity_id = wanted.id if known is None else known.id
        if known is not None and _told(known) != _told(wanted):
            warnings.append(
                f"{plan.where}: there is an identity with its key, which stays as it is; the agents are its"
            )
        await identity_rows.add(tx, AGENTS, identity_id, wanted.agent_ids)
        await identity_rows.add(tx, BLOCKS, identity_id, wanted.block_ids)
    return warnings


def _told(identity: Identity) -> tuple[object, ...]:
    return identity.name, identity.identity_type, identity.properties
