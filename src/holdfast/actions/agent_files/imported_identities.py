"""The identities of an agent file. One whose key is known here is used as it is: a file does not change a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast import ids
from holdfast.core.records import Identity
from holdfast.store import identities as identity_rows
from holdfast.store.identities import AGENTS, BLOCKS
from holdfast.store.transaction import Transaction
from holdfast.wire.agent_files import AgentFile
from holdfast.wire.identities import properties_of


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
