from __future__ import annotations

from holdfast.core.calls import Calls, OpenCall
from holdfast.core.run import apply

from .machine import after, call, judged, replied, returned, started_tools

MANY = 5_000


def test_a_return_copies_none_of_the_other_calls_of_its_step() -> None:
    before = after(replied(judged("note", call_id="c-a"), judged("note", call_id="c-b")), started_tools("a", "b"))
    then = apply(before, returned("a"))
    assert then.calls.made is before.calls.made
    assert then.calls.places is before.calls.places


def test_the_returns_of_thousands_of_calls_are_folded_one_by_one() -> None:
    names = [str(number) for number in range(MANY)]
    state = after(replied(*(judged("note", call_id=f"c-{name}") for name in names)), started_tools(*names))
    for name in reversed(names):
        assert state.calls.any_running
        state = apply(state, returned(name))
    assert state.calls.all_returned
    assert not state.calls.any_running
    assert len(state.history) == MANY


def test_a_call_is_shown_as_it_is_now() -> None:
    made = Calls.of([OpenCall(call("note", name), "allowed", note=name) for name in "abc"])
    now = made.start(["a", "b"]).take_return("a", ran=True)
    assert [(each.call.id, each.status, each.ran) for each in now] == [
        ("a", "returned", True),
        ("b", "started", False),
        ("c", "allowed", False),
    ]
    assert [each.call.id for each in now.still_open] == ["b", "c"]
    assert now.find_open("a") is None
    assert now.find_open("nobody") is None
    assert [each.status for each in made] == ["allowed"] * 3, "an earlier state stays as it was"
