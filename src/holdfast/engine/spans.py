"""Spans for OpenTelemetry: one while a run is driven, and in it one for each model call and each tool call.

Names and attributes follow the conventions for generative AI. Nothing that was said, sent or returned is in them, and
of an error only its kind. Without an SDK the tracer does nothing, and a caller's trace id is passed on all the same.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from holdfast.core.deltas import Reply
from holdfast.core.messages import ToolCall, ToolReturn
from holdfast.core.records import STATUS_OF_STOP, Agent, Run
from holdfast.core.run import RunState
from holdfast.engine.scope import Interrupted
from holdfast.llm.base import ModelInfo
from holdfast.version import VERSION


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
