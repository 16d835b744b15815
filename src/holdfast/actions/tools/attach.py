"""Attach tools to an agent, detach them, and say which of them need a human's consent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

import msgspec

from holdfast.actions.agents.read import whole_state
from holdfast.actions.tools import base_tools
from holdfast.core.records import Agent
from holdfast.core.tool_rules import RequiresApproval, Rule
from holdfast.store import agents as agent_rows
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.agents import AgentState


async def attach_tool(database: Database, agent_id: str, tool_id: str, now_us: int, *, show: bool) -> AgentState | None:
    """`show`, here and below: whether the caller wants the agent as it is afterwards."""

    async def attach(tx: Transaction) -> None:
        agent = await agent_rows.get(tx, agent_id, lock=True)
        tool = await tool_rows.get(tx, tool_id, lock=True)
        await tool_rows.attach_many(tx, agent_id, (tool_id,))
        await _set_rules(tx, agent, base_tools.with_rules(agent.tool_rules, base_tools.approval_rules((tool,))), now_us)

    return await _change(database, agent_id, attach, show)


async def detach_tool(database: Database, agent_id: str, tool_id: str, now_us: int, *, show: bool) -> AgentState | None:
    """Its approval rule goes with it: it would otherwise wait for a tool of that name to come back."""

    async def detach(tx: Transaction) -> None:
        agent = await agent_rows.get(tx, agent_id, lock=True)
        tool = await tool_rows.get(tx, tool_id)
        if await tool_rows.detach(tx, agent_id, tool_id):
            await _set_rules(tx, agent, _without_approval(agent.tool_rules, tool.name), now_us)

    return await _change(database, agent_id, detach, show)


async def set_approval(
    database: Database, agent_id: str, tool_name: str, required: bool, now_us: int, *, show: bool
) -> AgentState | None:
    async def change(tx: Transaction) -> None:
        agent = await agent_rows.get(tx, agent_id, lock=True)
        if required:
            rules = base_tools.with_rules(agent.tool_rules, (RequiresApproval(tool_name=tool_name),))
        else:
            rules = _without_approval(agent.tool_rules, tool_name)
        await _set_rules(tx, agent, rules, now_us)

    return await _change(database, agent_id, change, show)


async def attach_named(tx: Transaction, agent: Agent, names: Collection[str], now_us: int) -> None:
    """Shipped tools, to an agent whose row is locked."""
    found = list((await base_tools.find_named(tx, names, now_us)).values())
    await tool_rows.attach_many(tx, agent.id, [tool.id for tool in found])
    await _set_rules(tx, agent, base_tools.with_rules(agent.tool_rules, base_tools.approval_rules(found)), now_us)


async def detach_named(tx: Transaction, agent: Agent, names: Collection[str], now_us: int) -> None:
    rules = agent.tool_rules
    for tool in (await base_tools.find_named(tx, names, now_us)).values():
        if await tool_rows.detach(tx, agent.id, tool.id):
            rules = _without_approval(rules, tool.name)
    await _set_rules(tx, agent, rules, now_us)


async def _change(
    database: Database, agent_id: str, change: Callable[[Transaction], Awaitable[None]], show: bool
) -> AgentState | None:
    async def write(tx: Transaction) -> AgentState | None:
        await change(tx)
        return await whole_state(tx, agent_id) if show else None

    return await database.write(write)


def _without_approval(rules: Iterable[Rule], tool_name: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if not (isinstance(rule, RequiresApproval) and rule.tool_name == tool_name))


async def _set_rules(tx: Transaction, agent: Agent, rules: tuple[Rule, ...], now_us: int) -> None:
    if rules != agent.tool_rules:
        await agent_rows.update_agent(tx, msgspec.structs.replace(agent, tool_rules=rules, updated_us=now_us))
