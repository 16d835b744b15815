"""What a run is driven from: its state, its window, its step, where its frames ended.

`load_run` reads it from the database, for a run of which nothing but the id is known. An acceptance hands over the same
from what it has just read and written, so that its run need not be read again (decision 23).
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.core.events import AnyEvent
from holdfast.core.messages import Message
from holdfast.core.records import Agent, Block, Run, Step, Thread
from holdfast.core.run import RunState, replay
from holdfast.engine.file_views import directories_in_view
from holdfast.errors import BugError
from holdfast.store import blocks, frames, journal, steps, threads
from holdfast.store.transaction import Transaction

_event = msgspec.json.Decoder(AnyEvent)
# More frames than an owner can have shown before they were stored: its successor gives none of their numbers again
# (decision 13).
SKIPPED_AFTER_DEATH: Final = 2**20


class LoadedRun(msgspec.Struct, frozen=True, kw_only=True):
    run: Run
    agent: Agent
    thread: Thread
    state: RunState
    journalled: int  # events
    window: list[Message]
    blocks: list[Block]
    directories: str  # the section of the system prompt that shows the agent's files
    system_digest: str | None
    next_position: int  # of the thread's history
    step: Step | None = None  # the newest
    last_event_us: int = 0
    last_seq: int = 0  # of its stored frames


async def load_run(tx: Transaction, run: Run) -> LoadedRun:
    head = await threads.head(tx, run.thread_id)
    latest = await steps.list_of_run(tx, run.id)
    journalled = await journal.load_timed(tx, run.id)
    if not journalled:
        raise BugError(f"run {run.id} has no journal")
    return LoadedRun(
        run=run,
        agent=head.agent,
        thread=head.thread,
        state=replay(_event.decode(text) for _, text in journalled),
        journalled=len(journalled),
        window=await threads.window(tx, run.thread_id),
        blocks=await blocks_in_view(tx, head.thread),
        directories=await directories_in_view(tx, head.agent) if head.has_folders else "",
        system_digest=head.system_digest,
        next_position=head.end,
        step=max(latest, key=lambda step: step.number, default=None),
        last_event_us=journalled[-1][0],
        last_seq=await frames.last_seq(tx, run.id) if run.background and run.lease > 1 else 0,  # 1: nobody drove it yet
    )


async def load_state(tx: Transaction, run_id: str) -> tuple[RunState, int]:
    """The state of a run and how many events it has."""
    events = [_event.decode(text) for text in await journal.load(tx, run_id)]
    return replay(events), len(events)


async def blocks_in_view(tx: Transaction, thread: Thread) -> list[Block]:
    """The agent's blocks, with a conversation's private copies in place of those of the same label."""
    shared = await blocks.of_agent(tx, thread.agent_id)
    if not thread.isolated_block_ids:
        return shared
    private = {block.label: block for block in (await blocks.find_many(tx, thread.isolated_block_ids)).values()}
    return [private.get(block.label, block) for block in shared]
