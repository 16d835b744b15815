"""Agents and what belongs to one alone: tags, secrets, and what its default thread shows of itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, func, literal, or_, select, update

from holdfast.core.changes import Change
from holdfast.core.hold import Hold, changed_secrets
from holdfast.core.messages import Message
from holdfast.core.records import Agent, CompactionSettings, ModelChoice, StopReason
from holdfast.core.tool_rules import Rule
from holdfast.errors import NotFound
from holdfast.store import archives, messages
from holdfast.store.archive_tables import agent_archives, agent_folders
from holdfast.store.blocks import contains_text, tagged
from holdfast.store.group_tables import identity_agents
from holdfast.store.identities import owned_by
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_into
from holdfast.store.tables import agent_blocks, agent_secrets, agent_tags, agents, holds
from holdfast.store.transaction import Row, Transaction, flag

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_model = msgspec.json.Decoder(ModelChoice).decode
_decode_rules = msgspec.json.Decoder(tuple[Rule, ...]).decode
_decode_hold = msgspec.json.Decoder(Hold).decode
_decode_compaction = msgspec.json.Decoder(CompactionSettings).decode

OrderBy = Literal["created_at", "updated_at", "last_run_completion"]


class AgentFilter(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    query_text: str | None = None
    tags: tuple[str, ...] = ()
    match_all_tags: bool = False
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    last_stop_reason: str | None = None
    block_id: str | None = None
    archive_id: str | None = None
    identity_id: str | None = None
    identifier_keys: tuple[str, ...] = ()
    folder_id: str | None = None
    show_hidden: bool = False


class SealedSecret(msgspec.Struct, frozen=True):
    id: str
    key: str
    sealed: bytes
    description: str | None = None


class PendingRequest(msgspec.Struct, frozen=True):
    request: Message
    changed_secrets: tuple[str, ...]  # since it was asked


_ORDERINGS: dict[OrderBy, Ordering] = {
    "created_at": Ordering(sort=agents.c.created_us, id=agents.c.id, what="Agent"),
    "updated_at": Ordering(sort=agents.c.updated_us, id=agents.c.id, what="Agent"),
    "last_run_completion": Ordering(sort=agents.c.last_run_completion_us, id=agents.c.id, what="Agent", nullable=True),
}
# Written when a run ends, by the run, and left alone by edits of the agent.
_OF_RUNS = frozenset({"last_stop_reason", "last_run_completion_us", "last_run_duration_ns"})
_UNCHANGING = frozenset({"id", "created_us"}) | _OF_RUNS

_MANY: Final = 500
COLUMNS = tuple(agents.columns)

_INSERT = insert_into(agents)
_INSERT_TAG = insert_into(agent_tags)
_INSERT_SECRET = insert_into(agent_secrets)
_ONE = select(agents).where(agents.c.id == bindparam("id"))
_ONE_LOCKED = _ONE.with_for_update()
_EXISTS = select(agents.c.id).where(agents.c.id == bindparam("id"))
_KEPT = select(agents.c.id).where(in_array(agents.c.id, "ids")).with_for_update(read=True, key_share=True)
_SEVERAL = select(agents).where(in_array(agents.c.id, "ids"))
_PLACE_LOCKED = (
    select(agents.c.id, *(ordering.sort for ordering in _ORDERINGS.values()))
    .where(agents.c.id == bindparam("id"))
    .with_for_update()
)
_DELETE = delete(agents).where(agents.c.id == bindparam("id"))
_UPDATE = (
    update(agents)
    .where(agents.c.id == bindparam("of_agent"))
    .values({column: bindparam(f"new_{column.name}") for column in agents.c if column.name not in _UNCHANGING})
)
_RECORD_LAST_RUN = (
    update(agents)
    .where(agents.c.id == bindparam("of_agent"))
    .values({agents.columns[name]: bindparam(f"new_{name}") for name in sorted(_OF_RUNS)})
)
_SET_SLEEPTIME = update(agents).where(agents.c.id == bindparam("of_agent")).values(enable_sleeptime=bindparam("enable"))
_TAGS = (
    select(agent_tags.c.agent_id, agent_tags.c.tag)
    .where(in_array(agent_tags.c.agent_id, "ids"))
    .order_by(agent_tags.c.agent_id, agent_tags.c.tag)
)
_LAST_OF_MANY_TAGGED = (
    select(agent_tags.c.agent_id).where(agent_tags.c.tag == bindparam("tag")).offset(_MANY - 1).limit(1)
)
_UNTAG = delete(agent_tags).where(agent_tags.c.agent_id == bindparam("of_agent"))
_SECRETS = (
    select(agent_secrets)
    .where(in_array(agent_secrets.c.agent_id, "ids"))
    .order_by(agent_secrets.c.agent_id, agent_secrets.c.key)
)
_SECRET_IDS = select(agent_secrets.c.agent_id, agent_secrets.c.key, agent_secrets.c.id).where(
    in_array(agent_secrets.c.agent_id, "ids")
)
_FORGET = delete(agent_secrets).where(agent_secrets.c.agent_id == bindparam("of_agent"))
_OPEN_HOLDS = select(holds.c.thread_id, holds.c.request_id, holds.c.hold).where(
    in_array(holds.c.thread_id, "ids"), holds.c.decided_us.is_(None)
)


async def insert(tx: Transaction, agent: Agent) -> None:
    await tx.execute_many(_INSERT, [_columns(agent)])
    tx.changes.append(Change("agent", agent.id, "created", agent.id))


async def get(tx: Transaction, agent_id: str, *, lock: bool = False) -> Agent:
    """`lock` keeps the row as it is until the transaction ends, for a change that depends on what it holds."""
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": agent_id})
    if row is None:
        raise NotFound("Agent not found")
    return agent_of(row)


async def require(tx: Transaction, agent_id: str) -> None:
    if await tx.fetch_one(_EXISTS, {"id": agent_id}) is None:
        raise NotFound("Agent not found")


async def missing(tx: Transaction, agent_ids: Collection[str]) -> list[str]:
    """Those that do not exist. The others stay until the transaction ends, for rows that will refer to them."""
    found = {row["id"] for row in await tx.fetch_all(_KEPT, {"ids": list(agent_ids)})} if agent_ids else set[str]()
    return [agent_id for agent_id in agent_ids if agent_id not in found]


async def find_many(tx: Transaction, agent_ids: Collection[str]) -> dict[str, Agent]:
    return {row["id"]: agent_of(row) for row in await tx.fetch_all(_SEVERAL, {"ids": list(agent_ids)})}


async def update_agent(tx: Transaction, agent: Agent) -> None:
    """Write everything but what runs leave behind, so that an edit cannot undo the end of a run."""
    changed = {f"new_{name}": value for name, value in _columns(agent).items() if name not in _UNCHANGING}
    await tx.execute(_UPDATE, {"of_agent": agent.id, **changed})
    tx.changes.append(Change("agent", agent.id, "changed", agent.id))


async def set_sleeptime(tx: Transaction, agent_id: str, enable: bool | None) -> None:
    await tx.execute(_SET_SLEEPTIME, {"of_agent": agent_id, "enable": enable})
    tx.changes.append(Change("agent", agent_id, "changed", agent_id))


async def record_last_run(
    tx: Transaction, agent_id: str, stop_reason: StopReason, ended_us: int, duration_ns: int
) -> None:
    """In the transaction that writes the run's end (I1)."""
    ended = {
        "new_last_stop_reason": stop_reason,
        "new_last_run_completion_us": ended_us,
        "new_last_run_duration_ns": duration_ns,
    }
    await tx.execute_many(_RECORD_LAST_RUN, [{"of_agent": agent_id, **ended}])


