"""The history that an imported agent begins with: the file's, repaired, or a system message alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.actions.agent_files.errors import named
from holdfast.actions.agents.first_messages import first_messages
from holdfast.core import heartbeats, system_prompt
from holdfast.core.history_repair import repaired
from holdfast.core.messages import Message
from holdfast.core.records import Agent, Block
from holdfast.wire.agent_file_messages import FileMessage, MessageReader, Origin
from holdfast.wire.agent_files import AgentEntry


class History(msgspec.Struct, frozen=True, kw_only=True):
    window: Sequence[Message]
    outside: Sequence[Message] = ()  # what had left the context window before
    digest: str | None = None  # of a system message that was compiled now; the file's is compiled anew by the next turn
    repairs: Sequence[str] = ()


def new_history(agent: Agent, blocks: Sequence[Block], now_us: int) -> History:
    return History(window=[_system(agent, blocks, now_us)], digest=system_prompt.digest(agent, blocks, None))


def imported_history(
    entry: AgentEntry,
    agent: Agent,
    blocks: Sequence[Block],
    file_handle: str,
    new_ids: Mapping[str, str],
    *,
    is_ours: bool,
    now_us: int,
) -> History:
    """`file_handle`: the model that the agent had in the file; `new_ids`: of the file's agents and groups. Takes long
    for a long history: use a thread."""
    if not entry.messages:
        return new_history(agent, blocks, now_us)
    config = entry.fields.llm_config
    origin = Origin(
        model_name=config.model if config else None,
        handle=file_handle,
        is_ours=is_ours,
        thinks_in_text=not is_ours and agent.agent_type in heartbeats.AGENT_TYPES,
        now_us=now_us,
        new_ids=new_ids,
    )
    reader = MessageReader(origin, entry.messages)
    places = {message.id: place for place, message in enumerate(entry.messages)}
    rows = {message.id: _row(reader, entry, message, places) for message in entry.messages}
    in_context = set(entry.in_context)
    told = [f"{entry.where} messages[{places[local]}]: {what}" for local, what in reader.losses]
    window, repairs = _in_order(entry, [rows[local] for local in entry.in_context], places)
    if not window or window[0].role != "system":
        window = [_system(agent, blocks, now_us), *window]
        repairs.insert(0, f"{entry.where}: its history does not begin with a system message; one was put before it")
    return History(
        window=window,
        outside=[row for local, row in rows.items() if local not in in_context],
        repairs=[*told, *repairs],
    )


def _row(reader: MessageReader, entry: AgentEntry, message: FileMessage, places: dict[str, int]) -> Message:
    with named(f"{entry.where} messages[{places[message.id]}]"):
        return reader.row(message)


def _in_order(
    entry: AgentEntry, window: Sequence[Message], places: dict[str, int]
) -> tuple[Sequence[Message], list[str]]:
    result = repaired(window)
    told = [f"{entry.where} messages[{places[entry.in_context[each.index]]}]: {each.what}" for each in result.repairs]
    return result.rows, told


def _system(agent: Agent, blocks: Sequence[Block], now_us: int) -> Message:
    return first_messages(agent, blocks, (), now_us)[0]
