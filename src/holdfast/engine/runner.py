"""The one loop: ask the plan, perform it, checkpoint. Blocking, streaming and background runs all come through here.

Instant decisions (parking, settling, starting tools) gather in the draft and share a checkpoint with the fact that led
to them. A checkpoint is made before anything slow begins and when the run stops; nothing can interrupt one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.core import prompt
from holdfast.core.deltas import Reply
from holdfast.core.frames import CompactionFrame
from holdfast.core.run import CallModel, CallTools, Compact, Done, OpenCall, Park, Settle, Wait, plan
from holdfast.engine import requests
from holdfast.engine.acting import Executor, Report, next_batch, running
from holdfast.engine.checkpoint import BlockChanged, CancelPending, checkpoint
from holdfast.engine.clock import Clock
from holdfast.engine.compacting import Compactor, Wanted
from holdfast.engine.failures import classify
from holdfast.engine.inline import InlineTools
from holdfast.engine.scope import CancelScope, Interrupted
from holdfast.engine.session import Session
from holdfast.engine.thinking import ModelCall
from holdfast.errors import ModelError, RunInterrupted
from holdfast.llm.base import Catalog
from holdfast.store import threads
from holdfast.store.transaction import Database

log = logging.getLogger(__name__)


class Runner:
    def __init__(
        self, database: Database, catalog: Catalog, executor: Executor, inline: InlineTools, clock: Clock
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._executor = executor
        self._inline = inline
        self._compactor = Compactor(catalog, clock)
        self._clock = clock

    async def drive(self, session: Session, scope: CancelScope) -> None:
        """Returns when the run is over or waits for a decision. Raises RunInterrupted when it is to be handed over."""
        while not await self._advance(session, scope):
            pass

    async def _advance(self, session: Session, scope: CancelScope) -> bool:
        """One intention. A user's cancel, and a failure of ours, become facts like any other."""
        try:
            return await self._perform(session, scope)
        except CancelPending:
            self._cancel(session, scope, None)
        except Interrupted as interrupted:
            if interrupted.reason == "shutdown" and session.draft.returns:
                await checkpoint(self._database, session)  # they happened; whoever takes the run over must know
            if interrupted.reason != "user":
                raise
            self._cancel(session, scope, None)
        except BlockChanged:
            session.forget_memory(await self._inline.current_blocks(session))
        except RunInterrupted:
            raise
        except Exception as exception:
            # The worker's per-run boundary: recorded on the run, and loud in the log.
            log.exception("run %s failed", session.run.id)
            if session.failing:
                raise
            session.failed(classify(exception, session.run.id))
        return False

    async def _perform(self, session: Session, scope: CancelScope) -> bool:
        match plan(session.state):
            case CallModel() as intent:
                await self._think(session, intent, scope)
            case CallTools(calls):
                await self._act(session, calls, scope)
            case Settle(calls):
                session.settle(calls)
            case Compact(trigger):
                await self._compact(session, trigger, scope)
            case Park():
                session.park()
            case Wait():
                session.end_step("requires_approval")
                await checkpoint(self._database, session)
                return True
            case Done(stop_reason):
                session.end_step(stop_reason)
                await checkpoint(self._database, session)
                return True
        return False

    async def _think(self, session: Session, intent: CallModel, scope: CancelScope) -> None:
        scope.check()
        info = await self._catalog.find(session.spec.model.handle)
        if session.step is None or session.step.number != intent.number:
            session.begin_step(intent, info.provider_name, info.endpoint)
        if session.draft.has_facts or session.run.status == "created":
            await checkpoint(self._database, session)
        await self._refresh_system(session)
        request = requests.build(session.spec, intent, session.window, session.run.id)
        call = ModelCall(session, self._catalog.open(info), request, intent)
        started = self._clock.now_ns()
        try:
            reply = await scope.run(call.complete())
        except Interrupted as interrupted:
            if interrupted.reason != "user":
                raise
            self._cancel(session, scope, call.so_far)
        except ModelError as error:
            session.timed_model(started)
            session.model_failed(classify(error, session.run.id))
        else:
            session.timed_model(started)
            session.replied(call.attempt, reply, intent)

    async def _act(self, session: Session, calls: Sequence[OpenCall], scope: CancelScope) -> None:
        scope.check()
        inline = [call for call in calls if self._is_inline(session, call)]
        for call in inline:
            answer, write = await self._inline.call(session, call)
            session.memory_returned(call, answer, write)
        outside = next_batch(session.spec, [call for call in calls if call not in inline])
        if outside:
            session.tools_started(outside)
            await checkpoint(self._database, session)
            await self._run_tools(session, outside, scope)

    async def _run_tools(self, session: Session, calls: Sequence[OpenCall], scope: CancelScope) -> None:
        async with running(self._executor, session.spec, calls, self._clock) as batch:
            while True:
                try:
                    reports = await scope.run(batch.next())
                except Interrupted:
                    await batch.stop()
                    self._take(session, batch.rest())
                    raise
                if not reports:
                    return
                self._take(session, reports)
                if any(call.status == "started" for call in session.state.open_calls):
                    await checkpoint(self._database, session)  # else the next one's start, or the next step, brings it

    @staticmethod
    def _take(session: Session, reports: Sequence[Report]) -> None:
        if reports:
            session.returned([report.answer for report in reports], tool_ns=max(report.took_ns for report in reports))

    async def _compact(self, session: Session, trigger: str, scope: CancelScope) -> None:
        scope.check()
        if session.draft.has_facts:
            await checkpoint(self._database, session)
        wanted = self._wanted(session, trigger)
        if session.spec.include_compaction:
            session.stream.publish(self._announcement(session, trigger))
        try:
            made = await scope.run(self._compactor.compact(wanted))
        except ModelError as error:
            log.warning("run %s could not compact its context: %s", session.run.id, error)
            session.compaction_failed(classify(error, session.run.id))
        else:
            session.compacted(made.summary, made.evicted, made.tokens_after)

    def _wanted(self, session: Session, trigger: str) -> Wanted:
        spec = session.spec
        return Wanted(
            window=session.window,
            settings=spec.compaction,
            model=spec.model,
            timezone=spec.timezone,
            trigger=trigger,
            shown=spec.include_compaction,
            run_id=session.run.id,
            step_id=session.step_id(),
            tokens_before=session.state.context_tokens,
        )

    def _announcement(self, session: Session, trigger: str) -> CompactionFrame:
        window = session.spec.model.context_window
        now_us = self._clock.now_us()
        return CompactionFrame(
            session.event_id(), session.step_id(), now_us, trigger, session.state.context_tokens, window
        )

    async def _refresh_system(self, session: Session) -> None:
        """The stored system message follows the memory; its bytes stay the same while nothing it shows has changed."""
        if not session.is_fresh:
            session.blocks = await self._inline.current_blocks(session)
        digest = prompt.digest(session.agent, session.blocks, session.run.conversation_id)
        if digest == session.system_digest:
            return
        stored = await self._database.read(lambda tx: threads.count_messages(tx, session.run.thread_id))
        message = requests.system_message(
            session.window[0],
            session.agent,
            session.blocks,
            conversation_id=session.run.conversation_id,
            hidden=max(0, stored - len(session.window)),
            now_us=self._clock.now_us(),
        )
        session.replace_system(message, digest)

    @staticmethod
    def _is_inline(session: Session, call: OpenCall) -> bool:
        tool = session.spec.tool(call.call.name)
        return tool is not None and tool.effect == "inline"

    @staticmethod
    def _cancel(session: Session, scope: CancelScope, partial: Reply | None) -> None:
        scope.clear_user()
        session.cancel(partial)
