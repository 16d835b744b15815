"""The working set of one run: its state, its window, and the draft of its next checkpoint. No I/O.

Facts enter through the methods below; each applies its events to the state and drafts the rows, steps and frames that
go with them. `cancel` starts over from the last checkpoint and keeps of the draft only what cannot be undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core import heartbeats, rows, tool_rules
from holdfast.core.context import HistoryBuilder
from holdfast.core.deltas import Reply
from holdfast.core.events import (
    RETURNED_CHARS,
    AnyEvent,
    CancelAsked,
    Compacted,
    CompactionFailed,
    ModelFailed,
    ModelReplied,
    Parked,
    RunFailed,
    ToolReturned,
    ToolsStarted,
)
from holdfast.core.frames import AbandonedFrame, RetryFrame, message_frames
from holdfast.core.hold import NO_TOOLS, HeldTools, Hold, client_answers
from holdfast.core.judgement import judge
from holdfast.core.messages import Message, Reasoning, Text, ToolReturn, content_text
from holdfast.core.records import Agent, Block, ProviderTrace, Run, Step, StopReason, Thread
from holdfast.core.run import CallModel, OpenCall, Phase, RunState, apply, held_calls
from holdfast.core.spec import RunSpec
from holdfast.core.usage import Usage, cost, estimate_tokens
from holdfast.engine.archival import PassageWrite
from holdfast.engine.clock import Clock, reading_at
from holdfast.engine.draft import Attempt, Draft, MemoryWrite, Replied, WindowCut
from holdfast.engine.failures import Failure
from holdfast.engine.measuring import Measured, pending_step
from holdfast.engine.streams import RunStream

_CUT_OFF: Final = {"error_type": "internal_error", "detail": "The server stopped in the middle of this reply."}


class Session:
    def __init__(
        self,
        *,
        run: Run,
        agent: Agent,
        thread: Thread,
        state: RunState,
        window: list[Message],
        blocks: list[Block],
        system_digest: str | None,
        journalled: int,
        stream: RunStream,
        clock: Clock,
        step: Step | None = None,
        waits_since_us: int = 0,
        arriving: bool = False,
    ) -> None:
        """`arriving`: its acceptance is not on the disk yet."""
        self.run = run
        self.agent = agent
        self.thread = thread
        self.state = state
        self.window = window
        self.blocks = blocks
        self.system_digest = system_digest
        self.journalled = journalled
        self.stream = stream
        self.clock = clock
        self.draft = Draft()
        self.checkpoints = run.checkpoints
        self.attempts = 0
        self.attempt: Attempt | None = None
        self.step = step
        self.failing = False
        self.waits_since_us = waits_since_us  # when the try failed that another is to follow
        self.ttft_ns: int | None = run.ttft_ns
        self.received_ns = reading_at(clock, run.created_us)
        self.history_builder = HistoryBuilder()  # replaced by the one of the thread's last run, if it was kept
        self.thread_end: int | None = None  # as of the last checkpoint; None when it is not known
        self._arrival = asyncio.Event() if arriving else None
        # These outlive starting over: they tell of what has happened, not of what was decided.
        self.measured = Measured("")
        if step is not None:
            self.measured = Measured.of(step, self._began_ns(step))
        # By the parked step of an earlier run that tools belong to; not yet stored.
        self.late_tool_ns: dict[str, int] = {}
        self.trace: ProviderTrace | None = None  # of the newest model call; not yet stored
        self.trace_id: str | None = None
        self.overflow: str | None = None  # what was said of the newest request that did not fit
        self._committed = state, list(window), blocks, step

    @property
    def spec(self) -> RunSpec:
        return self.state.frozen_spec

    @property
    def lease(self) -> int:
        return self.run.lease

    def arrived(self, thread_end: int | None) -> None:
        """Its acceptance is on the disk, and its thread ends there; or it is not, and never will be."""
        self.thread_end = thread_end
        if self._arrival is not None:
            self._arrival.set()

    @property
    def is_on_record(self) -> bool:
        """Before its acceptance is on the disk, the model may be asked, and nothing else be done."""
        return self._arrival is None or self._arrival.is_set()

    async def on_record(self) -> None:
        if self._arrival is not None:
            await self._arrival.wait()

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

    def step_id(self) -> str:
        """The step that rows written now belong to."""
        return self.state.step_id or ids.derive("step", self.run.id, max(1, self.state.model_calls))

    def begin_step(self, intent: CallModel, provider_name: str, endpoint: str | None) -> Step:
        now_us = self.clock.now_us()
        self.step = pending_step(self.run, self.spec.model, intent.number, now_us, provider_name, endpoint)
        self.draft.steps[self.step.id] = self.step
        if self.measured.step_id != self.step.id:
            self.measured = Measured(self.step.id, self.clock.now_ns())
        return self.step

    def begin_attempt(self, step: Step) -> Attempt:
        """Ids are derived from the lease too: another worker's try at the same call is another try."""
        self.attempts += 1
        key = (self.run.id, step.id, self.lease, self.attempts)
        self.attempt = Attempt(ids.derive("message", *key, "reply"), ids.derive("message", *key, "held"))
        return self.attempt

    def taken_over(self, message_ids: tuple[str, ...]) -> None:
        """What an earlier owner has shown of a reply that it did not live to store: whoever saw it is told."""
        if message_ids:
            self.stream.publish(*(AbandonedFrame(message_id) for message_id in message_ids))
            self.stream.publish(self._retry_frame(_CUT_OFF, 0, message_ids))

    def replied(self, attempt: Attempt, reply: Reply, intent: CallModel) -> None:
        spec, history = self.spec, self.state.history
        calls = judge(spec, intent.choice, reply.calls, parallel=intent.parallel, history=history)
        usage = reply.usage or self._estimated(reply)
        spoken = reply.spoken if spec.heartbeats is None else heartbeats.spoken_in(spec.heartbeats, reply)
        written = rows.reply_rows(self._origin(intent.number), attempt.reply_id, attempt.held_id, spoken, calls)
        self.draft.reply = Replied(attempt, reply, intent)
        event = ModelReplied(
            written[0].id if written else None, calls, reply.finish or "stop", usage, spoke=bool(reply.spoken)
        )
        self._record(event)
        self._add_rows(written, streamed=not self.spec.stream_tokens)
        self._change_step(status="success", usage=usage)
        if not calls and self.state.phase is Phase.THINKING and not self.state.stop_after_compaction:
            self._ask_for_required_tools()

    def model_failed(self, failure: Failure, said: Reply, retry_in_ms: int | None = None) -> None:
        """What was shown of the try is disowned with the fact that it failed, and not before: a cancel may yet come
        between, and keeps what was said."""
        usage = said.usage or Usage()
        self.waits_since_us = self.clock.now_us()
        self._record(ModelFailed(failure.stop_reason, failure.error, failure.overflow, retry_in_ms, usage))
        self._change_step(usage=usage)
        abandoned = self._shown_of_attempt()
        self.draft.given_up = said
        self.draft.frames.extend(AbandonedFrame(message_id) for message_id in abandoned)
        if retry_in_ms is not None or (abandoned and self.state.compact):
            # A compaction comes between the tries without a word, unless one was shown that is void now.
            self.draft.frames.append(self._retry_frame(failure.error, retry_in_ms or 0, abandoned))
        if self.state.phase is Phase.DONE:
            self._fail_step(failure)

    def learnt(self, ratio: float | None) -> None:
        """What the reply has taught about its model's way of counting, when that is worth storing."""
        if ratio is not None:
            self.draft.ratio = self.spec.model.handle, ratio

    def tools_started(self, calls: Sequence[OpenCall]) -> None:
        self._record(ToolsStarted(tuple(call.call.id for call in calls)))

    def returned(self, returns: Sequence[ToolReturn]) -> None:
        """Returns of tools that were run outside: they happened, whatever becomes of the checkpoint."""
        self.draft.returns.extend(returns)
        self._add_returns(returns)
        self._change_step()

    def memory_returned(self, call: OpenCall, answer: ToolReturn, write: MemoryWrite | PassageWrite | None) -> None:
        """A built-in tool: its effect is committed with its return, or neither is."""
        self._record(ToolsStarted((call.call.id,)))
        if write is not None:
            self.draft.memory.append(write)
        if isinstance(write, MemoryWrite):
            self.blocks = write.after
        self._add_returns([answer])

    def forget_memory(self, blocks: list[Block]) -> None:
        """The blocks changed under the drafted edits: compute them again from these. A drafted reply stays."""
        overtaken, returns = self.draft.reply, self.draft.returns
        self._start_over()
        self.blocks = blocks
        if overtaken is not None:
            self.replied(overtaken.attempt, overtaken.reply, overtaken.intent)
        if returns:
            self.returned(returns)

    def settle(self, calls: Sequence[OpenCall]) -> None:
        """Returns for calls that are not run: refused, denied, answered by the client, cut off or never reached."""
        hold = self.state.hold
        if hold is not None:
            self._add_rows([rows.denial_row(self._origin(), ids.derive("message", self.run.id, "withdrawn"), hold)])
            self._add_returns([rows.withdrawal(call) for call in calls], places=_asked_first(hold))
            return
        answers = client_answers([d for row in self.window if row.run_id == self.run.id for d in row.decisions])
        self._add_returns([rows.settlement(call, self.state.ending, answers) for call in calls])

    def park(self, found: HeldTools = NO_TOOLS) -> None:
        request = next(row for row in reversed(self.window) if row.is_approval_request)
        hold = found.remembered_in(Hold(request.id, self.step_id(), held_calls(self.state)))
        self.draft.hold = hold
        self._record(Parked(hold))

    def compacted(self, summary: Message, evicted: Sequence[Message], context_tokens: int) -> None:
        gone = {row.id for row in evicted}
        kept = [row for row in self.window if row.id not in gone]
        self.draft.cut = WindowCut(tuple(row.id for row in evicted), summary.id)
        self.draft.rows.append(summary)
        self.window = [*kept[:1], summary, *kept[1:]]
        if self.spec.include_compaction:
            self._stream_rows([summary])
        self._record(Compacted(summary.id, len(evicted), context_tokens))

    def compaction_failed(self, failure: Failure) -> None:
        overflowed = self._is_at_step()
        self._record(CompactionFailed(failure.stop_reason, failure.error))
        if overflowed and self.state.phase is Phase.DONE:
            self._fail_step(failure)

    def failed(self, failure: Failure) -> None:
        """Something of ours broke: start over from the last checkpoint and end the run in order. Tools that have
        returned are kept."""
        self.failing = True
        returns = self.draft.returns
        self._start_over()
        at_step = self._is_at_step()
        self._disown()
        self._record(RunFailed(failure.stop_reason, failure.error))
        self._keep_returns(returns)
        if at_step:
            self._fail_step(failure)

    def cancel(self, partial: Reply | None) -> None:
        """The user asked to stop. What was said is kept, as are tools that have returned."""
        overtaken, given_up, returns = self.draft.reply, self.draft.given_up, self.draft.returns
        self._start_over()
        reply = partial or (overtaken.reply if overtaken else given_up)
        attempt = overtaken.attempt if overtaken else self.attempt
        interrupted = self.state.phase is Phase.THINKING and not self.state.compact
        usage = (reply.usage or self._estimated(reply)) if reply and interrupted else Usage()
        number, at_step = self.state.model_calls + 1, self._is_at_step()
        self._record(CancelAsked(usage=usage))
        if reply is not None and attempt is not None and interrupted and self.spec.stream_tokens:
            # Only a token stream has delivered it; storing it keeps the client's history and ours the same.
            # A call that was cut off is not stored; a replay shows it all the same, because it shows what was shown.
            self._add_rows(rows.partial_rows(self._origin(number), attempt.reply_id, reply, self.spec))
            self.attempt = None
        self._keep_returns(returns)
        if at_step:
            self._change_step(status="cancelled", stop_reason="cancelled", usage=usage if interrupted else None)

    def replace_system(self, message: Message, digest: str) -> None:
        self.window[0] = message
        self.draft.changed[message.id] = message
        self.draft.system_digest = digest

    def asked_model(self, started_ns: int, first_ns: int | None) -> None:
        """A try at the model call has ended, one way or another."""
        self.measured.asked_model(started_ns, first_ns, self.clock.now_ns())

    def ran_tools(self, took_ns: int) -> None:
        parked = self.state.step_id
        if parked is None:
            self.measured.ran_tools(took_ns)
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
        return self.measured.failed_tries

    def traced(self, trace: ProviderTrace) -> None:
        """To be stored with the step; a later try at the same call replaces it."""
        self.trace = trace

    def event_id(self) -> str:
        return ids.derive("message", self.run.id, self.state.compactions, "compaction")

    def end_step(self, stop_reason: StopReason) -> None:
        self._change_step(stop_reason=stop_reason)

    def first_content(self) -> None:
        if self.ttft_ns is None:
            self.ttft_ns = self.clock.now_ns() - self.received_ns

    def _start_over(self) -> None:
        self.state, window, self.blocks, self.step = self._committed
        self.window = list(window)
        self.draft = Draft()

    def _is_at_step(self) -> bool:
        """Whether the step at hand is the one being worked on. Between two steps it is the one that has ended."""
        number = self.state.model_calls + (self.state.phase is Phase.THINKING)
        return self.step is not None and self.step.number == number

    def _disown(self) -> None:
        """What was shown of the attempt will never be stored: a replay is to leave it out."""
        self.stream.publish(*(AbandonedFrame(message_id) for message_id in self._shown_of_attempt()))
        self.attempt = None

    def _shown_of_attempt(self) -> tuple[str, ...]:
        """The messages of which listeners have seen fragments that are not stored yet."""
        if self.attempt is None:
            return ()
        its_own = {self.attempt.reply_id, self.attempt.held_id}
        return tuple(message_id for message_id in self.stream.fragment_ids() if message_id in its_own)

    def _retry_frame(self, error: dict[str, Any], retry_in_ms: int, abandoned: tuple[str, ...]) -> RetryFrame:
        step_id = ids.derive("step", self.run.id, self.state.model_calls + 1)
        overflows = self.state.overflows  # tries that compaction was the answer to: they are not counted against it
        failed, tries = self.state.failures + overflows, self.spec.retries + 1 + overflows
        return RetryFrame(
            message_id=ids.derive("message", self.run.id, step_id, self.lease, failed, "retry"),
            step_id=step_id,
            at_us=self.clock.now_us(),
            attempt=failed + 1,
            max_attempts=tries,
            error_type=error["error_type"],
            message=error["detail"],
            retry_in_ms=retry_in_ms,
            abandoned_ids=abandoned,
        )

    def _keep_returns(self, returns: Sequence[ToolReturn]) -> None:
        """What an unfinished checkpoint knew of tools that ran outside; a return that made no sense is left behind."""
        wanted = {call.call.id for call in self.state.open_calls}
        kept = {answer.call_id: answer for answer in returns if answer.call_id in wanted}
        if kept:
            self._add_returns(list(kept.values()))

    def _record(self, event: AnyEvent) -> None:
        self.state = apply(self.state, event)
        self.draft.events.append(event)

    def _add_rows(self, new: Sequence[Message], *, streamed: bool = False) -> None:
        self.draft.rows.extend(new)
        self.window.extend(new)
        if streamed:
            self._stream_rows(new)

    def _stream_rows(self, new: Sequence[Message]) -> None:
        loop = self.spec.heartbeats
        speaking = loop.speaking if loop else None
        self.draft.frames.extend(frame for row in new for frame in message_frames(row, speaking))
        if new:
            self.first_content()

    def _add_returns(self, returns: Sequence[ToolReturn], places: Mapping[str, int] | None = None) -> None:
        row_id = ids.derive("message", self.run.id, self.step_id(), "returns")
        before = next((row for row in reversed(self.window) if row.id == row_id), None)
        origin = self._origin()
        if places is None:
            places = self.state.calls.places
        position = self.state.return_position
        if self.state.step_id is not None:  # its calls were put to somebody before
            returns = [msgspec.structs.replace(answer, was_asked=True) for answer in returns]
        row = rows.tool_row(origin, row_id, before.returns if before else (), returns, places)
        if before is not None:
            row = msgspec.structs.replace(before, parts=row.parts)  # all that a stored row can change
        for answer in returns:
            text = content_text(answer.content)[:RETURNED_CHARS]
            self._record(ToolReturned(answer.call_id, answer.status, text))
        self._put_tool_row(row, before, position)
        if self.state.phase is not Phase.ACTING:
            self._stream_rows([row])
        if self.state.heartbeat is not None and self.state.phase is Phase.THINKING:
            self._add_heartbeat(self.state.heartbeat)

    def _put_tool_row(self, row: Message, before: Message | None, position: int | None) -> None:
        if before is not None:
            self.window[self.window.index(before)] = row
            drafted = next((index for index, new in enumerate(self.draft.rows) if new.id == row.id), None)
            if drafted is None:
                self.draft.changed[row.id] = row
            else:
                self.draft.rows[drafted] = row
            return
        self.draft.rows.append(row)
        if position is None:
            self.window.append(row)
        else:
            self.draft.positions[row.id] = position
            answer = next(index for index, known in enumerate(self.window) if known.run_id == self.run.id)
            self.window.insert(answer + 1, row)

    def _ask_for_required_tools(self) -> None:
        missing = tool_rules.uncalled_required(self.spec.rules, self.spec.tool_names, self.state.history)
        self._add_heartbeat(rows.required_tools_reason(missing))

    def _add_heartbeat(self, reason: str) -> None:
        row_id = ids.derive("message", self.run.id, self.state.model_calls, "heartbeat")
        self._add_rows([rows.heartbeat_row(self._origin(), row_id, reason, self.spec.timezone)])

    def _origin(self, number: int | None = None) -> rows.Origin:
        step_id = self.step_id() if number is None else ids.derive("step", self.run.id, number)
        return rows.Origin(self.run.id, step_id, self.spec.model.handle, self.clock.now_us())

    def _change_step(self, *, usage: Usage | None = None, **changes: object) -> None:
        if self.step is None:
            return
        if usage is not None:
            changes["usage"] = self.step.usage + usage  # a step's tries are paid for together
            changes["cost_usd"] = self._cost(self.step.usage + usage)
        if self.measured.step_id == self.step.id:
            changes = self.measured.columns() | changes
        took_ns = self.clock.now_ns() - self._began_ns(self.step)
        trace_id = self.step.trace_id or self.trace_id
        self.step = msgspec.structs.replace(self.step, step_ns=took_ns, trace_id=trace_id, **changes)
        self.draft.steps[self.step.id] = self.step

    def _began_ns(self, step: Step) -> int:
        """By the monotonic clock. Of a step that this session did not begin, only the time of day is known."""
        if self.measured.step_id == step.id:
            return self.measured.began_ns
        if step.created_us == self.run.created_us:  # the first step of a run begins with it
            return self.received_ns
        return reading_at(self.clock, (step.step_start_ns or self.clock.now_us() * 1_000) // 1_000)

    def _estimated(self, reply: Reply) -> Usage:
        """What went in is paid for too, though nothing may have come out."""
        said = "".join(part.text for part in reply.spoken if isinstance(part, (Text, Reasoning)))
        said += "".join(call.name + call.arguments for call in reply.calls)
        return Usage(self.measured.prompt_guess, estimate_tokens(said), estimated=True)

    def _cost(self, usage: Usage) -> float | None:
        """Of a call of which nothing is known, nobody knows the cost either."""
        return cost(usage, self.measured.price) if usage != Usage() else None

    def _fail_step(self, failure: Failure) -> None:
        self._change_step(
            status="failed", stop_reason=failure.stop_reason, error_type=failure.kind, error_data=failure.data()
        )


def _asked_first(hold: Hold) -> dict[str, int]:
    """Where the return of each call belongs."""
    others = (held.call.id for held in hold.calls if not held.asks)
    return {call_id: place for place, call_id in enumerate((*hold.asked_ids, *others))}
