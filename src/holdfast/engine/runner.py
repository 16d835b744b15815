"""The one loop: ask the plan, perform it, checkpoint. Blocking, streaming and background runs all come through here.

Instant decisions (parking, settling, starting tools) gather in the draft and share a checkpoint with the fact that led
to them. A checkpoint is made before anything slow begins and when the run stops; nothing can interrupt one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import random

from holdfast.core import model_history, system_prompt
from holdfast.core.deltas import NOTHING_SAID, Reply
from holdfast.core.failures import RetryPolicy, classify, left_ms, pause_ms
from holdfast.core.frames import CompactionFrame
from holdfast.core.messages import ToolReturn
from holdfast.core.run import OVERFLOW, CallModel, CallTools, Compact, Done, OpenCall, Park, Settle, Wait, plan
from holdfast.core.usage import calibrated, prompt_limit
from holdfast.engine.cancel_scope import CancelScope, Interrupted
from holdfast.engine.checkpoint import BlockChanged, CancelPending, checkpoint
from holdfast.engine.clock import Clock, Stopwatch
from holdfast.engine.compacting import CompactionJob, Compactor, system_too_long
from holdfast.engine.database_retries import until_database_answers
from holdfast.engine.model_call import ModelCall, build_request, find_model, tool_schemas
from holdfast.engine.rate_limits import RateLimits
from holdfast.engine.run_loading import prompt_counts
from holdfast.engine.run_session import Session
from holdfast.engine.tool_calls import Executor, InlineTools, SpannedExecutor, find_held_tools, next_batch, preparing
from holdfast.engine.tracing import Instrumentation, Spans
from holdfast.errors import ContextTooLong, ModelError, RunInterrupted
from holdfast.llm.base import Catalog, ModelRequest
from holdfast.store.transaction import Database, DatabaseError

log = logging.getLogger(__name__)
_DATABASE_PAUSE_S = 0.5


class Runner:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        executor: Executor,
        inline: InlineTools,
        clock: Clock,
        compactor: Compactor,
        retry_policy: RetryPolicy,
        instrumentation: Instrumentation | None = None,
        listeners_wait_s: float = 15.0,
        rate_limits: RateLimits | None = None,
    ) -> None:
        """Of `retry_policy` only the pauses count here; how many tries a run has, it was told at its start.

        `listeners_wait_s`: how long clients wait with a run for a database that does not answer.
        """
        self._database = database
        self._catalog = catalog
        self._instrumentation = instrumentation or Instrumentation(Spans())
        self._executor = SpannedExecutor(executor, self._instrumentation.spans)
        self._inline = inline
        self._compactor = compactor
        self._ratios = compactor.ratios
        self._clock = clock
        self._retry_policy = retry_policy
        self._listeners_wait_s = listeners_wait_s
        self._rate_limits = rate_limits

    async def drive(self, session: Session, scope: CancelScope) -> None:
        """Returns when the run is over or waits for a decision. Raises RunInterrupted when it is to be handed over."""
        with self._instrumentation.spans.run(session.run, session.agent) as work:
            session.trace_id = work.trace_id
            while not await self._advance(session, scope):
                pass
            work.stopped(session.state)

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
            session.rebase_memory((await self._inline.current_view(session))[0])
        except RunInterrupted:
            raise
        except DatabaseError as error:
            # A read before anything was done: the same intention is performed again. Checkpoints wait by themselves.
            log.warning("run %s waits for the database: %s", session.run.id, error)
            await scope.pause(_DATABASE_PAUSE_S)
        except Exception as exception:
            # The worker's per-run boundary: recorded on the run, and loud in the log.
            log.exception("run %s failed", session.run.id)
            if session.failing:
                raise
            session.failed(classify(exception, session.run.id))
        return False

    async def _checkpoint(self, session: Session, scope: CancelScope) -> None:
        await checkpoint(self._database, session, scope, self._listeners_wait_s)

    async def _perform(self, session: Session, scope: CancelScope) -> bool:
        intent = plan(session.state)
        if isinstance(intent, CallModel):
            await self._think(session, intent, scope)
            return False
        await self._wait_stored(session, scope)
        match intent:
            case CallTools(calls):
                await self._act(session, calls, scope)
            case Settle(calls):
                session.settle(calls)
            case Compact(trigger):
                await self._compact(session, trigger, scope)
            case Park():
                session.park(await find_held_tools(self._database, session.spec, session.state.calls))
            case Wait():
                session.end_step("requires_approval")
                await self._checkpoint(session, scope)
                return True
            case Done(stop_reason):
                session.end_step(stop_reason)
                await self._checkpoint(session, scope)
                return True
        return False

    async def _think(self, session: Session, intent: CallModel, scope: CancelScope) -> None:
        scope.check()
        await self._wait(session, intent, scope)
        handle = session.spec.model.handle
        try:
            info, model = await scope.run(find_model(self._catalog, handle))
        except ModelError as error:
            self._begin_step(session, intent, handle.partition("/")[0], None)
            self._failed_try(session, error, NOTHING_SAID)
            return
        self._begin_step(session, intent, info.provider_name, info.endpoint)
        session.metrics.served_by(info)
        if session.draft.has_facts or session.run.status == "created":
            await self._checkpoint(session, scope)
            scope.check()
        await self._refresh_system(session, scope)
        request = build_request(session.spec, intent, session.window, session.run.id, session.history_builder)
        await self._ask(session, ModelCall(session, info, model, request, intent, self._instrumentation), scope)

    async def _ask(self, session: Session, call: ModelCall, scope: CancelScope) -> None:
        try:
            guess = await self._require_room(session, call.request)
            limits = self._rate_limits.of(call.provider) if self._rate_limits is not None else None
            if limits is not None:
                await scope.run(limits.admit(session.metrics.prompt_guess, session.run.id))
            reply = await scope.run(call.complete())
        except Interrupted as interrupted:
            if interrupted.reason != "user":
                raise
            self._cancel(session, scope, call.so_far)
        except ModelError as error:
            self._failed_try(session, error, call.so_far)
        else:
            if limits is not None:
                limits.used(session.metrics.prompt_guess, reply.usage)
            session.replied(call.attempt, reply, call.intent)
            session.token_ratio_learned(self._ratios.learn(call.request.handle, guess, reply.usage))

    async def _wait(self, session: Session, intent: CallModel, scope: CancelScope) -> None:
        """On record before it begins: whoever takes the run over knows how often it has been tried, and since when it
        waits."""
        if intent.pause_ms:
            if session.draft.has_facts:
                await self._checkpoint(session, scope)
            left = left_ms(intent.pause_ms, session.waits_since_us, self._clock.now_us())
            await scope.run(asyncio.sleep(left / 1_000))

    def _failed_try(self, session: Session, error: ModelError, said: Reply) -> None:
        retries, first_pause_s = session.spec.retries, self._retry_policy.first_pause_s
        failures = session.state.failures + 1
        pause: int | None = None
        if error.retryable:
            pause = pause_ms(RetryPolicy(retries, first_pause_s), failures, error.retry_after, random())
        if isinstance(error, ContextTooLong):
            session.overflow = error.message
        if pause is not None:
            log.info("run %s: try %d of %d failed: %s", session.run.id, failures, retries + 1, error)
        session.model_failed(classify(error, session.run.id), said, pause)

    async def _require_room(self, session: Session, request: ModelRequest) -> int:
        """What we guess the request to cost. One that cannot fit is not sent. What a compaction has not brought below
        our guess is: the vendor may take it all the same, and nobody is served by compacting it again."""
        guess = request.estimated_tokens()
        ratio = await self._ratios.of(request.handle)
        tokens, window = calibrated(guess, ratio), request.context_window
        session.metrics.prompt_guess = tokens
        if tokens <= prompt_limit(window, request.max_output_tokens) or session.state.overflows:
            return guess
        fixed = calibrated(model_history.estimate_context(request.system, 0, request.tools), ratio)
        if fixed >= window:
            raise system_too_long(fixed, window)
        raise ContextTooLong(f"The request has about {tokens} tokens; the context window holds {window}.")

    @staticmethod
    def _begin_step(session: Session, intent: CallModel, provider_name: str, endpoint: str | None) -> None:
        if session.step is None or session.step.number != intent.number:
            session.begin_step(intent, provider_name, endpoint)

    async def _act(self, session: Session, calls: Sequence[OpenCall], scope: CancelScope) -> None:
        scope.check()
        inline = [call for call in calls if self._is_inline(session, call)]
        for call in inline:
            await self._run_inline(session, call, scope)
        outside = next_batch(session.spec, [call for call in calls if not self._is_inline(session, call)])
        if outside:
            session.tools_started(outside)
            await self._run_tools(session, outside, scope)

    async def _run_inline(self, session: Session, call: OpenCall, scope: CancelScope) -> None:
        stopwatch = Stopwatch(self._clock)
        with self._instrumentation.spans.tool(call.call) as work:
            answer, write = await scope.run(self._inline.call(session, call))
            work.returned(answer)
        session.ran_tools(stopwatch())
        session.memory_returned(call, answer, write)

    async def _run_tools(self, session: Session, calls: Sequence[OpenCall], scope: CancelScope) -> None:
        async with preparing(self._executor, session.spec, calls) as batch:
            await self._checkpoint(session, scope)  # their start: before it is on the disk, none of them is run
            batch.run()
            stopwatch = Stopwatch(self._clock)
            try:
                while answers := await scope.run(batch.next()):
                    session.ran_tools(stopwatch())
                    self._take(session, answers)
                    if session.state.calls.any_running:
                        await self._checkpoint(session, scope)  # else the next one's start, or the next step, does
            finally:
                await batch.stop()
                session.ran_tools(stopwatch())
                # They happened, whatever keeps us from going on: also those that came while a checkpoint was refused.
                self._take(session, batch.rest())

    @staticmethod
    def _take(session: Session, answers: Sequence[ToolReturn]) -> None:
        if answers:
            session.returned(answers)

    async def _compact(self, session: Session, trigger: str, scope: CancelScope) -> None:
        scope.check()
        if session.draft.has_facts:
            await self._checkpoint(session, scope)
        wanted = self._wanted(session, trigger)
        if session.spec.include_compaction:
            session.stream.publish(self._announcement(session, trigger))
        try:
            made = await scope.run(self._compactor.compact(wanted))
        except ModelError as error:
            log.warning("run %s could not compact its context: %s", session.run.id, error)
            session.compaction_failed(classify(_with_overflow(error, session.overflow), session.run.id))
        else:
            session.compacted(made.summary, made.evicted, made.tokens_after)
            await self._recompile(session, scope)

    def _wanted(self, session: Session, trigger: str) -> CompactionJob:
        spec = session.spec
        return CompactionJob(
            window=session.window,
            settings=spec.compaction,
            model=spec.model,
            timezone=spec.timezone,
            trigger=trigger,
            shown=spec.include_compaction,
            run_id=session.run.id,
            step_id=session.view.step_id,
            tokens_before=_tokens_now(session, trigger),
            tools=tool_schemas(spec, spec.tool_names),
        )

    def _announcement(self, session: Session, trigger: str) -> CompactionFrame:
        window = session.spec.model.context_window
        now_us = self._clock.now_us()
        return CompactionFrame(
            session.event_id(), session.view.step_id, now_us, trigger, _tokens_now(session, trigger), window
        )

    async def _refresh_system(self, session: Session, scope: CancelScope) -> None:
        """The stored system message follows the memory and the files; its bytes stay while nothing it shows changes."""
        if not session.is_fresh:
            session.blocks, session.directories = await self._inline.current_view(session)
        if _digest(session) != session.system_digest:
            await self._wait_stored(session, scope)
            await self._recompile(session, scope)

    @staticmethod
    async def _wait_stored(session: Session, scope: CancelScope) -> None:
        """Whoever was to say that the run is stored may be gone, when the server stops."""
        if not session.is_stored:
            await scope.run(session.until_stored())

    async def _recompile(self, session: Session, scope: CancelScope) -> None:
        digest = _digest(session)
        # Waits here, because a summary that was paid for may be in the draft.
        stored, archived = await until_database_answers(
            lambda: self._database.read(lambda tx: prompt_counts(tx, session.run.agent_id, session.run.thread_id)),
            f"run {session.run.id}",
            scope.pause,
        )
        message = system_prompt.recompiled(
            session.window[0],
            session.agent,
            session.blocks,
            conversation_id=session.run.conversation_id,
            hidden=max(0, stored + len(session.draft.rows) - len(session.window)),
            archived=archived,
            directories=session.directories,
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


def _digest(session: Session) -> str:
    return system_prompt.digest(session.agent, session.blocks, session.run.conversation_id, session.directories)


def _tokens_now(session: Session, trigger: str) -> int | None:
    """What the last reply was counted as says nothing of a request that has grown since, and overflowed."""
    return session.state.context_tokens if trigger != OVERFLOW else session.metrics.prompt_guess or None


def _with_overflow(error: ModelError, overflow: str | None) -> ModelError:
    """Where nothing is left to summarise, the vendor's own words tell most: often its window is smaller than ours."""
    if overflow is None or not isinstance(error, ContextTooLong) or overflow == error.message:
        return error
    return ContextTooLong(f"{overflow.rstrip('.')}. {error.message}")
