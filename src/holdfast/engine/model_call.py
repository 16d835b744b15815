"""One call of a model: folds its deltas into a reply, and shows them to listeners as they come."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import TracebackType
from typing import Final

import msgspec

from holdfast.core import heartbeats
from holdfast.core.deltas import Finish, Reply, ReplyFolder, UsageDelta
from holdfast.core.run import CallModel
from holdfast.core.spec import RunSpec
from holdfast.core.transitions import Attempt
from holdfast.engine.clock import Clock
from holdfast.engine.emitter import Emitter
from holdfast.engine.heartbeat_emitter import HeartbeatEmitter
from holdfast.engine.session import Session
from holdfast.engine.spans import Spans
from holdfast.engine.tracing import ProviderTraces, Recording
from holdfast.errors import EmptyReply, ModelUnavailable, NoToolCall, Rejected, RequestError
from holdfast.llm.base import Catalog, Model, ModelInfo, ModelRequest

_WITHOUT_CONTENT: Final = (UsageDelta, Finish)


class Instrumentation(msgspec.Struct, frozen=True):
    """Who is told of model calls and tools, besides the run itself."""

    spans: Spans
    traces: ProviderTraces | None = None


class ModelCall:
    """One attempt. What has come in so far can be read at any time, also after the attempt was cut off."""

    def __init__(
        self,
        session: Session,
        info: ModelInfo,
        model: Model,
        request: ModelRequest,
        intent: CallModel,
        instrumentation: Instrumentation,
    ) -> None:
        self._session = session
        self._info = info
        self._model = model
        self.request = request
        self.intent = intent
        self._instrumentation = instrumentation
        self._folder = ReplyFolder()
        self._first_ns: int | None = None
        step = session.step
        assert step is not None
        self._step_id = step.id
        self.attempt = session.begin_attempt(step)
        self._emitter = emitter_for(session.spec, intent, self.attempt, step.id, session.clock)

    @property
    def provider(self) -> str:
        return self._info.provider_name

    @property
    def so_far(self) -> Reply:
        return self._folder.reply()

    async def complete(self) -> Reply:
        traces = self._instrumentation.traces
        recording = await traces.begin(self._session, self._step_id, self._model, self.request) if traces else None
        with self._instrumentation.spans.model(self._info, self._step_id) as work, _Account(self, recording):
            reply = await self._whole()
            work.replied(reply)
            return reply

    def ended(self, started_ns: int, recording: Recording | None, error: BaseException | None) -> None:
        """However it ended: it took its time, and what was sent and said is on record."""
        self._session.asked_model(started_ns, self._first_ns)
        if recording is not None:
            recording.end(self.so_far, error)

    def started(self) -> int:
        self._session.metrics.asking_model(self._session.clock.now_us())
        return self.now_ns()

    def now_ns(self) -> int:
        return self._session.clock.now_ns()

    async def _whole(self) -> Reply:
        if self._emitter is None:
            await self._collect()
        else:
            await self._stream(self._emitter)
        reply = self._folder.reply()
        if reply.finish is None:
            raise ModelUnavailable("The model's stream ended before the reply was finished.")
        if not reply.parts and not (reply.usage and reply.usage.completion_tokens):
            # A model that chose to say nothing has at least ended its turn, and vendors count that.
            raise EmptyReply("The model's reply has no content, and the provider counted none.")
        if self._session.spec.heartbeats is not None and not reply.calls and reply.finish != "length":
            raise NoToolCall(heartbeats.NO_CALL)
        return reply

    async def _collect(self) -> None:
        add, waiting = self._folder.add, True
        async with aclosing(self._model.stream(self.request)) as deltas:
            async for delta in deltas:
                if waiting and not isinstance(delta, _WITHOUT_CONTENT):
                    self._first_ns, waiting = self.now_ns(), False
                add(delta)

    async def _stream(self, emitter: Emitter | HeartbeatEmitter) -> None:
        session, add = self._session, self._folder.add
        publish, frames_of, waiting = session.stream.publish, emitter.frames, True
        async with aclosing(self._model.stream(self.request)) as deltas:
            async for delta in deltas:
                if waiting and not isinstance(delta, _WITHOUT_CONTENT):
                    self._first_ns, waiting = self.now_ns(), False
                add(delta)
                frames = frames_of(delta)
                if frames:
                    publish(*frames)
                    if session.ttft_ns is None:
                        session.first_content()
                        await asyncio.sleep(0)  # whoever listens hears it now, not after all that came with it
        publish(*emitter.finish())


def emitter_for(
    spec: RunSpec, intent: CallModel, attempt: Attempt, step_id: str, clock: Clock
) -> Emitter | HeartbeatEmitter | None:
    """None for a run that shows its messages only when they are whole."""
    if not spec.stream_tokens:
        return None
    if spec.heartbeats is None:
        return Emitter(spec, intent, attempt, step_id, clock)
    return HeartbeatEmitter(spec, spec.heartbeats, intent, attempt, step_id, clock)


class _Account:
    """From the moment the request is sent until its last byte has come, or never will."""

    def __init__(self, call: ModelCall, recording: Recording | None) -> None:
        self._call = call
        self._recording = recording
        self._started_ns = 0

    def __enter__(self) -> None:
        self._started_ns = self._call.started()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call.ended(self._started_ns, self._recording, error)


async def find_model(catalog: Catalog, handle: str) -> tuple[ModelInfo, Model]:
    """Raises a ModelError, as a vendor does that does not know the model."""
    try:
        info = await catalog.find(handle)
        return info, catalog.open(info)
    except RequestError as refusal:  # it is not there any more, or what it is reached through is not installed
        raise Rejected(refusal.message) from refusal
