"""What is told of model calls and tools besides the run itself: spans, and what a vendor was sent and said.

Spans are for OpenTelemetry: one while a run is driven, and in it one for each model call and each tool call. Names and
attributes follow the conventions for generative AI. Nothing that was said, sent or returned is in them, and of an error
only its kind. Without an SDK the tracer does nothing, and a caller's trace id is passed on all the same.

What a vendor was sent and said is kept with the step when the server was told to: cleaned, and cut to size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import msgspec
from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from holdfast.core.deltas import Reply
from holdfast.core.messages import ToolCall, ToolReturn
from holdfast.core.records import STATUS_OF_STOP, Agent, ProviderTrace, Run
from holdfast.core.redaction import Redactor, cut
from holdfast.core.run import RunState
from holdfast.engine.cancel_scope import Interrupted
from holdfast.engine.clock import Clock
from holdfast.engine.run_session import Session
from holdfast.llm.base import Model, ModelInfo, ModelRequest
from holdfast.store import agents
from holdfast.store.transaction import Database
from holdfast.version import VERSION


class Instrumentation(msgspec.Struct, frozen=True):
    """Who is told of model calls and tools, besides the run itself."""

    spans: Spans
    traces: ProviderTraces | None = None


class Spans:
    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("holdfast", VERSION)

    def run(self, run: Run, agent: Agent) -> SpanHandle:
        """A child of whatever is current where the run was started: of the request that asked for it, if any."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": agent.id,
            "gen_ai.agent.name": agent.name,
            "gen_ai.conversation.id": run.thread_id,
            "holdfast.run.id": run.id,
            "holdfast.run.background": run.background,
        }
        return SpanHandle(self._tracer.start_span(f"invoke_agent {agent.name}", attributes=attributes))

    def model(self, info: ModelInfo, step_id: str | None) -> SpanHandle:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": info.provider_type,
            "gen_ai.request.model": info.name,
        }
        if step_id is not None:
            attributes["holdfast.step.id"] = step_id
        return SpanHandle(self._tracer.start_span(f"chat {info.name}", kind=SpanKind.CLIENT, attributes=attributes))

    def tool(self, call: ToolCall) -> SpanHandle:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
        }
        return SpanHandle(self._tracer.start_span(f"execute_tool {call.name}", attributes=attributes))


class SpanHandle:
    """A span that is current while the work is done, and ends with it, however it ends."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Any = None

    @property
    def trace_id(self) -> str | None:
        known = self._span.get_span_context()
        return trace.format_trace_id(known.trace_id) if known.is_valid else None

    def replied(self, reply: Reply) -> None:
        if not self._span.is_recording():
            return
        if reply.finish is not None:
            self._span.set_attribute("gen_ai.response.finish_reasons", (reply.finish,))
        if reply.usage is not None:
            counts = {
                "gen_ai.usage.input_tokens": reply.usage.prompt_tokens,
                "gen_ai.usage.output_tokens": reply.usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": reply.usage.cached_input_tokens,
                "gen_ai.usage.cache_creation.input_tokens": reply.usage.cache_write_tokens,
            }
            self._span.set_attributes({name: count for name, count in counts.items() if count is not None})

    def returned(self, answer: ToolReturn) -> None:
        if answer.status == "error":
            self._failed("tool_error")

    def stopped(self, state: RunState) -> None:
        """A run that waits for a decision has stopped too, though without a reason of its own."""
        reason = state.stop_reason or "requires_approval"
        self._span.set_attribute("holdfast.run.stop_reason", reason)
        self._span.set_attribute("holdfast.run.model_calls", state.model_calls)
        if reason not in STATUS_OF_STOP:
            self._failed(reason)

    def __enter__(self) -> SpanHandle:
        if self._span.is_recording():
            self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            context.detach(self._token)
        match error:
            case None:
                pass
            case Interrupted():
                self._span.set_attribute("holdfast.interrupted", error.reason)
            case asyncio.CancelledError():
                self._span.set_attribute("holdfast.interrupted", "cancelled")
            case _:
                self._failed(type(error).__name__)
        self._span.end()

    def _failed(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))


class ProviderTraces:
    def __init__(
        self,
        database: Database,
        open_secret: Callable[[bytes], str],
        clock: Clock,
        *,
        most_bytes: int,
        hidden: Iterable[str] = (),
    ) -> None:
        """`hidden`: the server's own secrets. An agent's are read anew for each call."""
        self._database = database
        self._open_secret = open_secret
        self._clock = clock
        self._most_bytes = most_bytes
        self._hidden = tuple(hidden)

    async def begin(self, session: Session, step_id: str, model: Model, request: ModelRequest) -> Recording:
        agent_id = session.run.agent_id
        sealed = (await self._database.read(lambda tx: agents.secrets_of(tx, [agent_id]))).get(agent_id, [])
        redactor = Redactor([*self._hidden, *(self._open_secret(secret.sealed) for secret in sealed)])
        # An adapter may hand over bytes, or objects of a library; a trace must not be what a run fails of.
        payload: dict[str, Any] = msgspec.to_builtins(model.payload(request), enc_hook=repr, str_keys=True)
        return Recording(session, step_id, payload, redactor, self._clock, self._most_bytes)


class Recording:
    """One try at a model call, from its request on."""

    def __init__(
        self, session: Session, step_id: str, request: dict[str, Any], redactor: Redactor, clock: Clock, most_bytes: int
    ) -> None:
        self._session = session
        self._step_id = step_id
        self._redactor = redactor
        self._clock = clock
        self._most_bytes = most_bytes
        self._request = self._clean(request)

    def end(self, said: Reply, error: BaseException | None) -> None:
        """The next checkpoint stores it, whatever it is about."""
        told, earlier = self._clean(_told(error)), self._session.failed_tries
        response = _response(said) | told | ({"earlier_tries": list(earlier)} if earlier else {})
        if told:
            earlier.append(told)
        self._session.traced(
            ProviderTrace(
                step_id=self._step_id,
                run_id=self._session.run.id,
                agent_id=self._session.run.agent_id,
                request=self._request,
                response=self._clean(response),
                created_us=self._clock.now_us(),
            )
        )

    def _clean(self, value: dict[str, Any]) -> dict[str, Any]:
        return cut(self._redactor.hide(value), self._most_bytes)


def _response(said: Reply) -> dict[str, Any]:
    usage = None if said.usage is None else msgspec.structs.asdict(said.usage)
    return {"parts": msgspec.to_builtins(said.parts), "finish": said.finish, "usage": usage}


def _told(error: BaseException | None) -> dict[str, Any]:
    match error:
        case None:
            return {}
        case asyncio.CancelledError() | Interrupted():
            return {"interrupted": True}
        case _:
            return {"error": {"type": type(error).__name__, "message": str(error)}}
