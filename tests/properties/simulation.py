"""The real store and the real engine, driven at random: messages, decisions, cancels, crashes, restarts, reattachments.

After every step the database is held to the ten invariants and to a small model of what people were promised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.actions.messages.send import Accepted
from holdfast.core.failures import RetryPolicy
from holdfast.core.frames import Frame
from holdfast.core.messages import Approve, ClientReturn, Decision, Deny, text_of
from holdfast.engine.streams import RunStream, without_abandoned
from holdfast.errors import Busy, NothingToCancel, PendingApproval

from ..invariants import Snapshot, assert_invariants, stream_violations
from ..scenario import Crash, Node, World, eventually, world_at

T = TypeVar("T")
Kind = Literal[
    "plain", "note", "lookup", "guarded", "mixed", "slow", "slow_lookup", "stall", "midway", "error", "retry"
]
TEXTS: dict[Kind, str] = {
    "plain": "hello",
    "note": "call the note tool",
    "lookup": "call the lookup tool, then call the note tool",
    "guarded": "call the guarded tool",
    "mixed": "call the guarded tool and the note tool and the lookup tool",
    "slow": "call the slow tool and the slow_lookup tool",
    "slow_lookup": "call the slow_lookup tool",
    "stall": "[[stall]] hello",
    "midway": "[[stall_after:4]] hello",
    "error": "[[error:server]] hello",
    "retry": "[[error:overloaded]] [[error_after:2]] [[error_times:1]] hello",
}
# How a run of each kind ends when it is left alone; None: it waits, for its tools to be let go or for a cancel.
ENDS: dict[Kind, str | None] = {
    "plain": "end_turn",
    "note": "end_turn",
    "lookup": "end_turn",
    "guarded": "requires_approval",
    "mixed": "requires_approval",
    "slow": None,
    "slow_lookup": None,
    "stall": None,
    "midway": None,
    "error": "llm_api_error",
    "retry": "end_turn",
}
KINDS = st.sampled_from(list(TEXTS))
WHEN = st.sampled_from(["before", "after"])


class Talk(msgspec.Struct):
    """What one thread's people know of it."""

    thread_id: str
    said: list[str] = []
    kind: Kind = "plain"  # of the run that is under way
    active: str | None = None
    pending: bool = False


