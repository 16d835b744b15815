"""What vendors count for each token that we guess, and what comes of it before a request is sent; unknown models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.events import ModelFailed
from holdfast.core.usage import Usage
from holdfast.engine.model_call import TokenRatios, find_model
from holdfast.errors import Rejected
from holdfast.llm.catalog import adapters
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.endpoint import Endpoint
from holdfast.settings import DeclaredModel
from holdfast.store import kv

from ..invariants import assert_invariants
from ..scenario import HANDLE, Node, World, sqlite_at, world_at
from .recording import RecordingCatalog


async def test_a_model_whose_extra_is_not_installed_is_rejected_in_words_that_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(adapters._BRIDGED, "google_ai", "holdfast_has_no_such_module")  # pyright: ignore[reportArgumentType]
    google = Endpoint(provider_name="google_ai", provider_type="google_ai", base_url="http://127.0.0.1:9")
    catalog = ModelCatalog([google], declared=[DeclaredModel(handle="google_ai/gemini-2.5-pro", context_window=1_000)])
    with pytest.raises(Rejected, match=r"pip install 'holdfast\[vendors\]'"):
        await find_model(catalog, "google_ai/gemini-2.5-pro")
    await catalog.aclose()


LONG = "word " * 400  # five hundred tokens, as we guess
WINDOW = 2_000


class RecordingNode(Node):
    def __init__(self, world: World) -> None:
        self.recorded = RecordingCatalog()
        super().__init__(world, catalog=self.recorded)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path) as made:
        yield made
        await assert_invariants(made.database, idle=True)


def world_of(directory: Path, **model: Any) -> Any:
    return world_at(sqlite_at(directory), context_window=WINDOW, **model)


async def count_as(world: World, ratio: float) -> None:
    await world.database.write(lambda tx: kv.set_number(tx, f"token_ratio/{HANDLE}", ratio))


async def stored(world: World) -> float | None:
    return await world.database.read(lambda tx: kv.number(tx, f"token_ratio/{HANDLE}"))


def guess_of(node: RecordingNode) -> int:
    last = node.recorded.asked[-1]
    return last.estimated_tokens()


# --- learning --------------------------------------------------------------------------------------------------------


async def test_a_reply_that_says_what_it_cost_teaches_and_the_next_process_knows(world: World) -> None:
    node = RecordingNode(world)
    await node.ask(f"hello {LONG} [[usage:1600,5]]")
    expected = 1_600 / guess_of(node)
    assert 2 < expected < 3
    assert await node.ratios.of(HANDLE) == pytest.approx(expected)
    assert await TokenRatios(world.database).of(HANDLE) == pytest.approx(expected)


async def test_a_model_that_nobody_has_asked_has_no_ratio(world: World) -> None:
    assert await TokenRatios(world.database).of("openai/never") is None


async def test_a_move_that_is_hardly_one_is_kept_in_memory_only(world: World) -> None:
    await count_as(world, 1.0)
    ratios = TokenRatios(world.database)
    await ratios.of(HANDLE)
    assert ratios.learn(HANDLE, 1_000, Usage(1_050, 5)) is None
    assert await ratios.of(HANDLE) == pytest.approx(1.0125)
    assert await stored(world) == 1.0
    assert ratios.learn(HANDLE, 1_000, Usage(1_500, 5)) == pytest.approx(1.134375)


async def test_a_cost_that_was_only_guessed_teaches_nothing(world: World) -> None:
    ratios = TokenRatios(world.database)
    assert ratios.learn(HANDLE, 1_000, None) is None
    assert ratios.learn(HANDLE, 1_000, Usage(2_000, 5, estimated=True)) is None
    assert await ratios.of(HANDLE) is None


# --- before the vendor is asked --------------------------------------------------------------------------------------


async def test_a_request_that_cannot_fit_is_compacted_before_it_is_sent(small: World) -> None:
    node = RecordingNode(small)
    for number in range(6):
        assert (await node.ask(f"[[say:fine]] {number} {LONG}")).stop_reason == "end_turn"
    assert node.recorded.summaries
    for request in node.recorded.replies:
        assert request.estimated_tokens() <= WINDOW, "the vendor was spared it"
    snapshot = await assert_invariants(small.database, idle=True)
    overflows = [event for events in snapshot.journals.values() for event in events if isinstance(event, ModelFailed)]
    assert overflows and all(event.overflow for event in overflows)


async def test_what_the_vendor_counts_decides_what_fits(small: World) -> None:
    await count_as(small, 2.5)
    node = RecordingNode(small)
    await node.ask("[[say:fine]] remember the first thing")
    run = await node.ask(f"[[say:fine]] {LONG} {LONG}")
    assert run.stop_reason == "end_turn"
    snapshot = await assert_invariants(small.database, idle=True)
    assert snapshot.states[run.id].compactions == 1, "a thousand tokens do fit, unless each counts for two"


async def test_room_is_kept_for_the_reply(tmp_path: Path) -> None:
    async with world_of(tmp_path, max_output_tokens=10_000) as world:
        node = RecordingNode(world)
        for number in range(4):
            await node.ask(f"[[say:fine]] {number} {LONG}")
        for request in node.recorded.replies:
            assert request.estimated_tokens() <= WINDOW * 3 // 4


async def test_what_a_compaction_did_not_bring_below_our_guess_is_left_to_the_vendor(small: World) -> None:
    await count_as(small, 3.0)
    node = RecordingNode(small)
    run = await node.ask(f"[[say:fine]] [[summary:{'very long ' * 300}]]")  # which no transcript cuts
    assert run.stop_reason == "end_turn", "the vendor counts less than we feared"
    assert guess_of(node) * 3 > WINDOW, "by our guess it does not fit"
    snapshot = await assert_invariants(small.database, idle=True)
    assert snapshot.states[run.id].compactions == 1
    assert len(node.recorded.replies) == 1


async def test_a_system_prompt_that_alone_does_not_fit_is_sent_nowhere(small: World) -> None:
    node = RecordingNode(small)
    run = await node.ask("hello", override_system="Be careful. " * 800)
    assert (run.status, run.stop_reason) == ("failed", "context_window_overflow_in_system_prompt")
    assert run.metadata["error"]["error_type"] == "context_window_overflow_in_system_prompt"
    assert node.recorded.asked == []
