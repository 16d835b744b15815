"""What telemetry is told of a run: which spans there are, whose children they are, and what is not in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from holdfast.core.failures import RetryPolicy
from holdfast.core.messages import Approve, ToolReturn
from holdfast.core.records import Step
from holdfast.core.run import OpenCall
from holdfast.engine.tracing import Instrumentation, Spans
from holdfast.store import steps

from ..scenario import Node, World, eventually

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