async def delete_agent(tx: Transaction, agent_id: str, now_us: int) -> str | None:
    """With its threads, messages, runs and the archive that was made for it, whose id is returned: `archives.clear` has
    to follow. Blocks and tools outlive it, and so do archives that it was given or shares."""
    row = await tx.fetch_one(_PLACE_LOCKED, {"id": agent_id})
    if row is None:
        raise NotFound("Agent not found")
    cleared = await archives.mark_own_deleted(tx, agent_id, now_us)
    await tx.execute(_DELETE, {"id": agent_id})
    await save_tombstone(tx, row, _ORDERINGS.values())
    tx.changes.append(Change("agent", agent_id, "deleted", agent_id))
    return cleared


async def list_agents(
    tx: Transaction, filters: AgentFilter, page: Page, order_by: OrderBy = "created_at"
) -> list[Agent]:
    frequent = await _frequent(tx, filters.tags)
    named = await _named_like(tx, filters.query_text) if filters.query_text else None
    if named is not None:
        filters = msgspec.structs.replace(filters, query_text=None)
    query = select(agents).where(*_conditions(filters, frequent))
    if named is not None:
        query = query.where(in_array(agents.c.id, named))
    return [agent_of(row) for row in await fetch_page(tx, query, _ORDERINGS[order_by], page)]


async def count_agents(tx: Transaction, filters: AgentFilter) -> int:
    row = await tx.fetch_one(select(func.count().label("found")).select_from(agents).where(*_conditions(filters)))
    return 0 if row is None else row["found"]


async def tags_of(tx: Transaction, agent_ids: Collection[str]) -> dict[str, list[str]]:
    return _grouped(await tx.fetch_all(_TAGS, {"ids": list(agent_ids)}), "agent_id", "tag")


