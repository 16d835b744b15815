"""The pure machine under random legal events: what must hold of every run, whatever happens to it."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core import transitions
from holdfast.core.calls import judge, resume
from holdfast.core.compaction import cut
from holdfast.core.deltas import FinishReason
from holdfast.core.events import (
    AnyEvent,
    CancelAsked,
    Compacted,
    CompactionFailed,
    JudgedCall,
    ModelFailed,
    ModelReplied,
    Parked,
    Resumed,
    RunFailed,
    RunStarted,
    ToolReturned,
    ToolsStarted,
)
from holdfast.core.hold import Hold
from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    Decision,
    Deny,
    Message,
    Role,
    Status,
    Summary,
    Text,
    ToolCall,
    ToolReturn,
)
from holdfast.core.model_history import history
from holdfast.core.records import CompactionSettings
from holdfast.core.run import (
    NEW,
    CallModel,
    CallTools,
    Compact,
    Done,
    Park,
    Phase,
    RunState,
    Settle,
    Wait,
    apply,
    held_calls,
    plan,
    replay,
)
from holdfast.core.tool_rules import ExitLoop, MaxCount, RequiredBeforeExit, Rule, RunFirst
from holdfast.core.usage import Usage
from holdfast.errors import IllegalEvent

from ..core.machine import EFFECTS, EVENTS, FAILURE, WINDOW, spec
from ..core.rows import MODEL, assert_well_formed
from ..effort import examples

pytestmark = pytest.mark.slow

RULES: tuple[Rule, ...] = (
    ExitLoop(tool_name="finish"),
    RequiredBeforeExit(tool_name="note"),
    RunFirst(tool_name="lookup"),
    MaxCount(tool_name="note", max_count_limit=2),
)
NAMES = st.sampled_from([*EFFECTS, "unknown"])
FINISH = st.sampled_from(["stop", "length"])
STATUS = st.sampled_from(["success", "error"])
_decoder = msgspec.json.Decoder(AnyEvent)


class Machine(RuleBasedStateMachine):
    """A thread: one run after another, each journalled, each leaving rows."""

    def __init__(self) -> None:
        super().__init__()
        self.state: RunState = NEW
        self.journal: list[AnyEvent] = []
        self.window: list[Message] = []
        self.runs = 0
        self.made = 0
        self.written = 0
        self.decided = Counter[str]()  # by call id: approved

    @initialize(chosen=st.sets(st.sampled_from(RULES), max_size=2), max_steps=st.integers(1, 6), parallel=st.booleans())
    def begin(self, chosen: set[Rule], max_steps: int, parallel: bool) -> None:
        self.spec = spec(*sorted(chosen, key=repr), max_steps=max_steps, parallel=parallel, retries=max_steps % 3)
        self.start(())

    def start(self, answer: tuple[Decision, ...]) -> None:
        self.runs += 1
        hold, self.journal, self.state = self.state.hold, [], NEW
        if answer and hold is not None:
            self.window.append(self.row("approval", *answer))
            self.happen(RunStarted(self.spec, (self.window[-1].id,), resume(hold, answer), hold.step_id))
        else:
            self.window.append(self.row("user", Text("hello")))
            self.happen(RunStarted(self.spec, (self.window[-1].id,)))

    def row(self, role: Role, *parts: AnyPart) -> Message:
        self.written += 1
        return Message(id=f"m{self.written}", role=role, parts=parts, created_us=0)

    def happen(self, event: AnyEvent) -> None:
        self.state = apply(self.state, event)
        self.journal.append(event)

    def next(self) -> object:
        return plan(self.state)

    # --- what a model may do -----------------------------------------------------------------------------------------

    @precondition(lambda self: isinstance(self.next(), CallModel))
    @rule(names=st.lists(NAMES, max_size=4), full=st.booleans(), finish=FINISH, data=st.data())
    def reply(self, names: list[str], full: bool, finish: FinishReason, data: st.DataObject) -> None:
        intent = self.next()
        assert isinstance(intent, CallModel)
        arguments = st.sampled_from(["{}", '{"broken'])
        calls: list[ToolCall] = []
        for name in names:
            self.made += 1
            calls.append(ToolCall(f"c{self.made}", name, data.draw(arguments)))
        judged = judge(self.spec, intent.choice, calls, parallel=intent.parallel)
        spoken = (Text("words"),) if data.draw(st.booleans()) else ()
        self.written += 1
        origin = self.origin(intent.number)
        written = transitions.reply_rows(origin, f"r{self.written}", f"h{self.written}", spoken, judged)
        self.window += written
        usage = Usage(WINDOW if full else 5, 1)
        self.happen(ModelReplied(written[0].id if written else None, judged, finish, usage, bool(spoken)))

    @precondition(lambda self: isinstance(self.next(), CallModel))
    @rule(overflow=st.booleans())
    def model_fails(self, overflow: bool) -> None:
        self.happen(ModelFailed("llm_api_error", FAILURE, overflow))

    @precondition(lambda self: isinstance(self.next(), CallModel))
    @rule(pause_ms=st.integers(0, 60_000))
    def try_fails(self, pause_ms: int) -> None:
        before = self.next()
        assert isinstance(before, CallModel)
        failed = ModelFailed("llm_api_error", FAILURE, retry_in_ms=pause_ms, usage=Usage(3, 1))
        if before.attempt > self.spec.retries:
            with pytest.raises(IllegalEvent):
                apply(self.state, failed)
            return
        self.happen(failed)
        again = msgspec.structs.replace(before, attempt=before.attempt + 1, pause_ms=pause_ms)
        assert self.next() == again, "another try is the same call"

    @precondition(lambda self: isinstance(self.next(), Compact))
    @rule(worked=st.booleans())
    def compact(self, worked: bool) -> None:
        if not worked:
            self.happen(CompactionFailed("llm_api_error", FAILURE))
            return
        place = cut(self.window, CompactionSettings(mode="all"), context_window=WINDOW)
        self.window = [self.row("summary", Summary("before")), *self.window[place:]]
        self.happen(Compacted(self.window[0].id, place, 10))

    # --- what tools and people may do --------------------------------------------------------------------------------

    @precondition(lambda self: isinstance(self.next(), CallTools))
    @rule(data=st.data())
    def start_tools(self, data: st.DataObject) -> None:
        intent = self.next()
        assert isinstance(intent, CallTools)
        ids = [call.call.id for call in intent.calls]
        self.happen(ToolsStarted(tuple(data.draw(st.permutations(ids))[: data.draw(st.integers(1, len(ids)))])))

    @precondition(lambda self: any(call.status == "started" for call in self.state.open_calls))
    @rule(data=st.data(), status=STATUS)
    def tool_returns(self, data: st.DataObject, status: Status) -> None:
        running = [call for call in self.state.open_calls if call.status == "started"]
        self.give_back(data.draw(st.sampled_from(running)).call, status)

    @precondition(lambda self: isinstance(self.next(), Settle))
    @rule()
    def settle(self) -> None:
        intent = self.next()
        assert isinstance(intent, Settle)
        if self.state.hold is not None:
            self.window.append(transitions.denial_row(self.origin(), f"d{self.runs}", self.state.hold))
        for call in intent.calls:
            self.give_back(call.call, "error")

    @precondition(lambda self: isinstance(self.next(), Park))
    @rule()
    def park(self) -> None:
        request = next(row for row in reversed(self.window) if row.is_approval_request)
        self.happen(Parked(Hold(request.id, self.step(), held_calls(self.state))))

    @precondition(lambda self: isinstance(self.next(), Wait))
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        hold = self.state.hold
        assert hold is not None
        answer: list[Decision] = []
        for held in hold.calls:
            if held.asks:
                kinds = [Deny(held.call.id), ClientReturn(held.call.id, "done")]
                answer.append(data.draw(st.sampled_from([*kinds, Approve(held.call.id)] if not held.client else kinds)))
        self.decided.update(decision.call_id for decision in answer if isinstance(decision, Approve))
        self.happen(Resumed("run-next"))
        assert self.next() == Done("requires_approval")
        self.start(tuple(answer))

    @precondition(lambda self: self.state.phase not in (Phase.NEW, Phase.DONE))
    @rule()
    def cancel(self) -> None:
        self.happen(CancelAsked())

    @precondition(lambda self: self.state.phase in (Phase.THINKING, Phase.ACTING, Phase.PARKING))
    @rule()
    def something_breaks(self) -> None:
        was_cancelled = self.state.ending == "cancelled"
        self.happen(RunFailed("error", FAILURE))
        assert self.state.ending == "cancelled" or not was_cancelled

    @precondition(lambda self: self.state.phase is Phase.DONE)
    @rule()
    def next_turn(self) -> None:
        self.start(())

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def planning_changes_nothing(self) -> None:
        if self.state.phase is not Phase.NEW:
            assert plan(self.state) == plan(self.state)

    @invariant()
    def the_journal_tells_the_state(self) -> None:
        written = [_decoder.decode(msgspec.json.encode(event)) for event in self.journal]
        assert written == self.journal
        assert replay(written) == self.state
        middle = len(written) // 2
        state = replay(written[:middle])
        for event in written[middle:]:
            state = apply(state, event)
        assert state == self.state

    @invariant()
    def done_is_absorbing(self) -> None:
        if self.state.phase is not Phase.DONE:
            return
        for event in EVENTS:
            if isinstance(event, CancelAsked):
                assert apply(self.state, event) is self.state
            else:
                with pytest.raises(IllegalEvent):
                    apply(self.state, event)

    @invariant()
    def steps_stay_within_the_limit(self) -> None:
        if self.state.spec is not None:
            assert self.state.iterations <= self.state.spec.max_steps
            assert self.state.model_calls <= self.state.iterations
            if isinstance(self.next(), CallModel):
                assert self.state.iterations < self.state.spec.max_steps

    @invariant()
    def every_call_returns_once_before_the_model_is_called_again(self) -> None:
        returned = Counter(event.call_id for event in self.journal if isinstance(event, ToolReturned))
        assert all(count == 1 for count in returned.values())
        made = [call.call.id for event in self.journal for call in _calls(event)]
        if self.state.phase in (Phase.THINKING, Phase.DONE) and self.state.stop_reason != "requires_approval":
            assert sorted(returned) == sorted(made)

    @invariant()
    def nothing_guarded_starts_without_a_decision(self) -> None:
        names = {call.call.id: call.call.name for event in self.journal for call in _calls(event)}
        for event in self.journal:
            if isinstance(event, ToolsStarted):
                run_here = {call_id: names[call_id] for call_id in event.call_ids}
                assert not {"camera", "unknown"} & set(run_here.values())
                assert all(self.decided[call_id] for call_id, name in run_here.items() if name == "guarded")

    @invariant()
    def history_is_well_formed(self) -> None:
        assert_well_formed(history(self.window, model_handle=MODEL, context_window=WINDOW))

    def step(self) -> str:
        return self.state.step_id or f"s{self.runs}-{max(1, self.state.model_calls)}"

    def origin(self, number: int | None = None) -> transitions.Origin:
        step = self.step() if number is None else f"s{self.runs}-{number}"
        return transitions.Origin(f"run{self.runs}", step, MODEL, 0)

    def give_back(self, call: ToolCall, status: Status) -> None:
        row_id, answer = f"t{self.runs}-{self.step()}", ToolReturn(call.id, call.name, status, "out")
        known = next((row for row in self.window if row.id == row_id), None)
        row = transitions.tool_row(
            self.origin(), row_id, known.returns if known else (), [answer], self.state.calls.places
        )
        if known is None:
            self.window.append(row)
        else:
            self.window[self.window.index(known)] = row
        self.happen(ToolReturned(call.id, answer.status, "out"))


def _calls(event: AnyEvent) -> tuple[JudgedCall, ...]:
    match event:
        case ModelReplied():
            return event.calls
        case RunStarted():
            return event.resumes
        case _:
            return ()


TestMachine = Machine.TestCase
TestMachine.settings = examples(60, steps=40)
