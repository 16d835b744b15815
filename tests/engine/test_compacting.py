"""Summaries in every mode: who is asked, with what, what leaves the window, and what is done when it goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.compaction import CLIPPED, Mode
from holdfast.core.deltas import Delta
from holdfast.core.events import Compacted
from holdfast.core.failures import RetryPolicy
from holdfast.core.frames import UsageFrame
from holdfast.core.messages import Message, Summary, Text, ToolCall, ToolReturn, text_of
from holdfast.core.rate_limits import parse_limits
from holdfast.core.records import CompactionSettings, ModelChoice
from holdfast.core.usage import Usage
from holdfast.engine.clock import SystemClock
from holdfast.engine.compacting import CompactionJob, Compactor
from holdfast.engine.model_call import TokenRatios
from holdfast.engine.rate_limits import RateLimits
from holdfast.errors import ContextTooLong, LimitReached, ModelUnavailable, RateLimited, SystemPromptTooLong
from holdfast.llm.base import Model, ModelInfo, ModelRequest, ToolSchema
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import agents
from holdfast.store.transaction import Transaction

from ..invariants import assert_invariants
from ..scenario import HANDLE, HASTY, IMPATIENT, Node, World, eventually, sqlite_at, world_at
from .recording import RecordingCatalog, wants_summary

MODES: tuple[Mode, ...] = ("sliding_window", "all", "self_compact_all", "self_compact_sliding_window")
SELF: tuple[Mode, ...] = ("self_compact_all", "self_compact_sliding_window")
CHOICE = ModelChoice(handle=HANDLE, context_window=4_000, max_output_tokens=77, settings={"effort": "low"})
TOOLS = (ToolSchema("note", "Notes something.", {"type": "object", "properties": {}}),)
SYSTEM = Message(id="message-0", role="system", parts=(Text("Be brief."),), created_us=0)


def row(number: int, role: Any, *parts: Any) -> Message:
    return Message(id=f"message-{number}", role=role, parts=parts, created_us=0, model=HANDLE)


def talk(turns: int, size: int = 200) -> list[Message]:
    """Each turn is a question, a call, its return and an answer."""
    rows = [SYSTEM]
    for turn in range(turns):
        call = f"call-{turn}"
        first = len(rows)
        rows += [
            row(first, "user", Text(f"{turn} " + "q" * size)),
            row(first + 1, "assistant", ToolCall(call, "note", "{}")),
            row(first + 2, "tool", ToolReturn(call, "note", "success", "r" * size)),
            row(first + 3, "assistant", Text("a" * size)),
        ]
    return rows


def wanted(window: Sequence[Message], mode: Mode = "sliding_window", **fields: Any) -> CompactionJob:
    given: dict[str, Any] = {"settings": CompactionSettings(mode=mode), "model": CHOICE, "tools": TOOLS}
    return CompactionJob(window=window, timezone="UTC", trigger="manual", shown=True, **given | fields)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(sqlite_at(tmp_path), context_window=4_000) as made:
        yield made


class Kit:
    def __init__(self, world: World, limits: str = "") -> None:
        self.catalog = RecordingCatalog()
        self.ratios = TokenRatios(world.database)
        rate_limits = RateLimits(world.database, world.clock, parse_limits(limits), longest_wait_s=0.0)
        self.compactor = Compactor(self.catalog, SystemClock(), self.ratios, HASTY, rate_limits=rate_limits)

    @property
    def asked(self) -> list[Any]:
        return self.catalog.asked


@pytest.fixture
def kit(world: World) -> Kit:
    return Kit(world)


def summary_text(message: Message) -> str:
    (part,) = message.parts
    assert isinstance(part, Summary)
    return part.text


# --- what is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_every_mode_makes_one_summary_of_whole_groups(kit: Kit, mode: Mode) -> None:
    window = talk(6)
    made = await kit.compactor.compact(wanted(window, mode))
    assert len(kit.asked) == 1
    evicted = {message.id for message in made.evicted}
    kept = [message for message in window[1:] if message.id not in evicted]
    assert [message.id for message in window[1:]] == [*(m.id for m in made.evicted), *(m.id for m in kept)]
    called = {call.id for message in made.evicted for call in message.calls}
    assert called == {part.call_id for message in made.evicted for part in message.returns}
    assert (mode in ("all", "self_compact_all")) == (not kept)


@pytest.mark.parametrize("mode", SELF)
async def test_an_agent_that_summarises_for_itself_is_asked_as_it_always_is(kit: Kit, mode: Mode) -> None:
    settings = CompactionSettings(mode=mode, model="openai/somebody-else")
    await kit.compactor.compact(wanted(talk(6), mode, settings=settings))
    (request,) = kit.asked
    assert (request.handle, request.system) == (HANDLE, "Be brief.")
    assert (request.tools, request.tool_choice) == (TOOLS, "none"), "the same beginning, so that a cache serves it"
    assert request.settings == CHOICE.settings
    assert request.turns[0].role == "user"
    assert text_of(request.turns[0].parts).startswith("0 q")


@pytest.mark.parametrize("mode", ["sliding_window", "all"])
async def test_a_summary_is_made_by_the_agents_own_model_unless_another_is_named(kit: Kit, mode: Mode) -> None:
    await kit.compactor.compact(wanted(talk(6), mode))
    (request,) = kit.asked
    assert (request.handle, request.tools, request.max_output_tokens) == (HANDLE, (), 77)


@pytest.mark.parametrize("mode", ["sliding_window", "all"])
async def test_the_agents_own_model_stands_in_for_one_that_is_not_there(
    kit: Kit, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    """Agents come from other servers, where the named one was cheap and known."""
    settings = CompactionSettings(mode=mode, model="openai/gpt-cheap")
    made = await kit.compactor.compact(wanted(talk(6), mode, settings=settings))
    assert made.evicted
    assert [request.handle for request in kit.asked] == [HANDLE]
    assert [record.levelname for record in caplog.records if "openai/gpt-cheap" in record.getMessage()] == ["WARNING"]


async def test_tools_count_against_what_may_stay(kit: Kit) -> None:
    window = talk(12, size=400)
    heavy = tuple(ToolSchema(f"tool_{number}", "d" * 400, {"type": "object"}) for number in range(12))
    light = await kit.compactor.compact(wanted(window, tools=()))
    loaded = await kit.compactor.compact(wanted(window, tools=heavy))
    assert len(loaded.evicted) > len(light.evicted)


async def test_figures_are_in_the_vendors_tokens_where_they_are_known(kit: Kit) -> None:
    plain = await kit.compactor.compact(wanted(talk(6), "all"))
    kit.ratios.learn(HANDLE, 1_000, Usage(2_000, 5))
    counted = await kit.compactor.compact(wanted(talk(6), "all"))
    assert counted.tokens_after == pytest.approx(2 * plain.tokens_after, abs=1)
    (part,) = counted.summary.parts
    assert isinstance(part, Summary) and part.stats is not None
    assert part.stats.context_tokens_after == counted.tokens_after
    assert part.stats.context_tokens_before is not None
    assert part.stats.context_tokens_before > counted.tokens_after


async def test_of_a_long_return_only_what_the_model_is_shown_counts(kit: Kit) -> None:
    rows = talk(3)
    rows[11] = row(11, "tool", ToolReturn("call-2", "note", "success", "r" * 40_000))
    made = await kit.compactor.compact(wanted(rows))
    assert len(kit.asked) == 1, "the first mode frees enough"
    assert rows[11] not in made.evicted
    assert made.tokens_after < CHOICE.context_window // 2


# --- when it goes wrong ----------------------------------------------------------------------------------------------


async def test_a_summariser_that_fails_in_passing_is_asked_again(kit: Kit) -> None:
    window = [*talk(3), row(90, "user", Text("[[summary_error:rate_limit]] [[error_times:2]] [[summary:in the end]]"))]
    made = await kit.compactor.compact(wanted(window, "all"))
    assert summary_text(made.summary) == "in the end"
    assert len(kit.asked) == 3


async def test_a_summariser_that_keeps_failing_is_given_up(kit: Kit) -> None:
    window = [*talk(3), row(90, "user", Text("[[summary_error:rate_limit]]"))]
    with pytest.raises(RateLimited):
        await kit.compactor.compact(wanted(window, "all"))
    assert len(kit.asked) == 1 + HASTY.retries


async def test_what_will_not_pass_is_not_tried_again_but_in_another_mode(kit: Kit) -> None:
    first = row(90, "user", Text("[[summary_error:auth]] [[error_times:1]] [[summary:by other means]]"))
    window = [SYSTEM, first, *talk(3)[1:]]
    made = await kit.compactor.compact(wanted(window, "self_compact_all"))
    assert summary_text(made.summary) == "by other means"
    assert len(kit.asked) == 2


async def test_a_summary_that_breaks_off_is_none(world: World) -> None:
    class Cut(RecordingCatalog):
        def open(self, info: Any) -> Any:
            inner = super().open(info)

            class Half:
                async def stream(self, request: Any) -> Any:
                    async for delta in inner.stream(request):
                        yield delta
                        return

            return Half()

    compactor = Compactor(Cut(), SystemClock(), TokenRatios(world.database), IMPATIENT)
    with pytest.raises(ModelUnavailable, match="before the reply was finished"):
        await compactor.compact(wanted(talk(3), "all"))


async def test_a_summary_that_would_fill_the_window_is_cut_to_leave_room(kit: Kit) -> None:
    window = [SYSTEM, row(90, "user", Text(f"[[summary:{'words ' * 2_600}]]")), *talk(8)[1:]]
    made = await kit.compactor.compact(wanted(window, "self_compact_all"))
    assert summary_text(made.summary).endswith(CLIPPED)
    assert len(kit.asked) == 1, "no other mode need be tried"
    assert made.tokens_after < CHOICE.context_window // 2


async def test_of_summaries_that_free_too_little_the_shortest_window_is_taken(kit: Kit) -> None:
    """The first mode leaves less than the second, which is tried because even that is too much."""
    large = row(0, "system", Text("Be careful. " * 900))
    window = [large, row(90, "user", Text(f"[[summary:{'words ' * 2_600}]]")), *talk(8)[1:]]
    made = await kit.compactor.compact(wanted(window, "self_compact_all"))
    assert len(kit.asked) == 3
    assert len(made.evicted) == len(window) - 1


async def test_a_system_prompt_that_does_not_fit_is_named_before_anything_is_summarised(kit: Kit) -> None:
    window = [row(0, "system", Text("Be careful. " * 2_000)), *talk(2)[1:]]
    with pytest.raises(SystemPromptTooLong, match="system prompt and the tools take about"):
        await kit.compactor.compact(wanted(window, "all"))
    assert kit.asked == []


# --- within a run ----------------------------------------------------------------------------------------------------


async def set_mode(world: World, mode: Mode) -> None:
    async def change(tx: Transaction) -> None:
        agent = await agents.get(tx, world.agent_id)
        await agents.update_agent(tx, msgspec.structs.replace(agent, compaction=CompactionSettings(mode=mode)))

    await world.database.write(change)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_a_run_compacts_in_every_mode_in_one_commit_and_goes_on(world: World, mode: Mode, tokens: bool) -> None:
    await set_mode(world, mode)
    node = Node(world)
    for number in range(3):
        await node.ask(f"[[say:fine]] {number} {'word ' * 60}")
    accepted = await node.send("call the note tool [[usage:3900,10@1]]", stream_tokens=tokens)
    frames = await node.told(accepted)
    snapshot = await assert_invariants(world.database, idle=True)
    run = snapshot.runs[accepted.run.id]
    assert run.stop_reason == "end_turn"
    (compacted,) = [event for event in snapshot.journals[run.id] if isinstance(event, Compacted)]
    rows = await world.window()
    assert [rows[0].role, rows[1].role, rows[1].id] == ["system", "summary", compacted.summary_id]
    last = frames[-1]
    assert isinstance(last, UsageFrame)
    counted = [step.usage.total_tokens for step in snapshot.steps.values() if step.run_id == run.id]
    assert last.usage.total_tokens == sum(counted), "what a summary costs is not the run's"


async def test_the_system_message_tells_how_much_has_left_the_window(world: World) -> None:
    node = Node(world)
    for number in range(3):
        await node.ask(f"[[say:fine]] {number}")
    before = text_of((await world.window())[0].parts)
    await node.ask("[[say:fine]] [[usage:3900,10]]")
    rows = await world.window()
    stored = await assert_invariants(world.database, idle=True)
    hidden = len(stored.threads[world.agent_id].history) - len(rows)
    assert text_of(rows[0].parts) != before
    assert f"{hidden} previous messages" in text_of(rows[0].parts)


async def test_a_cancel_does_not_wait_for_a_summariser_that_is_waited_for(world: World) -> None:
    world.retry_policy = RetryPolicy(retries=3, first_pause_s=60.0)
    catalog = RecordingCatalog()
    node = Node(world, catalog=catalog)
    await node.ask("[[say:fine]] remember")
    accepted = await node.send("[[say:fine]] [[usage:3900,10]] [[summary_error:rate_limit]]", background=True)
    await eventually(lambda: len(catalog.summaries) == 1)
    async with asyncio.timeout(30):
        assert await node.cancel.one(accepted.run.id) == "cancelled"
        await node.worker.stopped(accepted.run.id)
    await assert_invariants(world.database, idle=True)
    assert "summary" not in [row.role for row in await world.window()]
    assert node.catalog.offline.model.open_streams == 0


class _Cramped(ModelCatalog):
    """Summarises, but finds every other request too long: its window is smaller than anybody was told."""

    def open(self, info: ModelInfo) -> Model:
        return _CrampedModel(super().open(info))


class _CrampedModel:
    def __init__(self, inner: Model) -> None:
        self._inner = inner

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        if not wants_summary(request):
            raise ContextTooLong("Context too long for somebody: 512 tokens at most")
        async with aclosing(self._inner.stream(request)) as deltas:
            async for delta in deltas:
                yield delta

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return self._inner.payload(request)


async def test_where_nothing_is_left_to_summarise_the_vendors_own_words_are_told(world: World) -> None:
    run = await Node(world, catalog=_Cramped()).ask("hello")
    assert (run.status, run.stop_reason) == ("failed", "error")
    detail = run.metadata["error"]["detail"]
    assert detail.startswith("CONTEXT_WINDOW_EXCEEDED: Context too long for somebody: 512 tokens at most. ")
    assert "nothing in it can be summarised" in detail


@pytest.mark.parametrize("limits", ["holdfast=1/hour", "holdfast=1 tokens/hour"])
async def test_a_summary_counts_for_the_limits_of_its_provider(world: World, limits: str) -> None:
    kit = Kit(world, limits)
    await kit.compactor.compact(wanted(talk(6)))
    with pytest.raises(LimitReached):
        await kit.compactor.compact(wanted(talk(6)))
    assert len(kit.asked) == 1
