"""What a run is driven from: its state, its window, its step, where its frames ended.

`load_run` reads it from the database, for a run of which nothing but the id is known. An acceptance hands over the same
from what it has just read and written, so that its run need not be read again (decision 23). What it would write or
read again with every message is kept: the part of the spec that runs share is stored once, apart from the first event
(decision 19), and the window of the last turn stays in memory.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

import msgspec

from holdfast.core.events import AnyEvent, RunStarted
from holdfast.core.messages import Message, Text
from holdfast.core.model_history import HistoryBuilder
from holdfast.core.records import Agent, Block, Run, Step, Thread
from holdfast.core.run import RunState, replay
from holdfast.core.spec import RunSpec
from holdfast.engine.attached_files import directories_in_view
from holdfast.errors import BugError
from holdfast.store import blocks, frames, journal, passages, steps, threads
from holdfast.store.specs import SharedSpec
from holdfast.store.transaction import Transaction

_event = msgspec.json.Decoder(AnyEvent)
_encode = msgspec.json.Encoder().encode
# More frames than an owner can have shown before they were stored: its successor gives none of their numbers again
# (decision 13).
SKIPPED_AFTER_DEATH: Final = 2**20
# What runs of agents with the same tools and model have in common.
SHARED: Final = ("model", "tools", "rules", "compaction", "skills")
_OWN: Final = tuple(name for name in RunSpec.__struct_fields__ if name not in SHARED)
_MOST_AGENTS: Final = 500  # whose shared parts are kept in memory
MOST_MESSAGES: Final = 20_000  # of the windows that are
MOST_BYTES: Final = 64 * 1024 * 1024
_MESSAGE_BYTES: Final = 1_000  # of a message beside its text, about


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


def numbers_begin_after(last_seq: int, lease: int, *, owner_died: bool) -> int:
    """After which number the frames of a new owner begin. One that handed the run over had stored all it had shown.
    One that died may have shown more, and so may one before it: each lease has a range of its own (decision 13)."""
    if not owner_died:
        return last_seq
    skipped = max(last_seq // SKIPPED_AFTER_DEATH + 1, lease - 1)
    return skipped * SKIPPED_AFTER_DEATH + last_seq % SKIPPED_AFTER_DEATH


async def load_state(tx: Transaction, run_id: str) -> tuple[RunState, int]:
    """The state of a run and how many events it has."""
    events = [_event.decode(text) for text in await journal.load(tx, run_id)]
    return replay(events), len(events)


async def prompt_counts(tx: Transaction, agent_id: str, thread_id: str) -> tuple[int, int]:
    """What a system message tells of: messages of the thread, and passages in the agent's archive."""
    return await threads.count_messages(tx, thread_id), await passages.count_of_agent(tx, agent_id)


async def blocks_in_view(tx: Transaction, thread: Thread) -> list[Block]:
    """The agent's blocks, with a conversation's private copies in place of those of the same label."""
    shared = await blocks.of_agent(tx, thread.agent_id)
    if not thread.isolated_block_ids:
        return shared
    private = {block.label: block for block in (await blocks.find_many(tx, thread.isolated_block_ids)).values()}
    return [private.get(block.label, block) for block in shared]


def shared_part(spec: RunSpec) -> SharedSpec:
    """What is large and changes seldom: agents with the same tools and model share it, in all their conversations.

    Objects keep the order of their keys, and the hash depends on it: a model is shown a schema as it was written.
    """
    text = _encode({name: getattr(spec, name) for name in SHARED})
    return SharedSpec(hashlib.sha256(text).hexdigest(), text.decode())


class SharedParts:
    """The shared part of each agent's newest spec: encoding and hashing it anew with every message costs more than to
    compare. A tool that was edited has another version, so equal ones are equal to the letter."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[RunSpec, SharedSpec]] = {}

    def of(self, spec: RunSpec) -> SharedSpec:
        known = self._newest.get(spec.agent_id)
        if known is not None and _shares(spec, known[0]):
            return known[1]
        if len(self._newest) >= _MOST_AGENTS:
            self._newest.clear()
        shared = shared_part(spec)
        self._newest[spec.agent_id] = spec, shared
        return shared


def _shares(one: RunSpec, other: RunSpec) -> bool:
    """As `SHARED` says, spelt out: it is asked with every message."""
    return (
        one.tools == other.tools
        and one.model == other.model
        and one.rules == other.rules
        and one.compaction == other.compaction
        and one.skills == other.skills
    )


def own_part(started: RunStarted) -> str:
    """The event without what is shared: ids, and what a request may set differently with every message."""
    own = {name: getattr(started.spec, name) for name in _OWN}
    return _encode({"event": "run_started", **msgspec.structs.asdict(started), "spec": own}).decode()


class _Kept(msgspec.Struct, frozen=True):
    end: int
    window: list[Message]
    history_builder: HistoryBuilder
    bytes: int


class Windows:
    """Windows that runs of this process have left behind, so that the next turn need not read and decode them again.

    One is good only while its thread stands where it stood: whoever changes a window, in whichever process, moves the
    end of its history (see store/threads.py). Bounded by the number of messages and by what they weigh: one message may
    hold an image of many megabytes.
    """

    def __init__(self, most_messages: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_messages
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._messages = 0
        self._bytes = 0

    def keep(self, thread_id: str, end: int, window: list[Message], history_builder: HistoryBuilder) -> None:
        """Those that were not used for longest make room."""
        before = self._kept.get(thread_id)
        weight = _weight(window, before)
        self._forget(thread_id)
        self._kept[thread_id] = _Kept(end, window, history_builder, weight)
        self._messages += len(window)
        self._bytes += weight
        while self._messages > self._most or self._bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def of(self, thread_id: str, end: int) -> list[Message] | None:
        kept = self._kept.get(thread_id)
        if kept is None or kept.end != end:
            return None
        self._kept.move_to_end(thread_id)
        return kept.window

    def history_builder_of(self, thread_id: str) -> HistoryBuilder:
        """It looks itself whether the thread's history goes on where it ended."""
        kept = self._kept.get(thread_id)
        return HistoryBuilder() if kept is None else kept.history_builder

    def _forget(self, thread_id: str) -> None:
        known = self._kept.pop(thread_id, None)
        if known is not None:
            self._messages -= len(known.window)
            self._bytes -= known.bytes


def _weight(window: list[Message], before: _Kept | None) -> int:
    """Estimated bytes. Usually a window has only grown since: then the messages that were weighed are not again."""
    if before is not None and 0 < len(before.window) <= len(window):
        known = len(before.window)
        if window[known - 1] is before.window[-1] and window[0] is before.window[0]:
            return before.bytes + sum(_bytes_of(message) for message in window[known:])
    return sum(_bytes_of(message) for message in window)


def _bytes_of(message: Message) -> int:
    parts = message.parts
    if len(parts) == 1 and isinstance(parts[0], Text):  # as most are, and quickly told
        return _MESSAGE_BYTES + len(parts[0].text)
    return _MESSAGE_BYTES + len(_encode(parts))
