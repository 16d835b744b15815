"""What is kept of a model call when tracing is on, whatever becomes of the call; and what telemetry is told of a run:
which spans there are, whose children they are, and what is not in them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from holdfast.core.failures import RetryPolicy
from holdfast.core.messages import Approve, ToolReturn
from holdfast.core.records import ProviderTrace, Step
from holdfast.core.redaction import HIDDEN
from holdfast.core.run import OpenCall
from holdfast.engine.tracing import Instrumentation, ProviderTraces, Spans
from holdfast.llm.base import Model, ModelInfo, ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import agents, runs, steps, traces
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


SECRET_WORDS = "the parrot sleeps at noon"


class Watched:
    def __init__(self, world: World) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.world = world
        self.instrumentation = Instrumentation(Spans(provider.get_tracer("test")))
        self.node = Node(world, instrumentation=self.instrumentation)

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in the order in which they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    async def steps_of(self, run_id: str) -> list[Step]:
        return await self.world.database.read(lambda tx: steps.list_of_run(tx, run_id))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_id(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


@pytest.fixture
async def watched(world: World) -> AsyncIterator[Watched]:
    made = Watched(world)
    yield made
    await made.node.die()


async def test_a_turn_with_a_tool_is_a_run_with_a_model_call_a_tool_call_and_a_model_call(watched: Watched) -> None:
    run = await watched.node.ask("call the note tool [[usage:100,10,5,2]]")
    turn, asked, noted, answered = watched.spans
    assert watched.names == ["invoke_agent ada", "chat offline", "execute_tool note", "chat offline"]
    assert parent_id(turn) is None
    assert [parent_id(span) for span in (asked, noted, answered)] == [span_id(turn)] * 3
    assert {span.kind for span in (asked, answered)} == {SpanKind.CLIENT}
    first, second = await watched.steps_of(run.id)
    assert attributes(asked) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "holdfast",
        "gen_ai.request.model": "offline",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "holdfast.step.id": first.id,
    }
    assert attributes(answered)["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes(noted)["gen_ai.tool.name"] == "note"
    assert attributes(turn)["holdfast.run.id"] == run.id
    assert attributes(turn)["gen_ai.agent.id"] == watched.world.agent_id
    assert attributes(turn)["holdfast.run.stop_reason"] == "end_turn"
    assert turn.context is not None
    assert {first.trace_id, second.trace_id} == {trace.format_trace_id(turn.context.trace_id)}


async def test_a_run_belongs_to_the_trace_of_whoever_asked_for_it(watched: Watched) -> None:
    caller = SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(caller)))
    try:
        run = await watched.node.ask("hello")
    finally:
        context.detach(token)
    turn = watched.one("invoke_agent ada")
    assert turn.parent is not None
    assert (turn.parent.trace_id, turn.parent.span_id) == (0xABC, 0xDEF)
    assert [step.trace_id for step in await watched.steps_of(run.id)] == [f"{0xABC:032x}"]


async def test_without_an_sdk_a_step_keeps_the_trace_that_the_caller_named(world: World) -> None:
    node = Node(world)
    plain = await node.ask("hello")
    caller = SpanContext(0xABC, 0xDEF, is_remote=True)
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(caller)))
    try:
        named = await node.ask("hello")
    finally:
        context.detach(token)
    assert [step.trace_id for step in await world.database.read(lambda tx: steps.list_of_run(tx, plain.id))] == [None]
    kept = await world.database.read(lambda tx: steps.list_of_run(tx, named.id))
    assert [step.trace_id for step in kept] == [f"{0xABC:032x}"]
    await node.die()


@pytest.mark.parametrize(
    ("text", "inner"),
    [("[[stall]]", "chat offline"), ("call the slow tool", "execute_tool slow")],
    ids=["model", "tool"],
)
async def test_a_cancelled_run_ends_its_spans_and_is_no_error(watched: Watched, text: str, inner: str) -> None:
    model = watched.node.catalog.offline.model
    run_id = (await watched.node.send(text)).run.id
    await eventually(lambda: bool(watched.world.tools.in_flight) if "tool" in text else model.open_streams == 1)
    await watched.node.cancel.one(run_id)
    await watched.node.worker.stopped(run_id)
    cut_off, turn = watched.one(inner), watched.one("invoke_agent ada")
    assert attributes(cut_off)["holdfast.interrupted"] == "cancelled"
    assert attributes(turn)["holdfast.run.stop_reason"] == "cancelled"
    assert {span.status.status_code for span in (cut_off, turn)} == {StatusCode.UNSET}
    assert parent_id(cut_off) == span_id(turn)


async def test_a_run_that_is_handed_over_ends_its_spans_and_goes_on_in_another(watched: Watched) -> None:
    run_id = (await watched.node.send("call the slow_lookup tool")).run.id
    await watched.world.tools.waiting.wait()
    await watched.node.worker.drain()
    assert attributes(watched.one("invoke_agent ada"))["holdfast.interrupted"] == "shutdown"
    second = Node(watched.world, instrumentation=watched.instrumentation)
    watched.world.tools.let_go.set()
    await second.take_over_all()
    await second.worker.stopped(run_id)
    assert watched.names.count("invoke_agent ada") == 2
    await second.die()


async def test_a_failed_call_names_its_error_and_says_nothing_of_it(watched: Watched) -> None:
    await watched.node.ask(f"[[error:bad_request]] [[message:{SECRET_WORDS}]]")
    asked, turn = watched.one("chat offline"), watched.one("invoke_agent ada")
    assert (attributes(asked)["error.type"], asked.status.status_code) == ("Refused", StatusCode.ERROR)
    assert (attributes(turn)["error.type"], turn.status.status_code) == ("llm_api_error", StatusCode.ERROR)
    assert all(span.status.description is None and not span.events for span in watched.spans)


async def test_every_try_is_a_span_of_its_own(watched: Watched) -> None:
    watched.world.retry_policy = RetryPolicy(retries=2, first_pause_s=0.001)
    node = Node(watched.world, instrumentation=watched.instrumentation)
    await node.ask("[[error:rate_limit]] [[error_times:1]] try again")
    first, second = [span for span in watched.spans if span.name == "chat offline"]
    assert attributes(first)["error.type"] == "RateLimited"
    assert "error.type" not in attributes(second)
    await node.die()


async def test_a_tool_that_failed_is_marked(watched: Watched) -> None:
    await watched.node.ask("call the failing tool")
    failed = watched.one("execute_tool failing")
    assert (attributes(failed)["error.type"], failed.status.status_code) == ("tool_error", StatusCode.ERROR)


async def test_a_parked_run_ends_its_span_and_its_successor_has_another(watched: Watched) -> None:
    await watched.node.ask("call the guarded tool")
    assert attributes(watched.one("invoke_agent ada"))["holdfast.run.stop_reason"] == "requires_approval"
    hold = await watched.world.pending()
    assert hold is not None
    await watched.node.ask(decisions=[Approve(hold.hold.asked_ids[0])])
    parked, resumed = [span for span in watched.spans if span.name == "invoke_agent ada"]
    assert parent_id(watched.one("execute_tool guarded")) == span_id(resumed) != span_id(parked)


async def test_nothing_that_was_said_or_returned_is_in_a_span(watched: Watched) -> None:
    async def tells(call: OpenCall) -> ToolReturn:
        return ToolReturn(call.call.id, call.call.name, "success", SECRET_WORDS)

    watched.world.tools.answers["note"] = tells
    await watched.node.ask(f"[[call:note {{}}@1]] {SECRET_WORDS} [[say:{SECRET_WORDS}@2]]")
    assert len(watched.spans) == 4
    assert not [span.name for span in watched.spans if "parrot" in span.to_json()]