async def set_tags(tx: Transaction, agent_id: str, tags: Iterable[str]) -> None:
    await tx.execute(_UNTAG, {"of_agent": agent_id})
    await add_tags(tx, agent_id, tags)


async def add_tags(tx: Transaction, agent_id: str, tags: Iterable[str]) -> None:
    rows = [{"agent_id": agent_id, "tag": tag} for tag in dict.fromkeys(tags)]
    if rows:
        await tx.execute_many(_INSERT_TAG, rows)


async def secrets_of(tx: Transaction, agent_ids: Collection[str]) -> dict[str, list[SealedSecret]]:
    found: dict[str, list[SealedSecret]] = {}
    for row in await tx.fetch_all(_SECRETS, {"ids": list(agent_ids)}):
        secret = SealedSecret(row["id"], row["key"], bytes(row["value_enc"]), row["description"])
        found.setdefault(row["agent_id"], []).append(secret)
    return found


async def secret_ids_of(tx: Transaction, agent_id: str) -> dict[str, str]:
    """By name, without the values. The id of a secret changes with its value, and only then."""
    return (await secret_ids_of_many(tx, (agent_id,))).get(agent_id, {})


async def secret_ids_of_many(tx: Transaction, agent_ids: Collection[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for row in await tx.fetch_all(_SECRET_IDS, {"ids": list(agent_ids)}):
        found.setdefault(row["agent_id"], {})[row["key"]] = row["id"]
    return found


async def set_secrets(tx: Transaction, agent_id: str, secrets: Sequence[SealedSecret]) -> None:
    await tx.execute(_FORGET, {"of_agent": agent_id})
    await add_secrets(tx, agent_id, secrets)


async def add_secrets(tx: Transaction, agent_id: str, secrets: Sequence[SealedSecret]) -> None:
    rows = [
        {
            "agent_id": agent_id,
            "id": secret.id,
            "key": secret.key,
            "value_enc": secret.sealed,
            "description": secret.description,
        }
        for secret in secrets
    ]
    if rows:
        await tx.execute_many(_INSERT_SECRET, rows)


async def pending_approvals_of(tx: Transaction, agent_ids: Collection[str]) -> dict[str, PendingRequest]:
    """The open approval request of each agent's default thread."""
    open_holds = {row["request_id"]: row for row in await tx.fetch_all(_OPEN_HOLDS, {"ids": list(agent_ids)})}
    if not open_holds:
        return {}
    secrets = await secret_ids_of_many(tx, [row["thread_id"] for row in open_holds.values()])
    pending: dict[str, PendingRequest] = {}
    for message in await messages.find_many(tx, list(open_holds)):
        row = open_holds[message.id]
        agent_id = row["thread_id"]
        changed = changed_secrets(_decode_hold(row["hold"]), secrets.get(agent_id, {}))
        pending[agent_id] = PendingRequest(message, tuple(changed))
    return pending


async def _frequent(tx: Transaction, tags: Iterable[str]) -> frozenset[str]:
    """Those that many agents have. Their agents are not gathered first: a page is full after a few."""
    return frozenset([tag for tag in tags if await tx.fetch_one(_LAST_OF_MANY_TAGGED, {"tag": tag}) is not None])


async def _named_like(tx: Transaction, text: str) -> list[str] | None:
    """The agents with this in their names; None if there are many, of which a page is full after a few. Names are read
    from their index, and agents are large."""
    query = select(agents.c.id).where(contains_text(agents.c.name, text)).limit(_MANY)
    found = [row["id"] for row in await tx.fetch_all(query)]
    return None if len(found) == _MANY else found


def _tagged(filters: AgentFilter, frequent: Collection[str]) -> list[ColumnElement[bool]]:
    """`frequent`: tags that are looked up for each agent, in the order of the list. With the others the list begins."""
    if not filters.match_all_tags:
        if not filters.tags:
            return []
        if not frequent:
            return [tagged(agent_tags.c.tag, agent_tags.c.agent_id, agents.c.id, filters.tags, False)]
        return [_has_tag(in_array(agent_tags.c.tag, sorted(set(filters.tags))))]
    rare = sorted(set(filters.tags) - set(frequent))
    conditions: list[ColumnElement[bool]] = [
        _has_tag(agent_tags.c.tag == tag) for tag in sorted(set(frequent) & set(filters.tags))
    ]
    if rare:
        conditions.append(tagged(agent_tags.c.tag, agent_tags.c.agent_id, agents.c.id, rare, True))
    return conditions


def _has_tag(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Looked up for each agent of a page. PostgreSQL makes a join of EXISTS, and gathers all that have the tag."""
    found = select(literal(1)).where(agent_tags.c.agent_id == agents.c.id, condition).limit(1)
    return found.scalar_subquery().is_not(None)


def _conditions(filters: AgentFilter, frequent: Collection[str] = ()) -> list[ColumnElement[bool]]:
    exact = {
        agents.c.name: filters.name,
        agents.c.project_id: filters.project_id,
        agents.c.template_id: filters.template_id,
        agents.c.base_template_id: filters.base_template_id,
        agents.c.last_stop_reason: filters.last_stop_reason,
    }
    conditions: list[ColumnElement[bool]] = [column == value for column, value in exact.items() if value is not None]
    if filters.query_text:
        conditions.append(contains_text(agents.c.name, filters.query_text))
    conditions += _tagged(filters, frequent)
    if filters.block_id is not None:
        conditions.append(
            agents.c.id.in_(select(agent_blocks.c.agent_id).where(agent_blocks.c.block_id == filters.block_id))
        )
    if filters.archive_id is not None:
        attached = select(agent_archives.c.agent_id).where(agent_archives.c.archive_id == filters.archive_id)
        conditions.append(agents.c.id.in_(attached))
    owned = owned_by(identity_agents, identity_agents.c.agent_id, filters.identity_id, filters.identifier_keys)
    if owned is not None:
        conditions.append(agents.c.id.in_(owned))
    if filters.folder_id is not None:
        users = select(agent_folders.c.agent_id).where(agent_folders.c.folder_id == filters.folder_id)
        conditions.append(agents.c.id.in_(users))
    if not filters.show_hidden:
        conditions.append(or_(agents.c.hidden.is_(None), agents.c.hidden.is_(False)))
    return conditions


def _grouped(rows: Iterable[Row], key: str, value: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row[value])
    return found


def agent_of(row: Iterable[Any]) -> Agent:
    """Of the values of COLUMNS. By place, not by name: a page of agents is looked through in half the time."""
    (
        agent_id,
        name,
        agent_type,
        system,
        model,
        embedding,
        embedding_config,
        description,
        metadata,
        tool_rules,
        compaction,
        timezone,
        message_buffer_autoclear,
        enable_sleeptime,
        max_files_open,
        per_file_view_window_char_limit,
        hidden,
        project_id,
        template_id,
        base_template_id,
        last_stop_reason,
        last_run_completion_us,
        last_run_duration_ns,
        created_us,
        updated_us,
    ) = row
    return Agent(
        id=agent_id,
        name=name,
        agent_type=agent_type,
        system=system,
        model=_decode_model(model),
        embedding=embedding,
        embedding_config=_object(embedding_config),
        description=description,
        metadata=_object(metadata),
        tool_rules=_decode_rules(tool_rules),
        compaction=_decode_compaction(compaction),
        timezone=timezone,
        message_buffer_autoclear=bool(message_buffer_autoclear),
        enable_sleeptime=flag(enable_sleeptime),
        max_files_open=max_files_open,
        per_file_view_window_char_limit=per_file_view_window_char_limit,
        hidden=flag(hidden),
        project_id=project_id,
        template_id=template_id,
        base_template_id=base_template_id,
        last_stop_reason=last_stop_reason,
        last_run_completion_us=last_run_completion_us,
        last_run_duration_ns=last_run_duration_ns,
        created_us=created_us,
        updated_us=updated_us,
    )


def _columns(agent: Agent) -> Mapping[str, Any]:
    return {
        "id": agent.id,
        "name": agent.name,
        "agent_type": agent.agent_type,
        "system": agent.system,
        "model": _encode(agent.model).decode(),
        "embedding": agent.embedding,
        "embedding_config": _text(agent.embedding_config),
        "description": agent.description,
        "metadata": _text(agent.metadata),
        "tool_rules": _encode(agent.tool_rules).decode(),
        "compaction": _encode(agent.compaction).decode(),
        "timezone": agent.timezone,
        "message_buffer_autoclear": agent.message_buffer_autoclear,
        "enable_sleeptime": agent.enable_sleeptime,
        "max_files_open": agent.max_files_open,
        "per_file_view_window_char_limit": agent.per_file_view_window_char_limit,
        "hidden": agent.hidden,
        "project_id": agent.project_id,
        "template_id": agent.template_id,
        "base_template_id": agent.base_template_id,
        "last_stop_reason": agent.last_stop_reason,
        "last_run_completion_us": agent.last_run_completion_us,
        "last_run_duration_ns": agent.last_run_duration_ns,
        "created_us": agent.created_us,
        "updated_us": agent.updated_us,
    }


def _object(text: str | None) -> dict[str, Any] | None:
    return None if text is None else _decode_object(text)


def _text(value: dict[str, Any] | None) -> str | None:
    return None if value is None else _encode(value).decode()
