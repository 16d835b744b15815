"""Tells whoever asked that a run is over: a POST to the run's callback URL, from an outbox, beside the runs themselves.

A run's last checkpoint makes its delivery due; this takes what is due, tries it, and records how it went. A lost
connection or a 5xx is tried again a few times. Nothing here can change or delay a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.core.records import Run
from holdfast.core.spec import speaking_in
from holdfast.engine.clock import Clock
from holdfast.errors import Invalid
from holdfast.store import messages, runs
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, DatabaseError, Transaction
from holdfast.wire.messages import filter_types, to_wire
from holdfast.wire.responses import stop_reason_view, usage_statistics
from holdfast.wire.times import timestamp

TIMEOUT_S: Final = 5.0
RETRY_AFTER_S: Final = (2.0, 15.0, 60.0, 300.0)
_POLL_S: Final = 5.0
_AT_ONCE: Final = 16
_ROWS: Final = 100
_HOLD_US: Final = int(4 * TIMEOUT_S * 1_000_000)
_ERROR_CHARS: Final = 500

log = logging.getLogger(__name__)


class _Tried(msgspec.Struct, frozen=True):
    status_code: int | None = None
    error: str | None = None
    again: bool = False  # whether another try may help


class Callbacks:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        allowed_hosts: Sequence[str],
        retry_after_s: Sequence[float] = RETRY_AFTER_S,
    ) -> None:
        self._database = database
        self._clock = clock
        self._allowed_hosts = allowed_hosts
        self._retry_after_s = retry_after_s
        self._woken = asyncio.Event()

    def wake(self, ended: Run) -> None:
        if ended.callback_url:
            self._woken.set()

    async def run_forever(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self.deliver_due()
                pause_s = await self._pause_s()
            except* DatabaseError as errors:  # its disk is full, say: the next time it may be writable
                log.error("callbacks are put off: %s", errors.exceptions)
                pause_s = _POLL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()

    async def deliver_due(self) -> None:
        """Everything that is due now, a few at a time."""
        while await self._next_due_us() <= self._clock.now_us():
            async with asyncio.TaskGroup() as group:
                for run, attempt in await self._take():
                    group.create_task(self._deliver(run, attempt))

    async def _take(self) -> list[tuple[Run, int]]:
        now_us = self._clock.now_us()
        return await self._database.write(lambda tx: runs.callbacks_due(tx, now_us, _AT_ONCE, _HOLD_US))

    async def _pause_s(self) -> float:
        """Until the next retry is due. The poll is for ends that other processes wrote, which wake nobody here."""
        wait_s = (await self._next_due_us() - self._clock.now_us()) / 1_000_000
        return min(_POLL_S, max(0.0, wait_s))

    async def _next_due_us(self) -> int:
        due_us = await self._database.read(runs.next_callback_us)
        return due_us if due_us is not None else self._clock.now_us() + int(_POLL_S * 1_000_000)

    async def _deliver(self, run: Run, attempt: int) -> None:
        payload = await self._database.read(lambda tx: callback_payload(tx, run))
        tried = await self._post(run.callback_url or "", msgspec.json.encode(payload))
        now_us = self._clock.now_us()
        again_us = None
        if tried.again and attempt <= len(self._retry_after_s):
            again_us = now_us + int(self._retry_after_s[attempt - 1] * 1_000_000)
        if tried.error or tried.again:
            log.warning("the callback of run %s failed: %s", run.id, tried.error or f"status {tried.status_code}")
        await self._database.write(
            lambda tx: runs.record_callback_attempt(
                tx, run.id, sent_us=now_us, status_code=tried.status_code, error=tried.error, again_us=again_us
            )
        )

    async def _post(self, url: str, body: bytes) -> _Tried:
        from holdfast import outgoing_http  # noqa: PLC0415 - aiohttp is slow to import

        try:
            status = await outgoing_http.post_json(url, body, self._allowed_hosts, TIMEOUT_S)
        except Invalid as refused:
            return _Tried(error=refused.message[:_ERROR_CHARS])
        except outgoing_http.Unreachable as unreachable:
            return _Tried(error=str(unreachable)[:_ERROR_CHARS], again=True)
        return _Tried(status, again=status >= 500)


async def callback_payload(tx: Transaction, run: Run) -> dict[str, Any]:
    rows = await messages.list_of_run(tx, run.id, Page(limit=_ROWS, order="asc"))
    usage, step_count = await runs.usage(tx, run.id)
    speaking = speaking_in(run.request_config)
    shown = [wire for row in rows for wire in to_wire(row, speaking=speaking)]
    result = {
        "messages": filter_types(shown, run.request_config.get("include_return_message_types")),
        "stop_reason": stop_reason_view(run.stop_reason or "error"),
        "usage": usage_statistics(usage, step_count=step_count),
    }
    return {
        "run_id": run.id,
        "status": run.status,
        "completed_at": None if run.completed_us is None else timestamp(run.completed_us).removesuffix("Z"),
        "metadata": run.metadata | {"result": result},
    }
