"""What is kept of a model call when tracing is on, whatever becomes of the call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from holdfast.core.failures import RetryPolicy
from holdfast.core.records import ProviderTrace
from holdfast.core.redaction import HIDDEN
from holdfast.engine.tracing import Instrumentation, ProviderTraces, Spans
from holdfast.llm.base import Model, ModelInfo, ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import agents, runs, traces
from holdfast.store.agents import SealedSecret

from ..scenario import Node, World, eventually
from .timed import HandClock, TimedCatalog


class Traced:
    def __init__(self, world: World, catalog: ModelCatalog | None = None, most_bytes: int = 100_000) -> None:
        self.world = world
        kept = ProviderTraces(
            world.database, lambda sealed: sealed.decode(), world.clock, most_bytes=most_bytes, hidden=["server-key"]
        )
        self.node = Node(world, catalog=catalog, instrumentation=Instrumentation(Spans(), kept))

    async def of(self, run_id: str) -> list[ProviderTrace]:
        return await self.world.database.read(lambda tx: traces.list_of_run(tx, run_id))

    async def after(self, text: str, **options: Any) -> list[ProviderTrace]:
        return await self.of((await self.node.ask(text, **options)).id)


@pytest.fixture
async def traced(world: World) -> AsyncIterator[Traced]:
    made = Traced(world)
    yield made
    await made.node.die()


def said(trace: ProviderTrace) -> str:
    return "".join(part.get("text", "") for part in trace.response["parts"])


@pytest.mark.parametrize("stream_tokens", [False, True], ids=["whole", "tokens"])
async def test_each_model_call_is_kept_with_its_request_and_its_reply(traced: Traced, stream_tokens: bool) -> None:
    asked, answered = await traced.after("call the note tool [[usage:100,10]]", stream_tokens=stream_tokens)
    assert asked.request["messages"][-1]["content"].startswith("call the note tool")
    assert asked.response["finish"] == "tool_calls"
    assert asked.response["usage"]["prompt_tokens"] == 100
    assert [part["name"] for part in asked.response["parts"] if "arguments" in part] == ["note"]
    assert answered.request["messages"][-1]["role"] == "tool"
    assert "note returned" in said(answered)


async def test_a_failed_call_is_kept_with_its_error(traced: Traced) -> None:
    (trace,) = await traced.after("[[error:bad_request]] [[message:no such thing]]")
    assert trace.response["error"] == {"type": "Refused", "message": "no such thing"}
    assert trace.response["finish"] is None


async def test_a_bug_of_ours_is_kept_too(traced: Traced) -> None:
    (trace,) = await traced.after("[[error:runtime]]")
    assert trace.response["error"]["type"] == "RuntimeError"


async def test_a_cancelled_call_is_kept_as_far_as_it_came(traced: Traced) -> None:
    accepted = await traced.node.send(
        "[[stall_after:3]] [[no_reasoning]] [[say:one two three four]]", stream_tokens=True
    )
    stream = accepted.stream
    assert stream is not None
    await eventually(lambda: len(stream.frames) >= 3)
    await traced.node.cancel.one(accepted.run.id)
    await traced.node.worker.stopped(accepted.run.id)
    (trace,) = await traced.of(accepted.run.id)
    assert (trace.response["interrupted"], trace.response["finish"]) == (True, None)
    assert said(trace).startswith("one two")


async def test_a_reply_that_a_cancel_overtook_is_kept(world: World) -> None:
    clock = HandClock()
    catalog = TimedCatalog(clock)
    traced, run_ids = Traced(world, catalog), list[str]()

    async def cancel_on_record() -> None:
        await world.database.write(lambda tx: runs.ask_cancel(tx, run_ids[0], clock.now_us()))

    catalog.before_finish = cancel_on_record
    run_ids.append((await traced.node.send("[[say:too late]] [[no_reasoning]]")).run.id)
    await traced.node.worker.stopped(run_ids[0])
    (trace,) = await traced.of(run_ids[0])
    assert (said(trace), (await world.run(run_ids[0])).status) == ("too late", "cancelled")
    await traced.node.die()


async def test_a_later_try_replaces_an_earlier_one_and_tells_what_became_of_it(traced: Traced) -> None:
    traced.world.retry_policy = RetryPolicy(retries=2, first_pause_s=0.001)
    again = Traced(traced.world)
    (trace,) = await again.after("[[error:rate_limit]] [[error_times:2]] [[say:at last]] [[message:slow down]]")
    error = {"type": "RateLimited", "message": "slow down"}
    assert trace.response["earlier_tries"] == [{"error": error}] * 2
    assert "error" not in trace.response
    assert "at last" in said(trace)
    await again.node.die()


async def test_secrets_of_the_agent_and_of_the_server_are_hidden(traced: Traced) -> None:
    sealed = SealedSecret("secret-1", "CODE", b"open sesame", None)
    await traced.world.database.write(lambda tx: agents.set_secrets(tx, traced.world.agent_id, [sealed]))
    (trace,) = await traced.after("say open sesame with server-key [[say:open sesame]]")
    assert trace.request["messages"][-1]["content"].startswith(f"say {HIDDEN} with {HIDDEN}")
    assert said(trace).endswith(HIDDEN)
    kept = [row for row in await traced.world.window() if row.role == "user"]
    assert "open sesame" in str(kept[0].parts), "the history itself is left alone"


async def test_each_side_is_cut_to_size_and_still_json(world: World) -> None:
    traced = Traced(world, most_bytes=2_000)
    (trace,) = await traced.after(f"{'word ' * 5_000} [[tokens:5000]]")
    assert all(1_000 < _size(side) <= 2_000 for side in (trace.request, trace.response))
    assert trace.request["model"] == "offline"
    await traced.node.die()


async def test_what_json_cannot_say_does_not_fail_the_run(world: World) -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    class OddModel:
        def __init__(self, inner: Model) -> None:
            self.stream = inner.stream

        def payload(self, request: ModelRequest) -> dict[str, Any]:
            return {"odd": Odd(), "bytes": b"abc", "numbered": {1: 2}}

    class OddCatalog(ModelCatalog):
        def open(self, info: ModelInfo) -> Model:
            return OddModel(super().open(info))

    traced = Traced(world, OddCatalog())
    (trace,) = await traced.after("hello")
    assert trace.request == {"odd": "<odd>", "bytes": "YWJj", "numbered": {"1": 2}}
    await traced.node.die()


async def test_nothing_is_kept_unless_it_is_asked_for(world: World) -> None:
    node = Node(world)
    run = await node.ask("hello")
    assert await world.database.read(lambda tx: traces.list_of_run(tx, run.id)) == []
    await node.die()


def _size(side: dict[str, Any]) -> int:
    return len(msgspec.json.encode(side))
