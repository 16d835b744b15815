"""The state machine, transition by transition. `test_machine` in tests/properties looks at it as a whole."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from holdfast.core import run
from holdfast.core.events import (
    AnyEvent,
    CancelAsked,
    CompactionFailed,
    JudgedCall,
    ModelFailed,
    ModelReplied,
    Parked,
    Resumed,
    ToolReturned,
    ToolsStarted,
)
from holdfast.core.hold import Hold
from holdfast.core.messages import Status, ToolCall
from holdfast.core.run import (
    MAX_COMPACTIONS,
    NEW,
    TRANSITIONS,
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
    plan,
    replay,
)
from holdfast.core.tool_rules import (
    Called,
    Children,
    Conditional,
    ContinueLoop,
    ExitLoop,
    MaxCount,
    RequiredBeforeExit,
    RunFirst,
)
from holdfast.core.usage import Usage
from holdfast.errors import BugError, IllegalEvent

from .machine import (
    BROKEN,
    COMPACTED,
    EVENTS,
    FAILURE,
    OVERFLOW,
    PHASES,
    WINDOW,
    Verdict,
    after,
    fold,
    hold_of,
    judged,
    parked,
    replied,
    resumed,
    returned,
    spec,
    started,
    started_tools,
)

EXIT = ExitLoop(tool_name="finish")
REQUIRED = RequiredBeforeExit(tool_name="note")
FULL = WINDOW  # more than nine tenths of the window


def test_there_is_one_event_of_every_kind_to_try() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(AnyEvent))


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_legal_exactly_where_the_table_says(phase: Phase, event: AnyEvent) -> None:
    allowed = TRANSITIONS.get((phase, type(event)))
    if allowed is None:
        with pytest.raises(IllegalEvent, match=f"cannot happen to a run that is {phase.value}"):
            apply(PHASES[phase], event)
    else:
        assert apply(PHASES[phase], event).phase in allowed


def test_a_transition_that_the_table_does_not_show_is_illegal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSITIONS, (Phase.THINKING, ModelReplied), frozenset({Phase.PARKING}))
    with pytest.raises(IllegalEvent, match="led from thinking to done"):
        apply(PHASES[Phase.THINKING], replied())


def test_a_run_that_has_not_started_has_neither_plan_nor_spec() -> None:
    with pytest.raises(BugError):
        plan(NEW)
    with pytest.raises(BugError):
        _ = NEW.frozen_spec


def test_replaying_nothing_gives_a_new_run() -> None:
    assert replay([]) == NEW


# --- continuation, row by row ----------------------------------------------------------------------------------------


def test_an_answer_without_a_call_ends_the_turn() -> None:
    assert plan(after(replied())) == Done("end_turn")


def test_an_empty_reply_ends_the_turn() -> None:
    assert plan(after(ModelReplied(None, (), "stop", Usage(), spoke=False))) == Done("end_turn")


def test_an_answer_cut_by_the_output_limit_ends_the_run_and_says_why() -> None:
    state = after(replied(finish="length"))
    assert plan(state) == Done("max_tokens_exceeded")
    assert state.error is not None
    assert state.error["error_type"] == "max_tokens_exceeded"


def test_a_call_in_a_reply_that_hit_the_output_limit_is_carried_out() -> None:
    assert isinstance(plan(after(replied(judged("note"), finish="length"))), CallTools)


def test_a_call_that_the_output_limit_cut_short_ends_the_run_once_all_have_returned() -> None:
    cut = JudgedCall(ToolCall("c-finish", "finish", '{"text": "half'), "refused", "unreadable")
    state = after(replied(judged("note"), cut, finish="length"), returned("finish"))
    assert isinstance(plan(state), CallTools)
    state = fold(state, [started_tools("note"), returned("note")])
    assert plan(state) == Done("max_tokens_exceeded")
    assert state.error is not None
    assert state.error["error_type"] == "max_tokens_exceeded"


def test_other_calls_that_cannot_be_read_or_are_refused_are_asked_for_again() -> None:
    garbled = JudgedCall(ToolCall("c-finish", "finish", '{"text": "half'), "refused", "unreadable")
    assert isinstance(plan(after(replied(garbled), returned("finish"))), CallModel)
    whole = judged("finish", "refused", note="a rule")
    assert isinstance(plan(after(replied(whole, finish="length"), returned("finish"))), CallModel)


def test_an_answer_is_not_the_end_while_a_required_tool_is_uncalled() -> None:
    assert isinstance(plan(after(replied(), given=spec(REQUIRED))), CallModel)


def test_a_required_tool_that_is_not_attached_is_not_waited_for() -> None:
    given = spec(RequiredBeforeExit(tool_name="unknown"))
    assert plan(after(replied(), given=given)) == Done("end_turn")


def test_an_answer_ends_the_turn_once_the_required_tool_was_called() -> None:
    state = after(replied(judged("note")), started_tools("note"), returned("note"), replied(), given=spec(REQUIRED))
    assert plan(state) == Done("end_turn")


@pytest.mark.parametrize("status", ["success", "error"])
def test_a_call_that_was_carried_out_leads_back_to_the_model_whether_or_not_it_succeeded(status: Status) -> None:
    back = ToolReturned("c-note", status, "")
    assert isinstance(plan(after(replied(judged("note")), started_tools("note"), back)), CallModel)


def test_a_refused_call_is_settled_without_being_run_and_leads_back_to_the_model() -> None:
    state = after(replied(judged("unknown", "refused", note="no such tool")))
    settle = plan(state)
    assert isinstance(settle, Settle)
    assert [call.note for call in settle.calls] == ["no such tool"]
    state = apply(state, returned("unknown"))
    assert isinstance(plan(state), CallModel)
    assert state.history == ()


def test_a_refused_call_is_settled_before_its_siblings_run() -> None:
    state = after(replied(judged("note"), judged("unknown", "refused")))
    settle = plan(state)
    assert isinstance(settle, Settle)
    assert [call.call.name for call in settle.calls] == ["unknown"]
    tools = plan(apply(state, returned("unknown")))
    assert isinstance(tools, CallTools)
    assert [call.call.name for call in tools.calls] == ["note"]


def test_a_terminal_tool_ends_the_turn() -> None:
    state = after(replied(judged("finish")), started_tools("finish"), returned("finish"), given=spec(EXIT))
    assert plan(state) == Done("tool_rule")


def test_a_terminal_tool_does_not_end_the_turn_while_a_required_tool_is_uncalled() -> None:
    given = spec(EXIT, REQUIRED)
    state = after(replied(judged("finish")), started_tools("finish"), returned("finish"), given=given)
    assert isinstance(plan(state), CallModel)


def test_one_terminal_tool_among_several_calls_ends_the_turn() -> None:
    state = after(
        replied(judged("note"), judged("finish")),
        started_tools("note", "finish"),
        returned("finish"),
        returned("note"),
        given=spec(EXIT),
    )
    assert plan(state) == Done("tool_rule")


def test_a_terminal_tool_that_was_refused_does_not_end_the_turn() -> None:
    state = after(replied(judged("finish", "refused")), returned("finish"), given=spec(EXIT))
    assert isinstance(plan(state), CallModel)


def test_a_tool_with_a_child_rule_or_a_continue_rule_leads_on() -> None:
    for rule in (Children(tool_name="note", children=("lookup",)), ContinueLoop(tool_name="note")):
        state = after(replied(judged("note")), started_tools("note"), returned("note"), given=spec(rule))
        assert isinstance(plan(state), CallModel)


def test_what_a_call_returned_decides_a_conditional_rule() -> None:
    rule = Conditional(tool_name="note", child_output_mapping={"yes": "lookup"}, default_child="finish")
    said = [
        after(replied(judged("note")), started_tools("note"), returned("note", text), given=spec(rule))
        for text in ("yes", "no")
    ]
    choices = [intent.choice.allowed for state in said if isinstance(intent := plan(state), CallModel)]
    assert choices == [("lookup",), ("finish",)]


def test_each_call_counts_once_towards_its_limit() -> None:
    given = spec(MaxCount(tool_name="note", max_count_limit=2))
    once = [replied(judged("note")), started_tools("note"), returned("note")]
    state = after(*once, given=given)
    offered = plan(state)
    assert isinstance(offered, CallModel)
    assert "note" in offered.choice.allowed
    offered = plan(fold(state, once))
    assert isinstance(offered, CallModel)
    assert "note" not in offered.choice.allowed


def test_invalid_prefilled_arguments_end_the_run_once_the_call_has_its_return() -> None:
    state = after(replied(judged("note", "fatal", note="Invalid prefilled tool arguments")))
    assert isinstance(plan(state), Settle)
    state = apply(state, returned("note"))
    assert plan(state) == Done("invalid_tool_call")
    assert state.error is not None
    assert state.error["error_type"] == "invalid_tool_call"
    assert state.error["detail"] == "INVALID_TOOL_CALL: Invalid prefilled tool arguments"


def test_a_fatal_call_without_a_note_still_says_that_something_was_invalid() -> None:
    state = after(replied(judged("note", "fatal")), returned("note"))
    assert state.error is not None
    assert state.error["message"]


# --- steps -----------------------------------------------------------------------------------------------------------


def test_the_run_ends_when_the_budget_of_steps_is_spent_and_it_wanted_to_go_on() -> None:
    turn = [replied(judged("note")), started_tools("note"), returned("note")]
    assert plan(after(*turn, *turn, given=spec(max_steps=2))) == Done("max_steps")


def test_a_stop_reason_of_the_last_step_stands() -> None:
    turn = [replied(judged("note")), started_tools("note"), returned("note")]
    assert plan(after(*turn, replied(), given=spec(max_steps=2))) == Done("end_turn")


def test_required_tools_do_not_keep_a_run_going_beyond_its_budget() -> None:
    assert plan(after(replied(), given=spec(REQUIRED, max_steps=1))) == Done("max_steps")


def test_an_approval_that_is_carried_out_uses_one_step() -> None:
    state = resumed(judged("guarded"), given=spec(max_steps=1))
    assert plan(fold(state, [started_tools("guarded"), returned("guarded")])) == Done("max_steps")
    state = resumed(judged("guarded"), given=spec(max_steps=2))
    assert isinstance(plan(fold(state, [started_tools("guarded"), returned("guarded")])), CallModel)


def test_model_calls_are_numbered_from_one_in_every_run() -> None:
    first = plan(after())
    assert isinstance(first, CallModel)
    second = plan(after(replied(judged("note")), started_tools("note"), returned("note")))
    assert isinstance(second, CallModel)
    assert (first.number, second.number) == (1, 2)
    carried_on = plan(fold(resumed(judged("guarded")), [started_tools("guarded"), returned("guarded")]))
    assert isinstance(carried_on, CallModel)
    assert carried_on.number == 1


def test_rules_and_the_parallel_setting_shape_the_model_call() -> None:
    plain, ruled = plan(after()), plan(after(given=spec(RunFirst(tool_name="note"))))
    assert isinstance(plain, CallModel)
    assert isinstance(ruled, CallModel)
    assert plain.parallel
    assert not plain.choice.forced
    assert not ruled.parallel
    assert ruled.choice.allowed == ("note",)
    assert ruled.choice.forced


# --- calls -----------------------------------------------------------------------------------------------------------


def test_all_calls_of_a_reply_are_carried_out_together() -> None:
    intent = plan(after(replied(judged("note"), judged("lookup"), judged("remember"))))
    assert isinstance(intent, CallTools)
    assert [call.call.name for call in intent.calls] == ["note", "lookup", "remember"]


def test_the_model_is_not_called_before_every_call_has_returned() -> None:
    state = after(replied(judged("note"), judged("lookup")), started_tools("note", "lookup"), returned("note"))
    assert state.phase is Phase.ACTING
    assert [call.call.name for call in state.open_calls] == ["lookup"]


def test_a_call_cannot_return_twice() -> None:
    state = after(replied(judged("note"), judged("lookup")), started_tools("note", "lookup"), returned("note"))
    with pytest.raises(IllegalEvent, match="c-note is not open"):
        apply(state, returned("note"))


def test_a_call_that_was_never_made_cannot_return() -> None:
    with pytest.raises(IllegalEvent, match="c-lookup is not open"):
        apply(after(replied(judged("note"))), returned("lookup"))


@pytest.mark.parametrize(
    "call", [judged("note", "refused"), judged("camera"), judged("note", "fatal")], ids=["refused", "client", "fatal"]
)
def test_a_call_that_may_not_run_cannot_be_started(call: JudgedCall) -> None:
    state = after(replied(judged("lookup"), call))
    with pytest.raises(IllegalEvent, match="may not be started"):
        apply(state, ToolsStarted((call.call.id,)))


def test_nothing_starts_any_more_once_the_run_is_ending() -> None:
    state = after(replied(judged("note")), CancelAsked())
    with pytest.raises(IllegalEvent, match="may not be started"):
        apply(state, started_tools("note"))


def test_two_calls_of_one_reply_cannot_share_an_id() -> None:
    with pytest.raises(IllegalEvent, match="same id"):
        after(replied(judged("note"), judged("note")))


def test_after_a_crash_a_started_call_is_repeated_only_if_that_is_safe() -> None:
    state = after(
        replied(judged("note"), judged("lookup"), judged("remember")), started_tools("note", "lookup", "remember")
    )
    settle = plan(state)
    assert isinstance(settle, Settle)
    assert [(call.call.name, call.status) for call in settle.calls] == [("note", "started")]
    again = plan(apply(state, returned("note")))
    assert isinstance(again, CallTools)
    assert [call.call.name for call in again.calls] == ["lookup", "remember"]
    apply(apply(state, returned("note")), started_tools("lookup", "remember"))


def test_a_client_tool_that_reaches_the_server_is_settled_not_run() -> None:
    intent = plan(resumed(judged("camera")))
    assert isinstance(intent, Settle)


def test_a_tool_that_vanished_while_its_approval_was_pending_is_settled_not_run() -> None:
    assert isinstance(plan(resumed(judged("unknown"))), Settle)


# --- approval --------------------------------------------------------------------------------------------------------


def test_a_call_that_needs_a_decision_parks_the_run_and_its_siblings_wait() -> None:
    state = after(replied(judged("note"), judged("guarded", "held"), judged("unknown", "refused", note="no")))
    intent = plan(state)
    assert isinstance(intent, Park)
    hold = hold_of(state)
    assert [(held.call.name, held.asks, held.note) for held in hold.calls] == [
        ("note", False, None),
        ("guarded", True, None),
        ("unknown", False, "no"),
    ]
    waiting = apply(state, Parked(hold))
    assert plan(waiting) == Wait(hold)


def test_a_hold_remembers_which_calls_only_the_client_can_answer() -> None:
    state = after(replied(judged("camera", "held"), judged("guarded", "held")))
    assert [held.client for held in hold_of(state).calls] == [True, False]


def test_a_run_cannot_be_parked_on_calls_it_did_not_make() -> None:
    other = after(replied(judged("guarded", "held", call_id="c-other")))
    with pytest.raises(IllegalEvent, match="not about the calls"):
        apply(PHASES[Phase.PARKING], Parked(hold_of(other)))


def test_a_decided_run_ends_and_another_carries_on() -> None:
    assert plan(apply(parked(), Resumed("run-2"))) == Done("requires_approval")


def test_an_approved_call_and_its_siblings_run_in_the_run_that_carries_on() -> None:
    state = resumed(judged("note"), judged("guarded"))
    intent = plan(state)
    assert isinstance(intent, CallTools)
    assert [call.call.name for call in intent.calls] == ["note", "guarded"]
    assert state.step_id == "step-paused"


@pytest.mark.parametrize("verdict", ["denied", "answered", "refused"])
def test_a_call_that_is_not_approved_is_settled_and_the_run_goes_on_even_from_a_terminal_tool(verdict: Verdict) -> None:
    call = judged("finish", verdict)
    state = resumed(call, given=spec(EXIT))
    assert isinstance(plan(state), Settle)
    assert isinstance(plan(apply(state, returned("finish"))), CallModel)


def test_a_client_return_counts_as_a_call_for_the_rules() -> None:
    state = apply(resumed(judged("camera", "answered")), returned("camera", "snap"))
    assert state.history == (Called("camera", "snap"),)


def test_an_approved_terminal_tool_ends_the_turn() -> None:
    events = [started_tools("finish"), returned("finish")]
    assert plan(fold(resumed(judged("finish"), given=spec(EXIT)), events)) == Done("tool_rule")


def test_messages_that_came_with_the_approval_are_answered_even_after_a_terminal_tool() -> None:
    state = resumed(judged("finish"), given=spec(EXIT), return_position=7)
    state = fold(state, [started_tools("finish"), returned("finish")])
    assert isinstance(plan(state), CallModel)
    assert state.return_position is None


def test_a_new_reply_belongs_to_a_step_of_its_own_after_a_resumed_one() -> None:
    state = fold(resumed(judged("guarded")), [started_tools("guarded"), returned("guarded"), replied()])
    assert state.step_id is None


@pytest.mark.parametrize("verdict", ["held", "fatal"])
def test_a_run_cannot_begin_with_a_call_that_nobody_has_decided_on(verdict: Verdict) -> None:
    with pytest.raises(IllegalEvent, match="nobody has decided"):
        replay([started(None, judged("guarded", verdict))])


# --- cancel and failure, in every phase ------------------------------------------------------------------------------


def test_a_cancel_while_the_model_is_called_ends_the_run_at_once() -> None:
    state = apply(after(), CancelAsked(usage=Usage(5, 2)))
    assert plan(state) == Done("cancelled")
    assert state.usage == Usage(5, 2)


def test_a_cancel_while_tools_run_settles_the_open_calls_first() -> None:
    state = after(replied(judged("note"), judged("lookup")), started_tools("note", "lookup"), returned("note"))
    state = apply(state, CancelAsked())
    intent = plan(state)
    assert isinstance(intent, Settle)
    assert [call.call.name for call in intent.calls] == ["lookup"]
    assert plan(apply(state, returned("lookup"))) == Done("cancelled")


def test_a_cancel_before_the_run_is_parked_settles_its_calls() -> None:
    state = apply(PHASES[Phase.PARKING], CancelAsked())
    assert isinstance(plan(state), Settle)
    assert plan(apply(state, returned("guarded"))) == Done("cancelled")


def test_a_cancel_of_a_parked_run_settles_every_call_siblings_included() -> None:
    state = apply(parked(judged("note"), judged("guarded", "held")), CancelAsked())
    intent = plan(state)
    assert isinstance(intent, Settle)
    assert [call.call.name for call in intent.calls] == ["note", "guarded"]
    assert plan(fold(state, [returned("guarded"), returned("note")])) == Done("cancelled")


def test_a_cancel_of_a_run_that_has_ended_changes_nothing() -> None:
    done = PHASES[Phase.DONE]
    assert apply(done, CancelAsked(usage=Usage(1, 1))) is done


def test_a_cancel_drops_the_compaction_that_was_due() -> None:
    state = apply(after(replied(judged("note"), tokens=FULL), started_tools("note"), returned("note")), CancelAsked())
    assert plan(state) == Done("cancelled")
    assert state.compact is None


def test_a_second_cancel_while_calls_are_being_settled_is_the_same_cancel() -> None:
    state = fold(after(replied(judged("note"))), [CancelAsked(), CancelAsked()])
    assert plan(apply(state, returned("note"))) == Done("cancelled")


def test_a_failure_of_ours_while_thinking_ends_the_run_with_its_error() -> None:
    state = apply(after(), BROKEN)
    assert plan(state) == Done("error")
    assert state.error == FAILURE


@pytest.mark.parametrize("phase", [Phase.ACTING, Phase.PARKING])
def test_a_failure_of_ours_with_open_calls_settles_them_first(phase: Phase) -> None:
    state = apply(PHASES[phase], BROKEN)
    intent = plan(state)
    assert isinstance(intent, Settle)
    state = fold(state, [returned(call.call.name) for call in intent.calls])
    assert plan(state) == Done("error")
    assert state.error == FAILURE


def test_a_cancel_beats_an_earlier_failure_and_a_later_one() -> None:
    acting = PHASES[Phase.ACTING]
    for order in ([BROKEN, CancelAsked()], [CancelAsked(), BROKEN]):
        state = apply(fold(acting, order), returned("note"))
        assert plan(state) == Done("cancelled")
        assert state.error is None


def test_a_model_failure_ends_the_run_with_its_own_reason() -> None:
    state = apply(after(), ModelFailed("llm_api_error", FAILURE))
    assert plan(state) == Done("llm_api_error")
    assert state.error == FAILURE


# --- trying again ----------------------------------------------------------------------------------------------------


def failed_try(retry_in_ms: int = 200, **fields: Any) -> ModelFailed:
    return ModelFailed("llm_api_error", FAILURE, retry_in_ms=retry_in_ms, **fields)


def trying(*events: AnyEvent, retries: int = 3) -> RunState:
    return after(*events, given=spec(retries=retries))


def test_a_failed_try_that_says_when_to_try_again_is_followed_by_another_of_the_same_call() -> None:
    intent = plan(trying(failed_try(200), failed_try(450)))
    assert isinstance(intent, CallModel)
    assert (intent.number, intent.attempt, intent.pause_ms) == (1, 3, 450)


def test_a_first_try_is_not_waited_for() -> None:
    intent = plan(trying())
    assert isinstance(intent, CallModel)
    assert (intent.attempt, intent.pause_ms) == (1, 0)


def test_a_failure_that_names_no_next_try_ends_the_run_however_many_are_left() -> None:
    state = trying(failed_try(), ModelFailed("llm_api_error", FAILURE))
    assert plan(state) == Done("llm_api_error")
    assert state.error == FAILURE


def test_a_run_has_no_more_tries_than_it_was_told_at_its_start() -> None:
    state = trying(failed_try(), failed_try(), retries=2)
    with pytest.raises(IllegalEvent, match="2 times"):
        apply(state, failed_try())
    with pytest.raises(IllegalEvent):
        apply(trying(retries=0), failed_try())


def test_every_model_call_has_its_own_tries() -> None:
    state = trying(failed_try(), replied(judged("note")), started_tools("note"), returned("note"), retries=1)
    intent = plan(state)
    assert isinstance(intent, CallModel)
    assert (intent.number, intent.attempt, intent.pause_ms) == (2, 1, 0)
    assert isinstance(plan(apply(state, failed_try())), CallModel)


def test_tries_are_counted_over_a_compaction_and_what_was_waited_for_is_not_waited_for_again() -> None:
    intent = plan(trying(failed_try(), OVERFLOW, COMPACTED))
    assert isinstance(intent, CallModel)
    assert (intent.attempt, intent.pause_ms) == (2, 0)


def test_what_failed_tries_cost_is_counted_and_says_nothing_of_the_context() -> None:
    state = trying(failed_try(usage=Usage(7, 3)), replied(tokens=10))
    assert state.usage.total_tokens == 20
    assert state.context_tokens == 10


def test_a_cancel_while_the_next_try_is_waited_for_ends_the_run() -> None:
    assert plan(apply(trying(failed_try(60_000)), CancelAsked())) == Done("cancelled")


# --- compaction ------------------------------------------------------------------------------------------------------


def test_a_reply_that_fills_the_window_is_followed_by_compaction_before_the_next_call() -> None:
    state = after(replied(judged("note"), tokens=FULL), started_tools("note"), returned("note"))
    assert plan(state) == Compact("post_step_context_check")
    state = apply(state, COMPACTED)
    assert isinstance(plan(state), CallModel)
    assert state.context_tokens == COMPACTED.context_tokens


def test_tools_run_before_the_window_is_compacted() -> None:
    assert isinstance(plan(after(replied(judged("note"), tokens=FULL))), CallTools)


@pytest.mark.parametrize("outcome", [COMPACTED, CompactionFailed("llm_api_error", FAILURE)], ids=["done", "failed"])
def test_a_turn_that_is_over_ends_as_it_would_have_once_compaction_is_done_or_has_failed(outcome: AnyEvent) -> None:
    state = after(replied(tokens=FULL))
    assert plan(state) == Compact("post_step_context_check")
    state = apply(state, outcome)
    assert plan(state) == Done("end_turn")
    assert state.error is None


@pytest.mark.parametrize("outcome", [COMPACTED, CompactionFailed("llm_api_error", FAILURE)], ids=["done", "failed"])
def test_what_was_wrong_with_the_answer_is_not_forgotten_over_compaction(outcome: AnyEvent) -> None:
    state = apply(after(replied(finish="length", tokens=FULL)), outcome)
    assert plan(state) == Done("max_tokens_exceeded")
    assert state.error is not None


def test_a_failed_compaction_after_a_step_does_not_stop_a_run_that_can_go_on() -> None:
    state = after(replied(judged("note"), tokens=FULL), started_tools("note"), returned("note"))
    assert isinstance(plan(apply(state, CompactionFailed("llm_api_error", FAILURE))), CallModel)


def test_an_overflow_is_compacted_and_retried_three_times_and_no_more() -> None:
    state = after()
    for _ in range(MAX_COMPACTIONS):
        state = apply(state, OVERFLOW)
        assert plan(state) == Compact("context_window_exceeded")
        state = apply(state, COMPACTED)
        assert isinstance(plan(state), CallModel)
    assert plan(apply(state, OVERFLOW)) == Done("error")
    assert state.compactions == MAX_COMPACTIONS == 3


def test_every_model_call_has_its_own_three_retries() -> None:
    state = fold(after(), [OVERFLOW, COMPACTED] * 3)
    state = fold(state, [replied(judged("note")), started_tools("note"), returned("note")])
    assert plan(apply(state, OVERFLOW)) == Compact("context_window_exceeded")


def test_an_overflow_that_cannot_be_compacted_ends_the_run() -> None:
    state = fold(after(), [OVERFLOW, CompactionFailed("context_window_overflow_in_system_prompt", FAILURE)])
    assert plan(state) == Done("context_window_overflow_in_system_prompt")
    assert state.error == FAILURE


# --- usage -----------------------------------------------------------------------------------------------------------


def test_tokens_are_summed_over_the_run_and_the_context_is_that_of_the_last_call() -> None:
    state = after(replied(judged("note"), tokens=10), started_tools("note"), returned("note"), replied(tokens=20))
    assert state.usage.total_tokens == 30
    assert state.context_tokens == 20
    assert state.model_calls == 2


def test_a_hold_without_calls_cannot_be_the_hold_of_a_run() -> None:
    with pytest.raises(IllegalEvent):
        apply(PHASES[Phase.PARKING], Parked(Hold("message-request", "step-1", ())))


def test_a_parked_run_without_a_hold_has_no_next_step() -> None:
    broken = run.RunState(Phase.PARKED)
    with pytest.raises(BugError, match="no next step"):
        plan(broken)


def test_a_run_that_is_done_without_a_reason_has_no_next_step() -> None:
    with pytest.raises(BugError, match="no next step"):
        plan(run.RunState(Phase.DONE))
