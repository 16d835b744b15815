"""What the next checkpoint will write. Gathered while a run moves through instant decisions, written in one go."""

from __future__ import annotations

import msgspec

from holdfast.core.deltas import Reply
from holdfast.core.events import AnyEvent
from holdfast.core.frames import Frame
from holdfast.core.hold import Hold
from holdfast.core.memory import MemoryChange
from holdfast.core.messages import Message, ToolReturn
from holdfast.core.records import Block, Step
from holdfast.core.run import CallModel
from holdfast.engine.archival import PassageWrite


class Attempt(msgspec.Struct, frozen=True):
    """One try at a model call. A try that is given up leaves its ids behind for good."""

    reply_id: str
    held_id: str


class Replied(msgspec.Struct, frozen=True):
    attempt: Attempt
    reply: Reply
    intent: CallModel


class WindowCut(msgspec.Struct, frozen=True):
    evicted_ids: tuple[str, ...]
    summary_id: str


class MemoryWrite(msgspec.Struct, frozen=True):
    """A memory tool's effect, guarded by the versions of the blocks that it was computed from."""

    change: MemoryChange
    versions: dict[str, int]  # by block id
    after: list[Block]  # all blocks in view, once it is applied


class Draft(msgspec.Struct):
    events: list[AnyEvent] = []
    rows: list[Message] = []
    positions: dict[str, int] = {}  # rows with a place of their own; all others are appended
    changed: dict[str, Message] = {}
    steps: dict[str, Step] = {}
    frames: list[Frame] = []
    memory: list[MemoryWrite | PassageWrite] = []
    cut: WindowCut | None = None
    hold: Hold | None = None
    system_digest: str | None = None
    ratio: tuple[str, float] | None = None  # of a model: what it has just taught us about its way of counting
    # What outlives a checkpoint that a cancel overtook: it happened, and cannot be made not to have happened.
    reply: Replied | None = None
    given_up: Reply | None = None  # what a failed try had said
    returns: list[ToolReturn] = []

    @property
    def has_facts(self) -> bool:
        return bool(self.events)
