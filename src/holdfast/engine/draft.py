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
from holdfast.core.transitions import Change, Replied, Undone, WindowCut
from holdfast.engine.archival import PassageWrite


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

    @property
    def undone(self) -> Undone:
        """What is left of it when it is thrown away."""
        return Undone(self.reply, self.given_up, self.returns)

    def add(self, change: Change) -> None:
        self.events.extend(change.events)
        self.rows.extend(change.rows)
        self.positions.update(change.positions)
        self.frames.extend(change.frames)
        for row in change.changed:
            self._change_row(row)
        if change.cut is not None:
            self.cut = change.cut
        if change.hold is not None:
            self.hold = change.hold

    def _change_row(self, row: Message) -> None:
        for index, new in enumerate(self.rows):
            if new.id == row.id:  # not stored yet
                self.rows[index] = row
                return
        self.changed[row.id] = row
