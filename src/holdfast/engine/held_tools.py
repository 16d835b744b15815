"""Finds out which tools a hold asks about, when it is made: an answer is then held to these very tools."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.fingerprint import ToolIdentity, calls_others, fingerprint, gets_secrets
from holdfast.core.hold import NO_TOOLS, HeldTools
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.store import agents, tools
from holdfast.store.transaction import Database, Transaction


async def find_held_tools(database: Database, spec: RunSpec, calls: Iterable[OpenCall]) -> HeldTools:
    asking = {call.call.name for call in calls if call.status == "held"}
    asked = {tool.tool_id: tool for tool in spec.tools if tool.name in asking and tool.tool_id is not None}
    if not asked:
        return NO_TOOLS

    async def read(tx: Transaction) -> HeldTools:
        stored = await tools.find_many(tx, list(asked))
        secrets = await agents.secret_ids_of(tx, spec.agent_id)
        attached = await tools.of_agent(tx, spec.agent_id) if any(map(calls_others, stored.values())) else []
        hashes = {tool_id: fingerprint(tool, secrets, attached) for tool_id, tool in stored.items()}
        # The version is the one that the model was shown: an edit since then must not pass for what was asked about.
        identities = {
            tool.name: ToolIdentity(tool_id, tool.version, hashes.get(tool_id)) for tool_id, tool in asked.items()
        }
        return HeldTools(identities, secrets if any(map(gets_secrets, (*stored.values(), *attached))) else None)

    return await database.read(read)
