"""Every way that two runs, two tools, one approval, one crash and one cancel can go. All of them, not a sample."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from holdfast.core.calls import judge, resume
from holdfast.core.events import (
    AnyEvent,
    CancelAsked,
    JudgedCall,
    ModelReplied,
    Parked,
    Resumed,
    RunStarted,
    ToolReturned,
    ToolsStarted,
)
from holdfast.core.hold import Hold
from holdfast.core.messages import Approve, Deny, ToolCall
from holdfast.core.run import (
    NEW,
    CallModel,
    CallTools,
    Done,
    Park,
    Phase,
    RunState,
    Settle,
    Wait,
    apply,
    held_calls,
    plan,
)
from holdfast.core.usage import Usage

from ..core.machine import spec

pytestmark = pytest.mark.slow

SPEC = spec(max_steps=2)
REPLIES = ((), ("note",), ("lookup",), ("guarded",), ("note", "lookup"), ("note", "guarded"), ("lookup", "guarded"))
ONCE = ("note", "guarded")


class World(msgspec.Struct, frozen=True):
    """A run, the process that drives it, and what has happened around them so far."""

    state: RunState
    running: tuple[str, ...] = ()  # calls whose tools run right now, in this process
    begun: tuple[str, ...] = ()  # every start of a tool there was
    returned: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    approved: tuple[str, ...] = ()
    turns: int = 1
    crashed: bool = False
    cancelled: bool = False


def test_every_small_world_comes_to_a_good_end() -> None:
    first = World(apply(NEW, RunStarted(SPEC, ("m1",))))
    seen, waiting, ends = {msgspec.json.encode(first)}, [first], set[str]()
    while waiting:
        world = waiting.pop()
        check(world)
        following = list(steps(world))
        if not following:
            end = plan(world.state)
            assert isinstance(end, (Done, Wait)), "a world that stops has ended, or waits for somebody"
            ends.add(end.stop_reason if isinstance(end, Done) else "waits")
        for after in following:
            key = msgspec.json.encode(after)
            if key not in seen:
                seen.add(key)
                waiting.append(after)
    assert ends == {"end_turn", "max_steps", "cancelled", "waits"}
    assert len(seen) > 5_000, "the walk has lost its way"


def check(world: World) -> None:
    assert len(set(world.returned)) == len(world.returned), "no call returns twice"
    for call_id in set(world.begun):
        name, times = call_id.partition(":")[0], world.begun.count(call_id)
        assert times == 1 or (name == "lookup" and world.crashed and times == 2), "nothing is repeated silently"
        assert name != "guarded" or call_id in world.approved, "nothing guarded runs unasked"
    if isinstance(plan(world.state), CallModel) or world.state.phase is Phase.DONE:
        waiting = {call.call.id for call in world.state.hold.calls} if world.state.hold else set[str]()
        assert set(world.made) - waiting <= set(world.returned), "every call has its return before the next model call"
    if world.cancelled and world.state.phase is Phase.DONE and world.turns == 1:
        assert world.state.stop_reason in ("cancelled", "requires_approval")


def steps(world: World) -> Iterator[World]:
    yield from drive(world)
    if not world.crashed and world.state.phase is not Phase.DONE:
        # What was in flight is gone; what was journalled is not. A parked run has no process to lose.
        yield change(world, crashed=True, running=())
    if not world.cancelled and world.state.phase is not Phase.DONE:
        yield change(happen(world, CancelAsked()), cancelled=True, running=())


def drive(world: World) -> Iterator[World]:
    if world.running:
        for call_id in world.running:
            left = tuple(each for each in world.running if each != call_id)
            yield change(give_back(world, call_id), running=left)
        return
    match plan(world.state):
        case CallModel() as intent:
            for names in REPLIES:
                yield reply(world, intent, names)
        case CallTools(calls):
            ids = tuple(call.call.id for call in calls)
            yield change(happen(world, ToolsStarted(ids)), running=ids, begun=(*world.begun, *ids))
        case Settle(calls):
            yield give_back(world, *(call.call.id for call in calls))
        case Park():
            yield happen(world, Parked(Hold("request", "step", held_calls(world.state))))
        case Wait(hold) if world.turns == 1:
            yield from answer(world, hold)
        case Done() if world.turns == 1:
            yield change(world, state=apply(NEW, RunStarted(SPEC, ("m2",))), turns=2)
        case _:
            pass


def reply(world: World, intent: CallModel, names: tuple[str, ...]) -> World:
    number = len(world.made)
    calls = [ToolCall(f"{name}:{number + index}", name, "{}") for index, name in enumerate(names)]
    judged = judge(SPEC, intent.choice, calls, parallel=intent.parallel)
    after = happen(world, ModelReplied("m", judged, "stop", Usage(1, 1)))
    return change(after, made=(*world.made, *(call.id for call in calls)))


def answer(world: World, hold: Hold) -> Iterator[World]:
    assert plan(apply(world.state, Resumed("run-2"))) == Done("requires_approval")
    for decide in (Approve, Deny):
        decisions = [decide(call_id) for call_id in hold.asked_ids]
        calls: tuple[JudgedCall, ...] = resume(hold, decisions)
        state = apply(NEW, RunStarted(SPEC, ("m2",), calls, hold.step_id))
        approved = (*world.approved, *hold.asked_ids) if decide is Approve else world.approved
        yield change(world, state=state, turns=2, approved=approved)


def give_back(world: World, *call_ids: str) -> World:
    for call_id in call_ids:
        world = change(happen(world, ToolReturned(call_id, "success")), returned=(*world.returned, call_id))
    return world


def happen(world: World, event: AnyEvent) -> World:
    return change(world, state=apply(world.state, event))


def change(world: World, **changes: object) -> World:
    return msgspec.structs.replace(world, **changes)
