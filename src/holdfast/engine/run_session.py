"""The working set of one run: its state, its window, what was measured, and the draft of its next checkpoint. No I/O.

What each fact changes is decided in `core/transitions.py`; here the change is taken into the draft, and the step gets
its times and costs. `cancel` and `failed` start over from the last checkpoint and keep only what cannot be undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core import transitions
from holdfast.core.deltas import Reply
from holdfast.core.events import AnyEvent
from holdfast.core.failures import Failure
from holdfast.core.frames import AbandonedFrame, Frame
from holdfast.core.hold import NO_TOOLS, HeldTools, Hold
from holdfast.core.memory import MemoryChange
from holdfast.core.messages import Message, ToolReturn
from holdfast.core.model_history import HistoryBuilder
from holdfast.core.records import Block, ModelChoice, ProviderTrace, Run, Step, StopReason
from holdfast.core.run import CallModel, OpenCall, plan
from holdfast.core.spec import RunSpec
from holdfast.core.transitions import Attempt, Change, Replied, RunView, StepChange, Undone, WindowCut
from holdfast.core.usage import Price, Usage, cost
from holdfast.engine.archival import PassageWrite
from holdfast.engine.clock import Clock, reading_at
from holdfast.engine.run_loading import LoadedRun
from holdfast.engine.streams import RunStream
from holdfast.llm.base import ModelInfo

_CUT_OFF: Final = {"error_type": "internal_error", "detail": "The server stopped in the middle of this reply."}


class Session:
    def __init__(
        self, loaded: LoadedRun, stream: RunStream, clock: Clock, stored: asyncio.Future[bool] | None = None
    ) -> None:
        """`stored`: whether its acceptance is on the disk, once that is known; None for a run that was read from there
        (decision 15)."""
        run, step = loaded.run, loaded.step
        self.run = run
        self.agent = loaded.agent
        self.thread = loaded.thread
        self.state = loaded.state
        self.window = loaded.window
        self.blocks: list[Block] = loaded.blocks
        self.directories = loaded.directories
        self.system_digest = loaded.system_digest
        self.journalled = loaded.journalled
        self.stream = stream
        self.clock = clock
        self.draft = Draft()
        self.checkpoints = run.checkpoints
        self.attempt: Attempt | None = None
        self.step: Step | None = step
        self.failing = False
        # When the try failed that another is to follow: of a run that waits for one, that is the last event.
        self.waits_since_us = loaded.last_event_us
        self.ttft_ns: int | None = run.ttft_ns
        self.received_ns = reading_at(clock, run.created_us)
        self.history_builder = HistoryBuilder()  # replaced by the one of the thread's last run, if it was kept
        self.next_position: int | None = loaded.next_position  # as of the last checkpoint; None when it is not known
        self.has_due_tasks = False  # the end of this run has added some
        self._stored = stored
        # These outlive starting over: they tell of what has happened, not of what was decided.
        self.metrics = StepMetrics("")
        if step is not None:
            self.metrics = StepMetrics.of(step, self._began_ns(step))
        # By the parked step of an earlier run that tools belong to; not yet stored.
        self.late_tool_ns: dict[str, int] = {}
        self.trace: ProviderTrace | None = None  # of the newest model call; not yet stored
        self.trace_id: str | None = None
        self.overflow: str | None = None  # what was said of the newest request that did not fit
        self._committed = loaded.state, list(loaded.window), loaded.blocks, step

    @property
    def spec(self) -> RunSpec:
        return self.state.frozen_spec

    @property
    def lease(self) -> int:
        return self.run.lease

    @property
    def is_stored(self) -> bool:
        """Before its acceptance is on the disk, the model may be asked, and nothing else be done."""
        return self._stored is None or (self._stored.done() and self._stored.result())

    async def until_stored(self) -> None:
        """Returns also if it never will be: then its scope is cancelled too."""
        if self._stored is not None:
            await asyncio.wait([self._stored])

    @property
    def stored_window(self) -> list[Message]:
        return self._committed[1]

    @property
    def is_fresh(self) -> bool:
        """Nothing of it has been journalled but its start."""
        return self.journalled <= 1

    def committed(self) -> None:
        """The draft is in the database."""
        self.journalled += len(self.draft.events)
        self.checkpoints += 1
        if self.draft.system_digest is not None:
            self.system_digest = self.draft.system_digest
        self._committed = self.state, list(self.window), self.blocks, self.step
        if self.draft.reply is not None or self.draft.given_up is not None:
            self.attempt = None
        self.draft = Draft()
        self.late_tool_ns, self.trace = {}, None
        if self.run.status == "created":
            self.run = msgspec.structs.replace(self.run, status="running")

    @property
    def view(self) -> RunView:
        """The run as it stands now, the draft included."""
        number = self.step.number if self.step is not None else None
        return RunView(self.run.id, self.lease, self.state, self.window, number, self.clock.now_us())

    def begin_step(self, intent: CallModel, provider_name: str, endpoint: str | None) -> Step:
        now_us = self.clock.now_us()
        self.step = pending_step(self.run, self.spec.model, intent.number, now_us, provider_name, endpoint)
        self.draft.steps[self.step.id] = self.step
        if self.metrics.step_id != self.step.id:
            self.metrics = StepMetrics(self.step.id, self.clock.now_ns())
        return self.step

    def begin_attempt(self, step: Step) -> Attempt:
        """Ids are derived from the lease too: another worker's try at the same call is another try."""
        self.attempt = self._attempt_under(self.lease, step.id)
        return self.attempt

    def _attempt_under(self, lease: int, step_id: str) -> Attempt:
        """The try that is due now, as the owner of this lease makes it. Tries that failed are on record, so whoever
        takes the run over knows the ids of what its predecessors may have shown."""
        key = (self.run.id, step_id, lease, self.state.failures + self.state.overflows)
        return Attempt(ids.derive("message", *key, "reply"), ids.derive("message", *key, "held"))

    def mark_predecessors_abandoned(self, message_ids: tuple[str, ...]) -> None:
        """As `mark_abandoned`, also of what owners that died have shown before any of it was stored."""
        intent = plan(self.state)
        shown = dict.fromkeys(message_ids)
        if isinstance(intent, CallModel) and self.run.background and self.spec.stream_tokens:
            step_id = ids.derive("step", self.run.id, intent.number)
            for lease in range(1, self.lease):
                attempt = self._attempt_under(lease, step_id)
                shown |= {attempt.reply_id: None, attempt.held_id: None}
        self.mark_abandoned(tuple(shown))

    def mark_abandoned(self, message_ids: tuple[str, ...]) -> None:
        """What an earlier owner has shown of a reply that it did not live to store: whoever saw it is told."""
        if message_ids:
            self.stream.publish(*(AbandonedFrame(message_id) for message_id in message_ids))
            self.stream.publish(transitions.retry_frame(self.view, _CUT_OFF, 0, message_ids))

    def replied(self, attempt: Attempt, reply: Reply, intent: CallModel) -> None:
        usage = reply.usage or transitions.estimated_usage(reply, self.metrics.prompt_guess)
        self._apply(transitions.replied(self.view, intent, attempt, reply, usage))
        self.draft.reply = Replied(attempt, reply, intent)

    def model_failed(self, failure: Failure, said: Reply, retry_in_ms: int | None = None) -> None:
        self.waits_since_us = self.clock.now_us()
        self._apply(transitions.model_failed(self.view, failure, said, retry_in_ms, self._shown_of_attempt()))
        self.draft.given_up = said

    def token_ratio_learned(self, ratio: float | None) -> None:
        """What the reply has taught about its model's way of counting, when that is worth storing."""
        if ratio is not None:
            self.draft.ratio = self.spec.model.handle, ratio

    def tools_started(self, calls: Sequence[OpenCall]) -> None:
        self._apply(transitions.tools_started(self.view, calls))

    def returned(self, returns: Sequence[ToolReturn]) -> None:
        """Returns of tools that were run outside: they happened, whatever becomes of the checkpoint."""
        self.draft.returns.extend(returns)
        self._apply(transitions.returned(self.view, returns))

    def memory_returned(self, call: OpenCall, answer: ToolReturn, write: MemoryWrite | PassageWrite | None) -> None:
        """A built-in tool: its effect is committed with its return, or neither is."""
        self._apply(transitions.inline_tool_returned(self.view, call, answer))
        if write is not None:
            self.draft.memory.append(write)
        if isinstance(write, MemoryWrite):
            self.blocks = write.after

    def rebase_memory(self, blocks: list[Block]) -> None:
        """The blocks changed under the drafted edits: compute them again from these. A drafted reply stays."""
        undone = self._start_over()
        self.blocks = blocks
        if undone.reply is not None:
            self.replied(undone.reply.attempt, undone.reply.reply, undone.reply.intent)
        if undone.returns:
            self.returned(undone.returns)

    def settle(self, calls: Sequence[OpenCall]) -> None:
        self._apply(transitions.settled(self.view, calls))

    def park(self, found: HeldTools = NO_TOOLS) -> None:
        self._apply(transitions.parked(self.view, found))

    def compacted(self, summary: Message, evicted: Sequence[Message], context_tokens: int) -> None:
        self._apply(transitions.compacted(self.view, summary, evicted, context_tokens))

    def compaction_failed(self, failure: Failure) -> None:
        self._apply(transitions.compaction_failed(self.view, failure))

    def failed(self, failure: Failure) -> None:
        """Something of ours broke: start over from the last checkpoint and end the run in order."""
        self.failing = True
        undone = self._start_over()
        # What was shown of the attempt will never be stored: a replay is to leave it out.
        self.stream.publish(*(AbandonedFrame(message_id) for message_id in self._shown_of_attempt()))
        self.attempt = None
        self._apply(transitions.failed(self.view, failure, undone))

    def cancel(self, partial: Reply | None) -> None:
        """The user asked to stop: start over from the last checkpoint, and keep what cannot be undone."""
        undone = self._start_over()
        change = transitions.cancelled(self.view, undone, partial, self.attempt, self.metrics.prompt_guess)
        if change.keeps_partial_reply:
            self.attempt = None
        self._apply(change)

    def replace_system(self, message: Message, digest: str) -> None:
        self.window[0] = message
        self.draft.changed[message.id] = message
        self.draft.system_digest = digest

    def asked_model(self, started_ns: int, first_ns: int | None) -> None:
        """A try at the model call has ended, one way or another."""
        self.metrics.asked_model(started_ns, first_ns, self.clock.now_ns())

    def ran_tools(self, took_ns: int) -> None:
        parked = self.state.step_id
        if parked is None:
            self.metrics.ran_tools(took_ns)
        else:
            self.late_tool_ns[parked] = self.late_tool_ns.get(parked, 0) + took_ns

    @property
    def storable_trace(self) -> ProviderTrace | None:
        """Nothing when the step that it belongs to was undone before it was ever stored."""
        committed = self._committed[3]
        known = {*self.draft.steps, committed.id if committed is not None else ""}
        return self.trace if self.trace is not None and self.trace.step_id in known else None

    @property
    def failed_tries(self) -> list[dict[str, Any]]:
        return self.metrics.failed_tries

    def traced(self, trace: ProviderTrace) -> None:
        """To be stored with the step; a later try at the same call replaces it."""
        self.trace = trace

    def event_id(self) -> str:
        return ids.derive("message", self.run.id, self.state.compactions, "compaction")

    def end_step(self, stop_reason: StopReason) -> None:
        self._change_step(StepChange(stop_reason=stop_reason))

    def first_content(self) -> None:
        if self.ttft_ns is None:
            self.ttft_ns = self.clock.now_ns() - self.received_ns

    def _start_over(self) -> Undone:
        """From the last checkpoint. What the draft held is given back, as it happened all the same."""
        undone = self.draft.undone
        self.state, window, self.blocks, self.step = self._committed
        self.window = list(window)
        self.draft = Draft()
        return undone

    def _apply(self, change: Change) -> None:
        self.state, self.window = change.state, change.window
        self.draft.add(change)
        if change.shows_content:
            self.first_content()
        if change.step is not None:
            self._change_step(change.step)

    def _shown_of_attempt(self) -> tuple[str, ...]:
        """The messages of which listeners have seen fragments that are not stored yet."""
        if self.attempt is None:
            return ()
        its_own = {self.attempt.reply_id, self.attempt.held_id}
        return tuple(message_id for message_id in self.stream.fragment_ids() if message_id in its_own)

    def _change_step(self, change: StepChange) -> None:
        step = self.step
        if step is None:
            return
        columns: dict[str, Any] = self.metrics.columns() if self.metrics.step_id == step.id else {}
        if change.status is not None:
            columns["status"] = change.status
        if change.stop_reason is not None:
            columns["stop_reason"] = change.stop_reason
        if change.usage is not None:
            columns["usage"] = usage = step.usage + change.usage  # a step's tries are paid for together
            # Of a call of which nothing is known, nobody knows the cost either.
            columns["cost_usd"] = cost(usage, self.metrics.price) if usage != Usage() else None
        if change.failure is not None:
            columns |= {"error_type": change.failure.kind, "error_data": change.failure.data()}
        took_ns = self.clock.now_ns() - self._began_ns(step)
        trace_id = step.trace_id or self.trace_id
        self.step = msgspec.structs.replace(step, step_ns=took_ns, trace_id=trace_id, **columns)
        self.draft.steps[self.step.id] = self.step

    def _began_ns(self, step: Step) -> int:
        """By the monotonic clock. Of a step that this session did not begin, only the time of day is known."""
        if self.metrics.step_id == step.id:
            return self.metrics.began_ns
        if step.created_us == self.run.created_us:  # the first step of a run begins with it
            return self.received_ns
        return reading_at(self.clock, (step.step_start_ns or self.clock.now_us() * 1_000) // 1_000)


class MemoryWrite(msgspec.Struct, frozen=True):
    """A memory tool's effect, guarded by the versions of the blocks that it was computed from."""

    change: MemoryChange
    versions: dict[str, int]  # by block id
    after: list[Block]  # all blocks in view, once it is applied


class Draft(msgspec.Struct):
    """What the next checkpoint will write. Gathered while a run moves through instant decisions, written in one go."""

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


def pending_step(
    run: Run,
    model: ModelChoice,
    number: int,
    now_us: int,
    provider_name: str | None = None,
    endpoint: str | None = None,
) -> Step:
    """The record of a model call that is about to be made."""
    return Step(
        id=ids.derive("step", run.id, number),
        run_id=run.id,
        agent_id=run.agent_id,
        number=number,
        status="pending",
        model_handle=model.handle,
        context_window_limit=model.context_window,
        provider_name=provider_name or model.handle.partition("/")[0],
        provider_category=model.provider_category,
        model_endpoint=endpoint,
        created_us=now_us,
        step_start_ns=now_us * 1_000,
    )


class StepMetrics(msgspec.Struct):
    """What is known of the step at hand, whatever becomes of the draft: who serves it, what it costs, how long it
    takes.

    Starting over undoes decisions, not time. A call that was made has taken what it took, also when a cancel overtakes
    its reply, and so have tools that were killed."""

    step_id: str
    began_ns: int = 0  # when the step began, by the monotonic clock of this process
    serving: dict[str, Any] = {}  # columns of the step that tell who answers
    price: Price | None = None
    prompt_guess: int = 0  # tokens of the request at hand, for when nobody will tell how many they were
    llm_request_start_ns: int | None = None  # a time of day
    llm_request_ns: int | None = None
    ttft_ns: int | None = None
    tool_execution_ns: int | None = None
    failed_tries: list[dict[str, Any]] = []  # what traced tries before the present one ended with

    @classmethod
    def of(cls, step: Step, began_ns: int) -> StepMetrics:
        """Carries on where an earlier process, or an earlier try, has stopped."""
        return cls(
            step.id,
            began_ns,
            llm_request_start_ns=step.llm_request_start_ns,
            llm_request_ns=step.llm_request_ns,
            ttft_ns=step.ttft_ns,
            tool_execution_ns=step.tool_execution_ns,
        )

    def served_by(self, info: ModelInfo) -> None:
        self.price = info.price
        self.serving = {
            "provider_name": info.provider_name,
            "provider_category": info.provider_category,
            "model_endpoint": info.endpoint,
        }

    def asking_model(self, at_us: int) -> None:
        if self.llm_request_start_ns is None:
            self.llm_request_start_ns = at_us * 1_000

    def asked_model(self, started_ns: int, first_ns: int | None, ended_ns: int) -> None:
        """One try. Pauses between tries are not the model's; the first content is that of the last try that had any."""
        self.llm_request_ns = (self.llm_request_ns or 0) + ended_ns - started_ns
        if first_ns is not None:
            self.ttft_ns = first_ns - started_ns

    def ran_tools(self, took_ns: int) -> None:
        """Tools that ran together are given once, with the time that all of them took."""
        self.tool_execution_ns = (self.tool_execution_ns or 0) + took_ns

    def columns(self) -> dict[str, Any]:
        return self.serving | {
            "llm_request_start_ns": self.llm_request_start_ns,
            "llm_request_ns": self.llm_request_ns,
            "ttft_ns": self.ttft_ns,
            "tool_execution_ns": self.tool_execution_ns,
        }
