"""The sleeptime agents of an agent: which blocks they share with it, and how they are let go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.core.records import Group
from holdfast.errors import Invalid
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store import groups as group_rows
from holdfast.store.groups import SLEEPTIME
from holdfast.store.transaction import Transaction


async def share_blocks(tx: Transaction, agent_id: str, removed: Collection[str] = ()) -> None:
    """Gives the sleeptime agents what blocks the agent has now, and takes from them those that were `removed` from it.
    A block whose label they have a block of their own for is not shared."""
    group = await group_rows.sleeptime_group_of(tx, agent_id)
    if group is None:
        return
    blocks = await block_rows.of_agent(tx, agent_id)
    for member in group.agent_ids:
        known = await block_rows.of_agent(tx, member)
        for block in known:
            if block.id in removed:
                await block_rows.detach(tx, member, block.id)
        labels = {block.label for block in known if block.id not in removed}
        await block_rows.attach_many(tx, member, [block for block in blocks if block.label not in labels])


async def check_roles(tx: Transaction, manager_agent_id: str, agent_ids: Sequence[str]) -> None:
    """An agent is looked after, or looks after others: agents that look after each other would never come to rest."""
    if manager_agent_id in agent_ids:
        raise Invalid("An agent cannot look after itself: leave the manager out of agent_ids.")
    for group in await group_rows.with_agent(tx, manager_agent_id):
        if group.manager_type == SLEEPTIME and manager_agent_id in group.agent_ids:
            raise Invalid(f"The agent {manager_agent_id} looks after another agent; nobody can look after it.")
    for agent_id in agent_ids:
        if await group_rows.sleeptime_group_of(tx, agent_id) is not None:
            raise Invalid(f"The agent {agent_id} is looked after itself; it cannot look after another agent.")


async def dissolve(tx: Transaction, group: Group) -> None:
    """The agents stay, and nobody looks after the manager from now on."""
    await group_rows.delete_group(tx, group.id)
    if group.manager_agent_id is not None:
        await agent_rows.set_sleeptime(tx, group.manager_agent_id, None)


async def going_with(tx: Transaction, agent_id: str) -> list[str]:
    """The sleeptime agents that are deleted with the agent: those that were made for it, and are in no other group."""
    group = await group_rows.sleeptime_group_of(tx, agent_id)
    if group is None:
        return []
    return [member for member in group.agent_ids if await _belongs_to(tx, member, group)]


async def leave_groups(tx: Transaction, agent_id: str) -> None:
    """Before the agent is deleted. Groups that it managed go; from others it goes. A sleeptime group that has no other
    agents goes, too."""
    for group in await group_rows.with_agent(tx, agent_id):
        if group.manager_agent_id == agent_id:
            await group_rows.delete_group(tx, group.id)
        elif group.manager_type == SLEEPTIME and set(group.agent_ids) == {agent_id}:
            await dissolve(tx, group)


async def _belongs_to(tx: Transaction, agent_id: str, group: Group) -> bool:
    if (await agent_rows.get(tx, agent_id)).agent_type != "sleeptime_agent":
        return False
    return all(other.id == group.id for other in await group_rows.with_agent(tx, agent_id))