class Simulation(RuleBasedStateMachine):
    """`url` gives the address of a fresh database."""

    speaks_through_tool = False

    def __init__(self, url: Callable[[], Awaitable[str]]) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_expected)
        self.stack = AsyncExitStack()
        self.crashes = 0
        self.approved: set[str] = set()
        self.streams: dict[str, RunStream] = {}  # what listeners were shown who were never cut off
        self.ends: dict[str, str] = {}
        self.wait(self.open(url))

    async def open(self, url: Callable[[], Awaitable[str]]) -> None:
        self.world: World = await self.stack.enter_async_context(world_at(await url()))
        self.world.retry_policy = RetryPolicy(retries=8, first_pause_s=0.0)  # each process' model fails anew
        if self.speaks_through_tool:
            await self.world.speak_through_send_message()
        self.node: Node = self.world.node()
        self.talks = [Talk(self.world.agent_id), Talk(await self.world.add_thread())]

    def teardown(self) -> None:
        self.wait(self.node.die())
        self.wait(self.stack.aclose())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    # --- what people do ----------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), kind=KINDS, tokens=st.booleans(), background=st.booleans())
    def send(self, which: int, kind: Kind, tokens: bool, background: bool) -> None:
        talk = self.talks[which]
        self.wait(self._send(talk, kind, stream_tokens=tokens, background=background))

    @rule(kind=KINDS, background=st.booleans(), write=st.integers(1, 6), when=WHEN)
    def send_and_crash(self, kind: Kind, background: bool, write: int, when: Literal["before", "after"]) -> None:
        self.node.database.crash_at(write, when)
        self.wait(self._send(self.talks[0], kind, stream_tokens=True, background=background))

    @precondition(lambda self: self.talks[0].pending)
    @rule(how=st.sampled_from(["approve", "deny", "client"]), background=st.booleans())
    def answer(self, how: str, background: bool) -> None:
        self.wait(self._answer(self.talks[0], how, background=background))

    @precondition(lambda self: self.talks[0].pending)
    @rule(how=st.sampled_from(["approve", "deny", "client"]), write=st.integers(1, 5), when=WHEN)
    def answer_and_crash(self, how: str, write: int, when: Literal["before", "after"]) -> None:
        self.node.database.crash_at(write, when)
        self.wait(self._answer(self.talks[0], how, background=True))

    @rule(which=st.integers(0, 1))
    def cancel(self, which: int) -> None:
        self.wait(self._cancel(self.talks[which]))

    @rule(write=st.integers(1, 3), when=WHEN)
    def cancel_and_crash(self, write: int, when: Literal["before", "after"]) -> None:
        self.node.database.crash_at(write, when)
        self.wait(self._cancel(self.talks[0]))

    @precondition(lambda self: self.talks[0].pending)
    @rule()
    def answer_and_cancel_at_once(self) -> None:
        self.wait(self._race(self.talks[0]))

    @precondition(lambda self: not self.talks[1].active and not self.talks[1].pending)
    @rule()
    def two_send_at_once(self) -> None:
        self.wait(self._send_twice(self.talks[1]))

    @rule()
    def let_tools_go(self) -> None:
        self.wait(self._let_go())

    # --- what machines do --------------------------------------------------------------------------------------------

    @rule()
    def crash(self) -> None:
        self.wait(self._restart())

    @rule()
    def drain(self) -> None:
        self.wait(self._drain())

    @rule()
    def flush(self) -> None:
        self.wait(self._flush())

    @rule(after=st.integers(0, 12))
    def reattach(self, after: int) -> None:
        snapshot = self.wait(assert_invariants(self.world.database))
        for run in snapshot.runs.values():
            if run.background and not run.is_active:
                shown = self.wait(self.node.replay(run.id, after))
                assert shown == [pair for pair in without_abandoned(snapshot.frames[run.id]) if pair[0] > after]

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_promises_are_kept(self) -> None:
        snapshot = self.wait(assert_invariants(self.world.database))
        for talk in self.talks:
            self._check_talk(snapshot, talk)
        for run_id, stop_reason in self.ends.items():
            run = snapshot.runs[run_id]
            assert run.stop_reason == stop_reason, f"run {run_id} had ended as {stop_reason}, now {run.stop_reason}"
        self._check_tools()
        for run_id, stream in self.streams.items():
            run = snapshot.runs[run_id]
            if not run.is_active:
                shown: list[tuple[int, Frame]] = list(enumerate(stream.frames, 1))
                assert not list(stream_violations(snapshot, run, shown)), list(stream_violations(snapshot, run, shown))

    def _check_talk(self, snapshot: Snapshot, talk: Talk) -> None:
        window = snapshot.threads[talk.thread_id].window
        texts = [text_of(row.parts) for row in window if row.role == "user"]
        assert [text for text in texts if not text.startswith('{"type":"heartbeat"')] == talk.said
        active = [run.id for run in snapshot.active_in(talk.thread_id)]
        assert active == ([talk.active] if talk.active else [])
        assert (snapshot.open_hold(talk.thread_id) is not None) == talk.pending

    def _check_tools(self) -> None:
        for call_id, times in self.world.tools.begun.items():
            name = self.world.tools.names[call_id]
            repeatable = name in ("lookup", "slow_lookup")
            assert times <= 1 + (self.crashes if repeatable else 0), f"{name} was run {times} times for {call_id}"
            assert name != "guarded" or call_id in self.approved, f"{call_id} was run without approval"

    # --- how it is done ----------------------------------------------------------------------------------------------

    async def _send(self, talk: Talk, kind: Kind, **how: Any) -> None:
        if self.speaks_through_tool and kind == "slow":
            kind = "slow_lookup"  # such an agent makes one call at a time
        before = set((await assert_invariants(self.world.database)).runs)
        try:
            accepted = await self.node.send(TEXTS[kind], thread=talk.thread_id, **how)
        except PendingApproval:
            assert talk.pending
        except Busy as busy:
            assert busy.run_id == talk.active
            assert talk.active is not None
        except Crash:
            await self._find_out(talk, kind, before)
        else:
            assert not talk.pending
            assert talk.active is None
            self._accepted(talk, kind, accepted)
            talk.said.append(TEXTS[kind])
        await self._rest()

    def _accepted(self, talk: Talk, kind: Kind, accepted: Accepted) -> None:
        talk.active, talk.kind, talk.pending = accepted.run.id, kind, False
        if accepted.stream is not None:
            self.streams[accepted.run.id] = accepted.stream

    async def _find_out(self, talk: Talk, kind: Kind, before: set[str], *, said: bool = True) -> None:
        """Whoever was cut off does not know whether the request was accepted. The store does."""
        snapshot = await assert_invariants(self.world.database)
        new = [run_id for run_id in snapshot.runs if run_id not in before]
        assert len(new) <= 1
        if new:
            talk.active, talk.kind, talk.pending = new[0], kind, False
            talk.said += [TEXTS[kind]] if said else []

    async def _answer(self, talk: Talk, how: str, *, background: bool) -> None:
        before = set((await assert_invariants(self.world.database)).runs)
        decisions = await self._decisions(talk, how)
        try:
            accepted = await self.node.send(decisions=decisions, thread=talk.thread_id, background=background)
        except Crash:
            await self._find_out(talk, "plain", before, said=False)
        else:
            self._accepted(talk, "plain", accepted)
        await self._rest()

    async def _decisions(self, talk: Talk, how: str) -> list[Decision]:
        hold = await self.world.pending(talk.thread_id)
        assert hold is not None
        asked = hold.hold.asked_ids
        if how == "approve":
            self.approved.update(asked)
            return [Approve(call_id) for call_id in asked]
        return [Deny(call_id, "no") if how == "deny" else ClientReturn(call_id, "done") for call_id in asked]

    async def _cancel(self, talk: Talk) -> None:
        run_id = talk.active
        try:
            results = await self.node.cancel.of_thread(talk.thread_id)
        except NothingToCancel:
            assert not talk.active
            assert not talk.pending
        except Crash:
            talk.pending = await self.world.pending(talk.thread_id) is not None
        else:
            assert set(results.values()) == {"cancelled"}
            assert run_id is None or results == {run_id: "cancelled"}
            self.ends.update(dict.fromkeys(results, "cancelled"))
            talk.active, talk.pending = None, False
        await self._rest()

    async def _race(self, talk: Talk) -> None:
        decisions = await self._decisions(talk, "approve")
        both = self.node.send(decisions=decisions, thread=talk.thread_id), self.node.cancel.of_thread(talk.thread_id)
        accepted, cancelled = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(accepted, Accepted) or isinstance(cancelled, dict)
        if isinstance(accepted, Accepted):
            await self.node.worker.stopped(accepted.run.id)
        talk.pending = False
        await self._rest()

    async def _send_twice(self, talk: Talk) -> None:
        both = [self.node.send(TEXTS["note"], thread=talk.thread_id) for _ in range(2)]
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
        assert accepted, outcomes
        assert all(isinstance(outcome, (Accepted, Busy)) for outcome in outcomes)
        for each in accepted:  # both, when the first had ended before the second was looked at
            await self.node.worker.stopped(each.run.id)
            self.ends[each.run.id] = "end_turn"
            talk.said.append(TEXTS["note"])
        await self._rest()

    async def _let_go(self) -> None:
        tools = self.world.tools
        tools.let_go.set()
        await eventually(lambda: not tools.in_flight)
        tools.let_go.clear()
        for talk in self.talks:
            if talk.active and talk.kind in ("slow", "slow_lookup"):
                talk.kind = "note"
        await self._rest()

    async def _flush(self) -> None:
        active = [await self.world.run(talk.active) for talk in self.talks if talk.active]
        await self.node.streams.flush([run.id for run in active if run.background])

    async def _drain(self) -> None:
        """A polite end: what runs is handed over, nothing is lost and nothing is written about it."""
        await self.node.worker.drain()
        self.crashes += 1
        await self._reborn()

    async def _restart(self) -> None:
        await self.node.die()
        self.crashes += 1
        await self._reborn()

    async def _reborn(self) -> None:
        self.node = self.world.node()
        snapshot = await assert_invariants(self.world.database)
        for talk in self.talks:
            if talk.active and talk.kind == "slow" and _has_begun(snapshot, talk.active, "slow"):
                talk.kind = "slow_lookup"  # the one that may be repeated waits again; the other's outcome is unknown
        recovered = await self.node.take_over_all()
        assert recovered <= len(self.talks)
        for talk in self.talks:
            self.streams.pop(talk.active or "", None)  # its listeners were cut off
        await self._rest()

    async def _rest(self) -> None:
        """Until nothing moves any more: every run has ended, or waits for tools, for the model or for a person."""
        self.node.database.spare()
        while self.node.database.dead:
            await self._restart()
        await eventually(self._at_rest)
        if self.node.database.dead:
            return await self._rest()
        for talk in self.talks:
            await self._see(talk)
        return None

    def _at_rest(self) -> bool:
        if self.node.database.dead:
            return True
        waiting_for_tools = stalled = 0
        for talk in self.talks:
            if talk.active and self.node.worker.owns(talk.active):
                waiting_for_tools += {"slow": 2, "slow_lookup": 1}.get(talk.kind, 0)
                stalled += talk.kind in ("stall", "midway")
                if ENDS[talk.kind] is not None:
                    return False
        model = self.node.catalog.offline.model
        return len(self.world.tools.in_flight) == waiting_for_tools and model.open_streams == stalled

    async def _see(self, talk: Talk) -> None:
        if talk.active is None or self.node.worker.owns(talk.active):
            return
        run = await self.world.run(talk.active)
        assert not run.is_active
        asked_to_stop = run.cancel_asked_us is not None
        assert run.stop_reason == ("cancelled" if asked_to_stop else ENDS[talk.kind]), talk.kind
        talk.active, talk.pending = None, run.stop_reason == "requires_approval"
        if not talk.pending:
            self.ends[run.id] = run.stop_reason or ""


def _has_begun(snapshot: Snapshot, run_id: str, tool: str) -> bool:
    """As far as anybody can know now."""
    state = snapshot.states[run_id]
    return any(call.call.name == tool and call.status == "started" for call in state.open_calls)


def _expected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)
