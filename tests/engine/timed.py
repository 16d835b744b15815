"""A clock that moves only when it is told to, and a model that says how long it takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

from holdfast.core.deltas import Delta, Finish, UsageDelta
from holdfast.core.usage import Price, Usage
from holdfast.engine.clock import SystemClock
from holdfast.llm.base import Model, ModelInfo, ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog

SECOND = 1_000_000_000
BEFORE_CONTENT, BEFORE_FINISH = 10, 20
PRICE = Price(input=1_000.0, output=2_000.0, cached_input=100.0)


class HandClock(SystemClock):
    """The time of day and the time that passes count from different points, as those of a machine do."""

    def __init__(self) -> None:
        self._wall_ns = 1_790_000_000 * SECOND
        self._passed_ns = 7 * SECOND

    def now_us(self) -> int:
        return self._wall_ns // 1_000

    def now_ns(self) -> int:
        return self._passed_ns

    def advance(self, seconds: float) -> None:
        self._wall_ns += round(seconds * SECOND)
        self._passed_ns += round(seconds * SECOND)

    def set_wall(self, seconds: float) -> None:
        """The time of day is corrected by so much; no time passes."""
        self._wall_ns += round(seconds * SECOND)


class TimedCatalog(ModelCatalog):
    """The offline model behind a slow line: so long until its first content, so long until it has finished."""

    def __init__(self, clock: HandClock, price: Price | None = PRICE) -> None:
        super().__init__()
        self._clock = clock
        self._price = price
        self.counts_first = True
        self.before_finish: Callable[[], Awaitable[None]] | None = None

    async def find(self, handle: str) -> ModelInfo:
        endpoint = "http://model.example"
        return msgspec.structs.replace(await super().find(handle), price=self._price, endpoint=endpoint)

    def open(self, info: ModelInfo) -> Model:
        return _Timed(super().open(info), self._clock, self)


class _Timed:
    def __init__(self, inner: Model, clock: HandClock, catalog: TimedCatalog) -> None:
        self._inner = inner
        self._clock = clock
        self._catalog = catalog

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        if self._catalog.counts_first:
            yield UsageDelta(Usage(1))  # as vendors do that count the prompt first; no content yet
        self._clock.advance(BEFORE_CONTENT)
        async for delta in self._inner.stream(request):
            if isinstance(delta, Finish):
                self._clock.advance(BEFORE_FINISH)
                if self._catalog.before_finish is not None:
                    await self._catalog.before_finish()
            yield delta

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return self._inner.payload(request)
