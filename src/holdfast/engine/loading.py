"""Rebuilds a run from what is stored: fold the journal, read the window, find where its frames ended."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.core.events import AnyEvent
from holdfast.core.frames import CallFrame, HiddenReasoningFrame, ReasoningFrame, TextFrame
from holdfast.core.messages import Message
from holdfast.core.records import Agent, Block, Run, Step, Thread
from holdfast.core.run import RunState, replay
from holdfast.engine.clock import Clock
from holdfast.engine.session import Session
from holdfast.engine.streams import Numbered, Streams
from holdfast.errors import BugError
from holdfast.store import agents, blocks, frames, journal, messages, steps, threads
from holdfast.store.transaction import Database, Transaction

_event = msgspec.json.Decoder(AnyEvent)
# More frames than an owner can have shown before they were stored: its successor uses none of their numbers
# (decision 13).
SKIPPED_AFTER_DEATH: Final = 2**20


class Stored(msgspec.Struct, frozen=True):
    agent: Agent
    thread: Thread
    events: list[AnyEvent]
    last_event_us: int
    window: list[Message]
    blocks: list[Block]
    system_digest: str | None
    step: Step | None
    last_seq: int

    @property
    def state(self) -> RunState:
        return replay(self.events)


async def load_state(tx: Transaction, run_id: str) -> tuple[RunState, int]:
    """The state of a run and how many events it has."""
    events = [_event.decode(text) for text in await journal.load(tx, run_id)]
    return replay(events), len(events)


async def read(tx: Transaction, run: Run) -> Stored:
    thread = await threads.get(tx, run.thread_id)
    latest = await steps.list_of_run(tx, run.id)
    journalled = await journal.load_timed(tx, run.id)
    return Stored(
        agent=await agents.get(tx, run.agent_id),
        thread=thread,
        events=[_event.decode(text) for _, text in journalled],
        last_event_us=journalled[-1][0] if journalled else 0,
        window=await threads.window(tx, run.thread_id),
        blocks=await blocks_in_view(tx, thread),
        system_digest=await threads.system_digest(tx, run.thread_id),
        step=max(latest, key=lambda step: step.number, default=None),
        last_seq=await frames.last_seq(tx, run.id) if run.background else 0,
    )


async def blocks_in_view(tx: Transaction, thread: Thread) -> list[Block]:
    """The agent's blocks, with a conversation's private copies in place of those of the same label."""
    shared = await blocks.of_agent(tx, thread.agent_id)
    if not thread.isolated_block_ids:
        return shared
    private = {block.label: block for block in (await blocks.find_many(tx, thread.isolated_block_ids)).values()}
    return [private.get(block.label, block) for block in shared]


async def reopen(database: Database, streams: Streams, clock: Clock, run: Run, *, owner_died: bool) -> Session:
    """A session for a run that this worker has just claimed. Fragments of a reply that never came are disowned.

    An owner that handed the run over had stored all it had shown; one that died may have shown more.
    """
    stored = await database.read_long(lambda tx: read(tx, run))
    if not stored.events:
        raise BugError(f"run {run.id} has no journal")
    first = stored.last_seq + (SKIPPED_AFTER_DEATH if owner_died else 0)
    stream = streams.open(run.id, first, run.lease, background=run.background)
    session = Session(
        run=run,
        agent=stored.agent,
        thread=stored.thread,
        state=stored.state,
        window=stored.window,
        blocks=stored.blocks,
        system_digest=stored.system_digest,
        journalled=len(stored.events),
        stream=stream,
        clock=clock,
        step=stored.step,
        waits_since_us=stored.last_event_us,  # of a run that waits for another try, the last event is that one failed
    )
    if stored.last_seq:
        told = await streams.replay(run.id, 0)
        told_of = _fragment_ids(told)
        known = {row.id for row in await database.read(lambda tx: messages.find_many(tx, list(told_of)))}
        session.mark_abandoned(tuple(message_id for message_id in told_of if message_id not in known))
    return session


def _fragment_ids(told: list[Numbered]) -> dict[str, None]:
    fragments = (TextFrame, ReasoningFrame, HiddenReasoningFrame, CallFrame)
    return {frame.message_id: None for _, frame in told if isinstance(frame, fragments)}
