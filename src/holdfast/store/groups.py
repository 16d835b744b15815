"""Groups of agents, and which turns of its manager a sleeptime group has still to look at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from holdfast import ids
from holdfast.core.records import Group
from holdfast.errors import NotFound
from holdfast.store.group_tables import group_agents, group_blocks, group_turns, groups
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_into, insert_or_ignore
from holdfast.store.tables import agents, runs
from holdfast.store.transaction import Row, Transaction, flag

SLEEPTIME: Final = "sleeptime"


class GroupFilter(msgspec.Struct, frozen=True, kw_only=True):
    manager_type: str | None = None
    project_id: str | None = None
    agent_id: str | None = None  # a member, not the manager
    show_hidden: bool = False


class CountedTurn(msgspec.Struct, frozen=True):
    group_id: str
    agent_ids: list[str]  # the sleeptime agents
    is_due: bool  # they are to be set to work


class WaitingTurns(msgspec.Struct, frozen=True):
    """Turns that a sleeptime agent is to be shown together, oldest first."""

    group_id: str
    said_ids: list[str]  # of runs, and of captured messages, which belong to no run
    shown_by_run_id: str
    last_seq: int


class DueRun(msgspec.Struct, frozen=True):
    """The run of a sleeptime agent that a turn has made due, and that is not accepted yet."""

    id: str
    agent_id: str
    due_us: int  # when the turn ended


_BY_AGE = Ordering(sort=groups.c.created_us, id=groups.c.id, what="Group")
_PLAIN = (
    "id",
    "manager_type",
    "manager_agent_id",
    "description",
    "project_id",
    "max_turns",
    "termination_token",
    "sleeptime_agent_frequency",
    "turns_counter",
    "last_processed_message_id",
    "created_us",
    "updated_us",
)
_CHANGING = (
    "manager_agent_id",
    "description",
    "project_id",
    "max_turns",
    "termination_token",
    "sleeptime_agent_frequency",
    "updated_us",
)
_INSERT = insert_into(groups)
_ADD_AGENT = insert_into(group_agents)
_ADD_BLOCK = insert_or_ignore(group_blocks)
_ONE = select(groups).where(groups.c.id == bindparam("id"))
_ONE_LOCKED = _ONE.with_for_update()
_UPDATE = (
    update(groups)
    .where(groups.c.id == bindparam("of_group"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGING})
)
_DELETE = delete(groups).where(groups.c.id == bindparam("id")).returning(groups.c.id, groups.c.created_us)
_REMOVE_AGENTS = delete(group_agents).where(group_agents.c.group_id == bindparam("group_id"))
_REMOVE_BLOCK = delete(group_blocks).where(
    group_blocks.c.group_id == bindparam("group_id"), group_blocks.c.block_id == bindparam("block_id")
)
_AGENTS = (
    select(group_agents)
    .where(in_array(group_agents.c.group_id, "ids"))
    .order_by(group_agents.c.group_id, group_agents.c.position)
)
_BLOCKS = (
    select(group_blocks)
    .where(in_array(group_blocks.c.group_id, "ids"))
    .order_by(group_blocks.c.group_id, group_blocks.c.block_id)
)
_MANAGED = select(groups).where(in_array(groups.c.manager_agent_id, "ids")).order_by(groups.c.created_us, groups.c.id)
_WITH_AGENT = (
    select(groups)
    .where(
        or_(
            groups.c.manager_agent_id == bindparam("agent"),
            exists().where(group_agents.c.group_id == groups.c.id, group_agents.c.agent_id == bindparam("agent")),
        )
    )
    .order_by(groups.c.created_us, groups.c.id)
)
_finished = bindparam("finished", type_=Boolean())
_COUNT_TURN = (
    update(groups)
    .where(
        groups.c.manager_agent_id == bindparam("agent"),
        groups.c.manager_type == SLEEPTIME,
        exists().where(agents.c.id == bindparam("agent"), agents.c.enable_sleeptime.is_(True)),
    )
    .values(
        turns_counter=case(
            (
                _finished & groups.c.sleeptime_agent_frequency.is_not(None),
                (func.coalesce(groups.c.turns_counter, -1) + 1) % groups.c.sleeptime_agent_frequency,
            ),
            else_=groups.c.turns_counter,
        )
    )
    .returning(groups.c.id, groups.c.turns_counter, groups.c.sleeptime_agent_frequency)
)
_KEEP_TURN = insert_into(group_turns)
_of_agent = group_turns.c.agent_id == bindparam("agent")
_WAITING = select(group_turns).where(_of_agent).order_by(group_turns.c.seq)
_begun = runs.alias("begun")
_DUE = (
    select(
        group_turns.c.shown_by_run_id.label("id"),
        group_turns.c.agent_id,
        func.coalesce(runs.c.completed_us, runs.c.created_us, 0).label("due_us"),
    )
    .select_from(group_turns.outerjoin(runs, runs.c.id == group_turns.c.run_id))
    .where(group_turns.c.shown_by_run_id.is_not(None), ~exists().where(_begun.c.id == group_turns.c.shown_by_run_id))
    .order_by(group_turns.c.seq.desc())
)
_DUE_OF_AGENTS = _DUE.where(in_array(group_turns.c.agent_id, "ids"))
_DUE_BY_ID = _DUE.where(group_turns.c.shown_by_run_id == bindparam("run"))
_up_to = and_(
    _of_agent,
    group_turns.c.group_id == bindparam("group"),
    group_turns.c.seq <= bindparam("last_seq", type_=BigInteger()),
)
_FORGET_SHOWN = delete(group_turns).where(_up_to)
_POSTPONE = update(group_turns).where(_up_to).values(shown_by_run_id=None)
_FORGET_REMOVED = delete(group_turns).where(
    group_turns.c.group_id == bindparam("group"),
    ~exists().where(
        group_agents.c.group_id == group_turns.c.group_id, group_agents.c.agent_id == group_turns.c.agent_id
    ),
)
_FORGET_TURNS = delete(group_turns).where(group_turns.c.group_id == bindparam("group"))
_SHOWN = (
    update(groups).where(groups.c.id == bindparam("of_group")).values(last_processed_message_id=bindparam("message_id"))
)
_RESTART = (
    update(groups)
    .where(groups.c.id == bindparam("of_group"))
    .values(
        turns_counter=case((groups.c.turns_counter.is_(None), groups.c.turns_counter), else_=-1),
        last_processed_message_id=None,
        updated_us=bindparam("now_us", type_=BigInteger()),
    )
)


async def insert(tx: Transaction, group: Group) -> None:
    """With its agents and blocks. Raises IntegrityError when the manager has a sleeptime group already."""
    columns = {name: getattr(group, name) for name in _PLAIN}
    await tx.execute(_INSERT, {**columns, "organization_id": ids.DEFAULT_ORG, "hidden": group.hidden})
    await _add_agents(tx, group.id, group.agent_ids)
    await add_blocks(tx, group.id, group.shared_block_ids)


async def get(tx: Transaction, group_id: str, *, lock: bool = False) -> Group:
    group = await find(tx, group_id, lock=lock)
    if group is None:
        raise NotFound(f"Group {group_id} not found")
    return group


async def find(tx: Transaction, group_id: str, *, lock: bool = False) -> Group | None:
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": group_id})
    return None if row is None else (await _records(tx, (row,)))[0]


async def list_groups(tx: Transaction, filters: GroupFilter, page: Page) -> list[Group]:
    return await _records(tx, await fetch_page(tx, select(groups).where(*_conditions(filters)), _BY_AGE, page))


async def count_groups(tx: Transaction) -> int:
    row = await tx.fetch_one(select(func.count().label("found")).select_from(groups))
    return 0 if row is None else row["found"]


async def managed_by(tx: Transaction, agent_ids: Collection[str]) -> dict[str, Group]:
    """The group of each agent that manages one: the sleeptime group, else the newest."""
    found: dict[str, Group] = {}
    for group in await _records(tx, await tx.fetch_all(_MANAGED, {"ids": list(agent_ids)})):
        manager = str(group.manager_agent_id)
        if manager not in found or found[manager].manager_type != SLEEPTIME:
            found[manager] = group
    return found


async def sleeptime_group_of(tx: Transaction, agent_id: str) -> Group | None:
    """The one that looks after this agent."""
    group = (await managed_by(tx, (agent_id,))).get(agent_id)
    return group if group is not None and group.manager_type == SLEEPTIME else None


async def with_agent(tx: Transaction, agent_id: str) -> list[Group]:
    """Those that it manages or is a member of."""
    return await _records(tx, await tx.fetch_all(_WITH_AGENT, {"agent": agent_id}))


async def update_group(tx: Transaction, group: Group) -> None:
    """Not its blocks, nor what its turns leave behind."""
    changed = {f"new_{name}": getattr(group, name) for name in _CHANGING}
    await tx.execute(_UPDATE, {"of_group": group.id, **changed})
    await tx.execute(_REMOVE_AGENTS, {"group_id": group.id})
    await _add_agents(tx, group.id, group.agent_ids)
    await tx.execute(_FORGET_REMOVED, {"group": group.id})


async def delete_group(tx: Transaction, group_id: str) -> None:
    """Its agents and blocks stay."""
    row = await tx.fetch_one(_DELETE, {"id": group_id})
    if row is None:
        raise NotFound(f"Group {group_id} not found")
    await save_tombstone(tx, row, (_BY_AGE,))


async def add_blocks(tx: Transaction, group_id: str, block_ids: Iterable[str]) -> None:
    rows = [{"group_id": group_id, "block_id": block_id} for block_id in dict.fromkeys(block_ids)]
    if rows:
        await tx.execute_many(_ADD_BLOCK, rows)


async def remove_block(tx: Transaction, group_id: str, block_id: str) -> bool:
    return await tx.execute(_REMOVE_BLOCK, {"group_id": group_id, "block_id": block_id}) == 1


async def count_turn(tx: Transaction, agent_id: str, *, finished: bool) -> CountedTurn | None:
    """A run of an agent has ended; `finished`: and with it the turn. None when no sleeptime group looks after it.

    The group's row is locked from here on, so that turns in several conversations are counted one after the other.
    """
    row = await tx.fetch_one(_COUNT_TURN, {"agent": agent_id, "finished": finished})
    if row is None:
        return None
    members = await tx.fetch_all(_AGENTS, {"ids": [row["id"]]})
    is_due = finished and (row["sleeptime_agent_frequency"] is None or row["turns_counter"] == 0)
    return CountedTurn(row["id"], [member["agent_id"] for member in members], is_due)


async def keep_turn(
    tx: Transaction, group_id: str, agent_id: str, said_ids: Sequence[str], shown_by: str | None
) -> None:
    """For one of its agents to be shown; `shown_by`: by this run, which is due now. It is shown what comes before in
    the table as well, so the last row of the turn has its id."""
    rows = [
        {"group_id": group_id, "agent_id": agent_id, "run_id": said_id, "shown_by_run_id": None} for said_id in said_ids
    ]
    rows[-1]["shown_by_run_id"] = shown_by
    await tx.execute_many(_KEEP_TURN, rows)


async def waiting_turns(tx: Transaction, agent_id: str) -> WaitingTurns | None:
    """The first turn that sets the agent to work, and those before it. The same ones until they are forgotten."""
    said_ids: dict[str, list[str]] = {}  # by group: it may look after several agents
    for row in await tx.fetch_all(_WAITING, {"agent": agent_id}):
        said_ids.setdefault(row["group_id"], []).append(row["run_id"])
        if row["shown_by_run_id"] is not None:
            return WaitingTurns(row["group_id"], said_ids[row["group_id"]], row["shown_by_run_id"], row["seq"])
    return None


async def due_runs(tx: Transaction, agent_ids: Collection[str]) -> list[DueRun]:
    """Newest first."""
    return [_due_run(row) for row in await tx.fetch_all(_DUE_OF_AGENTS, {"ids": list(agent_ids)})]


async def find_due_run(tx: Transaction, run_id: str) -> DueRun | None:
    row = await tx.fetch_one(_DUE_BY_ID, {"run": run_id})
    return None if row is None else _due_run(row)


def _due_run(row: Row) -> DueRun:
    return DueRun(row["id"], row["agent_id"], row["due_us"])


async def forget_shown(tx: Transaction, agent_id: str, shown: WaitingTurns, last_message_id: str | None) -> None:
    await tx.execute(_FORGET_SHOWN, {"agent": agent_id, "group": shown.group_id, "last_seq": shown.last_seq})
    if last_message_id is not None:
        await tx.execute(_SHOWN, {"of_group": shown.group_id, "message_id": last_message_id})


async def postpone_turns(tx: Transaction, agent_id: str, waiting: WaitingTurns) -> None:
    """They are shown together with the next that set the agent to work."""
    await tx.execute(_POSTPONE, {"agent": agent_id, "group": waiting.group_id, "last_seq": waiting.last_seq})


async def forget_turns(tx: Transaction, group_id: str) -> None:
    await tx.execute(_FORGET_TURNS, {"group": group_id})


async def restart(tx: Transaction, group_id: str, now_us: int) -> None:
    """As if no turn had been counted yet."""
    await forget_turns(tx, group_id)
    await tx.execute(_RESTART, {"of_group": group_id, "now_us": now_us})


async def _add_agents(tx: Transaction, group_id: str, agent_ids: Sequence[str]) -> None:
    rows = [
        {"group_id": group_id, "agent_id": agent_id, "position": position}
        for position, agent_id in enumerate(agent_ids)
    ]
    if rows:
        await tx.execute_many(_ADD_AGENT, rows)


def _conditions(filters: GroupFilter) -> list[ColumnElement[bool]]:
    exact = {groups.c.manager_type: filters.manager_type, groups.c.project_id: filters.project_id}
    conditions: list[ColumnElement[bool]] = [column == value for column, value in exact.items() if value is not None]
    if filters.agent_id is not None:
        member = select(group_agents.c.group_id).where(group_agents.c.agent_id == filters.agent_id)
        conditions.append(groups.c.id.in_(member))
    if not filters.show_hidden:
        conditions.append(or_(groups.c.hidden.is_(None), groups.c.hidden.is_(False)))
    return conditions


async def _records(tx: Transaction, rows: Sequence[Row]) -> list[Group]:
    if not rows:
        return []
    group_ids = [row["id"] for row in rows]
    members = _grouped(await tx.fetch_all(_AGENTS, {"ids": group_ids}), "agent_id")
    shared = _grouped(await tx.fetch_all(_BLOCKS, {"ids": group_ids}), "block_id")
    return [
        Group(
            **{name: row[name] for name in _PLAIN},
            hidden=flag(row["hidden"]),
            agent_ids=tuple(members.get(row["id"], ())),
            shared_block_ids=tuple(shared.get(row["id"], ())),
        )
        for row in rows
    ]


def _grouped(rows: Iterable[Row], value: str) -> Mapping[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["group_id"], []).append(row[value])
    return found
