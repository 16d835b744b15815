"""Keeps a turn that a program had with a model of its own, as if the agent had been spoken to.

It joins the agent's history, is listed and found, and counts as a turn for whoever looks after the agent's memory. It
does not join the context window: so it costs no tokens, and neither a run nor a pending approval is in its way.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import msgspec

from holdfast import ids
from holdfast.core.messages import Message, Role, Text
from holdfast.engine.checkpoint import turn_captured
from holdfast.engine.tasks import TaskWorker
from holdfast.store import agents, messages, threads
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.capture import CaptureRequest


class Captured(msgspec.Struct, frozen=True):
    messages: int
    run_ids: tuple[str, ...] = ()  # of sleeptime agents; these runs do not exist yet


async def capture_turn(
    database: Database, tasks: TaskWorker, agent_id: str, request: CaptureRequest, now_us: int
) -> Captured:
    rows = list(_rows(request, now_us))
    captured = await database.write(lambda tx: _store(tx, agent_id, rows))
    if captured.run_ids:
        tasks.wake()
    return captured


async def _store(tx: Transaction, agent_id: str, rows: list[Message]) -> Captured:
    await agents.require(tx, agent_id)
    if not rows:
        return Captured(0)
    first = await threads.reserve(tx, agent_id, len(rows))
    await messages.insert_many(tx, agent_id, rows)
    await threads.place_outside(tx, agent_id, [(place, row.id) for place, row in enumerate(rows, first)])
    return Captured(len(rows), await turn_captured(tx, agent_id, [row.id for row in rows]))


def _rows(request: CaptureRequest, now_us: int) -> Iterator[Message]:
    for text in request.asked():
        yield msgspec.structs.replace(_row("user", text, now_us), otid=str(uuid.uuid4()))
    if text := request.answered():
        yield msgspec.structs.replace(_row("assistant", text, now_us), model=request.handle)


def _row(role: Role, text: str, now_us: int) -> Message:
    return Message(id=ids.new("message"), role=role, parts=(Text(text),), created_us=now_us)
