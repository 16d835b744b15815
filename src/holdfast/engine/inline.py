"""Built-in tools: they run here, and their effects commit together with their returns."""

from __future__ import annotations

from holdfast.core.messages import ToolReturn
from holdfast.core.records import Block
from holdfast.core.run import OpenCall
from holdfast.engine.clock import Clock
from holdfast.engine.draft import MemoryWrite
from holdfast.engine.loading import blocks_in_view
from holdfast.engine.session import Session
from holdfast.store.transaction import Database


class InlineTools:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def current_blocks(self, session: Session) -> list[Block]:
        return await self._database.read(lambda tx: blocks_in_view(tx, session.thread))

    async def call(self, session: Session, call: OpenCall) -> tuple[ToolReturn, MemoryWrite | None]:
        raise NotImplementedError
