"""Conversations: named histories of one agent, each with its own system message and window. List, read, begin, change,
fork and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.actions.queries import Page, ThreadFilter
from holdfast.actions.runs.cancel import CancelRuns
from holdfast.actions.threads.find import require_idle
from holdfast.core import dates, system_prompt
from holdfast.core.messages import Message, Text
from holdfast.core.records import Agent, Block, Thread
from holdfast.engine.attached_files import directories_in_view
from holdfast.engine.checkpoint import cancel_parked
from holdfast.engine.clock import Clock
from holdfast.engine.run_loading import blocks_in_view
from holdfast.errors import Invalid, NotFound
from holdfast.llm.base import Catalog
from holdfast.store import agents, blocks, holds, messages, threads
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.conversations import (
    ConversationView,
    CreateConversation,
    ForkConversation,
    UpdateConversation,
    checked_settings,
    conversation_view,
)
from holdfast.wire.times import microseconds

# Sent as null they become empty; the other fields of an update keep what they have.
_CLEARABLE: Final = ("summary", "description", "context_window_limit")


async def list_conversations(
    database: Database, filters: ThreadFilter, page: Page, order_by: threads.OrderBy
) -> list[ConversationView]:
    async def read(tx: Transaction) -> list[ConversationView]:
        found = await threads.list_threads(tx, filters, page, order_by)
        windows = await threads.windows_ids(tx, [thread.id for thread in found])
        return [conversation_view(thread, windows[thread.id]) for thread in found]

    return await database.read(read)


async def read_conversation(database: Database, thread_id: str) -> ConversationView:
    async def read(tx: Transaction) -> ConversationView:
        return conversation_view(await threads.get(tx, thread_id), await threads.window_ids(tx, thread_id))

    return await database.read(read)


async def create_conversation(
    database: Database, catalog: Catalog, agent_id: str, request: CreateConversation, now_us: int
) -> ConversationView:
    model = await _checked_model(catalog, request)
    return await database.write(lambda tx: _create(tx, agent_id, request, model, now_us))


async def update_conversation(
    database: Database, catalog: Catalog, thread_id: str, request: UpdateConversation, now_us: int
) -> ConversationView:
    model = await _checked_model(catalog, request)

    async def write(tx: Transaction) -> ConversationView:
        thread = await _update(tx, thread_id, request, model, now_us)
        return conversation_view(thread, await threads.window_ids(tx, thread_id))

    return await database.write(write)


async def fork_conversation(
    database: Database, source_id: str, request: ForkConversation, now_us: int
) -> ConversationView:
    """The rows are shared: both histories hold the same messages, and go on apart. Private blocks stay behind."""
    return await database.write(lambda tx: _fork(tx, source_id, request, now_us))


async def delete_conversation(database: Database, cancel: CancelRuns, thread_id: str, clock: Clock) -> None:
    """Its runs are stopped first. Private blocks go with it, and nothing of it stays pending."""
    await cancel.before_deleting_thread(thread_id)
    await database.write(lambda tx: _delete(tx, thread_id, clock))


async def _checked_model(catalog: Catalog, request: CreateConversation | UpdateConversation) -> dict[str, Any]:
    """What the request says of the model, once it is known that there is such a model. Only what was sent."""
    said: dict[str, Any] = {}
    if "model" in request.model_fields_set:
        said["model"] = (await catalog.find(request.model)).handle if request.model else None
    if "model_settings" in request.model_fields_set:
        said["model_settings"] = checked_settings(request.model_settings)
    return said


async def _create(
    tx: Transaction, agent_id: str, request: CreateConversation, model: dict[str, Any], now_us: int
) -> ConversationView:
    agent = await agents.get(tx, agent_id)
    private = await _private_copies(tx, agent_id, request.isolated_block_labels or (), now_us)
    await blocks.insert_many(tx, private)
    thread = Thread(
        id=ids.new("conv"),
        agent_id=agent_id,
        summary=request.summary,
        description=request.description,
        context_window_limit=request.context_window_limit,
        isolated_block_ids=tuple(block.id for block in private),
        hidden=request.hidden,
        created_us=now_us,
        updated_us=now_us,
        **model,
    )
    return conversation_view(thread, [await _begin(tx, agent, thread, now_us)])


async def _update(
    tx: Transaction, thread_id: str, request: UpdateConversation, model: dict[str, Any], now_us: int
) -> Thread:
    known = await threads.get(tx, thread_id)
    sent = request.model_fields_set
    changes: dict[str, Any] = {name: getattr(request, name) for name in _CLEARABLE if name in sent}
    if request.last_message_at is not None:
        changes["last_message_us"] = microseconds(request.last_message_at)
    if request.archived is not None and request.archived != (known.archived_us is not None):
        changes["archived_us"] = now_us if request.archived else None
    thread = msgspec.structs.replace(known, **changes, **model, updated_us=now_us)
    await threads.update(tx, thread)
    return thread


async def _fork(tx: Transaction, source_id: str, request: ForkConversation, now_us: int) -> ConversationView:
    source = await threads.get(tx, source_id)
    agent = await agents.get(tx, source.agent_id)
    shared = _forkable(await threads.window(tx, source_id), request.message_id)
    thread = Thread(
        id=ids.new("conv"),
        agent_id=source.agent_id,
        model=source.model,
        model_settings=source.model_settings,
        context_window_limit=source.context_window_limit,
        hidden=request.hidden,
        forked_from=source_id,
        created_us=now_us,
        updated_us=now_us,
    )
    system_id = await _begin(tx, agent, thread, now_us)
    if shared:
        await threads.fork(tx, source_id, thread.id, shared[-1])
    return conversation_view(thread, [system_id, *shared])


async def _delete(tx: Transaction, thread_id: str, clock: Clock) -> None:
    thread = await threads.get(tx, thread_id)
    await require_idle(tx, thread_id, "delete the conversation")
    hold = await holds.open_of_thread(tx, thread_id)
    if hold is not None:
        await cancel_parked(tx, clock, hold.run_id)
    await threads.soft_delete(tx, thread_id, clock.now_us())
    for block_id in await blocks.find_many(tx, thread.isolated_block_ids):
        await blocks.delete_block(tx, block_id)


async def _begin(tx: Transaction, agent: Agent, thread: Thread, now_us: int) -> str:
    """Stores the thread with its system message, compiled at once."""
    in_view, directories = await blocks_in_view(tx, thread), await directories_in_view(tx, agent)
    text = system_prompt.compile_system(
        agent,
        in_view,
        conversation_id=thread.id,
        recompiled_at_text=dates.local_time(now_us, agent.timezone),
        previous_messages=0,
        directories=directories,
    )
    system = Message(id=ids.new("message"), role="system", parts=(Text(text),), created_us=now_us)
    await messages.insert_many(tx, agent.id, [system])
    await threads.insert(tx, thread, [system.id], system_prompt.digest(agent, in_view, thread.id, directories))
    return system.id


async def _private_copies(tx: Transaction, agent_id: str, labels: Sequence[str], now_us: int) -> list[Block]:
    if not labels:
        return []
    attached = {block.label: block for block in await blocks.of_agent(tx, agent_id)}
    if missing := [label for label in labels if label not in attached]:
        known = ", ".join(attached) or "none"
        raise Invalid(f"The agent has no block with the label {', '.join(missing)}; it has: {known}.")
    return [
        msgspec.structs.replace(
            attached[label], id=ids.new("block"), version=1, created_us=now_us + place, updated_us=now_us + place
        )
        for place, label in enumerate(dict.fromkeys(labels))
    ]


def _forkable(window: Sequence[Message], until: str | None) -> list[str]:
    """The messages a fork takes along: up to `until`, and never a call without its return, which would not come."""
    rows = list(window)
    if until is not None:
        place = next((index for index, row in enumerate(rows) if row.id == until), None)
        if place is None:
            raise NotFound(f"Message {until} not found in the context of this conversation")
        rows = rows[: place + 1]
    returned = {part.call_id for row in rows for part in row.returns}
    while (last := _last_calling(rows)) is not None and not {call.id for call in rows[last].calls} <= returned:
        rows = rows[:last]
    return [row.id for row in rows[1:]]  # the first is the system message, and every history has its own


def _last_calling(rows: Sequence[Message]) -> int | None:
    return next((index for index in range(len(rows) - 1, -1, -1) if rows[index].calls), None)
