"""Shows a sleeptime agent what was said since it last looked: a task, whose result is a run of that agent.

Which turns it is shown, and the id of the run, are fixed by the turn that made it due. So the task can be begun again
after a crash: a run that was accepted is found by its id, and is not accepted twice.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from holdfast import ids
from holdfast.actions.agents.sleeptime import share_blocks
from holdfast.actions.messages.send import SendMessage, SendRequest
from holdfast.core.messages import Message
from holdfast.core.model_history import BYTES_PER_TOKEN
from holdfast.core.sleeptime import RUN_TYPE, TASK, assignment
from holdfast.engine.tasks import HeldTask, TryAgain
from holdfast.errors import Busy
from holdfast.store import agents, groups, messages, tasks
from holdfast.store.groups import WaitingTurns
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.requests import LettaRequest, MessageCreate, input_of

_EVERY: Final = Page(limit=None, order="asc")
_SHARE_PERCENT: Final = 50  # of the agent's window, that a transcript may fill
_BUSY_AGAIN_S: Final = 1.0

log = logging.getLogger(__name__)


class _Handover(msgspec.Struct, frozen=True):
    turns: WaitingTurns
    text: str | None  # None: there is nothing to show
    last_message_id: str | None


class ShowTurns:
    """The kind of task that is called `sleeptime`; its subject is the sleeptime agent."""

    def __init__(self, database: Database, send: SendMessage) -> None:
        self._database = database
        self._send = send

    async def perform(self, held: HeldTask) -> None:
        agent_id = held.task.subject_id
        handover = await held.write(lambda tx: _prepare(tx, agent_id))
        if handover is None:
            return
        if handover.text is not None:
            try:
                await self._send(_request(agent_id, handover.turns, handover.text))
            except Busy as busy:
                raise TryAgain(f"the agent {agent_id} is busy", _BUSY_AGAIN_S, counts=False) from busy
        await held.finish(lambda tx: _shown(tx, agent_id, handover))

    async def give_up(self, held: HeldTask, error: Exception) -> None:
        """The agent waits for a decision, say, or its model is gone. The turn of the main agent is not affected."""
        agent_id = held.task.subject_id
        log.warning("sleeptime agent %s could not be set to work: %s", agent_id, error)
        await held.finish(lambda tx: _postpone(tx, agent_id))


async def _prepare(tx: Transaction, agent_id: str) -> _Handover | None:
    turns = await groups.waiting_turns(tx, agent_id)
    group = None if turns is None else await groups.find(tx, turns.group_id)
    if turns is None or group is None or group.manager_agent_id is None:
        return None
    await share_blocks(tx, group.manager_agent_id)  # a tool of the agent's may have made new ones
    rows = [row for said_id in turns.said_ids for row in await _said(tx, said_id)]
    agent = await agents.get(tx, agent_id)
    limit = agent.model.context_window * BYTES_PER_TOKEN * _SHARE_PERCENT // 100
    return _Handover(turns, assignment(rows, limit), rows[-1].id if rows else None)


async def _said(tx: Transaction, said_id: str) -> list[Message]:
    """By a run, or in a message that was captured."""
    if ids.is_id("message", said_id):
        return await messages.find_many(tx, (said_id,))
    return await messages.list_of_run(tx, said_id, _EVERY)


async def _shown(tx: Transaction, agent_id: str, handover: _Handover) -> None:
    await groups.forget_shown(tx, agent_id, handover.turns, handover.last_message_id)
    if await groups.waiting_turns(tx, agent_id) is not None:
        await tasks.add(tx, TASK, agent_id)


async def _postpone(tx: Transaction, agent_id: str) -> None:
    turns = await groups.waiting_turns(tx, agent_id)
    if turns is not None:
        await groups.postpone_turns(tx, agent_id, turns)
        if await groups.waiting_turns(tx, agent_id) is not None:
            await tasks.add(tx, TASK, agent_id)


def _request(agent_id: str, turns: WaitingTurns, text: str) -> SendRequest:
    message = MessageCreate(role="user", content=text, group_id=turns.group_id)
    request = LettaRequest(messages=[message])
    parsed = msgspec.structs.replace(input_of(request), request_key=turns.shown_by_run_id)
    return SendRequest(
        thread_id=agent_id,
        parsed=parsed,
        request=request,
        run_type=RUN_TYPE,
        request_config=request.request_config(),
        background=True,
        run_id=turns.shown_by_run_id,
    )
