"""Asks a model: builds what it is sent, follows its reply, and learns from it how the model counts.

`ModelCall` is one try within a step of a run: it folds the deltas into a reply, and shows them to listeners as they
come. Whatever else wants one answer of a model goes through `Asker`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import aclosing
from random import random
from types import TracebackType
from typing import Final

from holdfast.core import heartbeat_loop, tool_rules
from holdfast.core.deltas import Finish, Reply, ReplyFolder, UsageDelta
from holdfast.core.failures import RetryPolicy, pause_ms
from holdfast.core.messages import Message, text_of
from holdfast.core.model_history import HistoryBuilder, HistoryKey, rows_of_turn
from holdfast.core.run import CallModel
from holdfast.core.spec import HeartbeatLoop, RunSpec, Speaking, ToolSpec
from holdfast.core.usage import Usage, updated_ratio, worth_storing
from holdfast.engine.emitter import Emitter, HeartbeatEmitter, emitter_for
from holdfast.engine.rate_limits import RateLimits
from holdfast.engine.run_session import Session
from holdfast.engine.tracing import Instrumentation, Recording, Spans
from holdfast.errors import EmptyReply, ModelError, ModelUnavailable, NoToolCall, Rejected, RequestError
from holdfast.llm.base import Catalog, Model, ModelInfo, ModelRequest, NamedTool, ToolChoice, ToolSchema
from holdfast.store import kv
from holdfast.store.transaction import Database, Transaction

_WITHOUT_CONTENT: Final = (UsageDelta, Finish)
log = logging.getLogger(__name__)


async def find_model(catalog: Catalog, handle: str) -> tuple[ModelInfo, Model]:
    """Raises a ModelError, as a vendor does that does not know the model."""
    try:
        info = await catalog.find(handle)
        return info, catalog.open(info)
    except RequestError as refusal:  # it is not there any more, or what it is reached through is not installed
        raise Rejected(refusal.message) from refusal


def build_request(
    spec: RunSpec,
    intent: CallModel,
    window: list[Message],
    run_id: str,
    history_builder: HistoryBuilder,
) -> ModelRequest:
    """What a model is sent for one step."""
    model, loop = spec.model, spec.heartbeats
    rows = rows_of_turn(window, run_id) if spec.autoclear else window
    key = HistoryKey(model.handle, model.context_window, spec.timezone, loop is not None and loop.thinking)
    built = history_builder.build(rows, key)
    return ModelRequest(
        handle=model.handle,
        system=_system_text(spec, window),
        turns=built.turns,
        turns_size=built.size,
        tools=tool_schemas(spec, intent.choice.allowed),
        tool_choice=_tool_choice(intent),
        parallel_tool_calls=intent.parallel,
        context_window=model.context_window,
        max_output_tokens=model.max_output_tokens,
        temperature=model.temperature,
        response_format=model.response_format if loop is None else None,
        settings=model.settings,
        user=spec.agent_id,
    )


def _system_text(spec: RunSpec, window: list[Message]) -> str:
    stored = text_of(window[0].parts) if window and window[0].role == "system" else ""
    if spec.override_system is not None:
        return spec.override_system
    return f"{stored}\n\n{spec.skills}" if spec.skills else stored


def tool_schemas(spec: RunSpec, names: Collection[str]) -> tuple[ToolSchema, ...]:
    wanted = set(names)
    offered = [tool for tool in spec.tools if tool.name in wanted]
    if spec.heartbeats is None:
        return tuple(ToolSchema(tool.name, tool.description, tool.parameters) for tool in offered)
    return tuple(_heartbeat_schema(spec, spec.heartbeats, tool) for tool in offered)


def _heartbeat_schema(spec: RunSpec, loop: HeartbeatLoop, tool: ToolSpec) -> ToolSchema:
    ends_turn = tool_rules.any_ends_turn(spec.rules, (tool.name,))
    parameters = tool.parameters
    if tool.name == Speaking().tool and spec.model.response_format is not None:
        parameters = heartbeat_loop.with_shaped_message(parameters, spec.model.response_format)
    offered = heartbeat_loop.with_arguments(parameters, thinking=loop.thinking, heartbeat=not ends_turn)
    return ToolSchema(tool.name, tool.description, offered)


def _tool_choice(intent: CallModel) -> ToolChoice:
    if not intent.choice.allowed:
        return "none"
    if not intent.choice.forced:
        return "auto"
    return NamedTool(intent.choice.allowed[0]) if len(intent.choice.allowed) == 1 else "required"


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
        self._emitter: Emitter | HeartbeatEmitter | None = None  # messages are shown when they are whole
        if session.spec.stream_tokens:
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
            raise NoToolCall(heartbeat_loop.NO_CALL)
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


class Asker:
    """Asks a model outside the steps of a run: for a summary, or for one answer. Tries again as runs do."""

    def __init__(
        self, retry_policy: RetryPolicy, spans: Spans | None = None, rate_limits: RateLimits | None = None
    ) -> None:
        self._retry_policy = retry_policy
        self._spans = spans or Spans()
        self._rate_limits = rate_limits

    async def ask(
        self,
        info: ModelInfo,
        model: Model,
        request: ModelRequest,
        run_id: str | None = None,
        step_id: str | None = None,
    ) -> Reply:
        """A whole reply. Raises a ModelError. The ids are those of the run and the step that it is asked for."""
        failures = 0
        while True:
            try:
                return await self._ask_once(info, model, request, run_id, step_id)
            except ModelError as error:
                failures += 1
                wait = pause_ms(self._retry_policy, failures, error.retry_after, random())
                if wait is None or not error.retryable:
                    raise
                log.info("%s will be asked again in %d ms: %s", info.handle, wait, error)
            await asyncio.sleep(wait / 1_000)

    async def _ask_once(
        self, info: ModelInfo, model: Model, request: ModelRequest, run_id: str | None, step_id: str | None
    ) -> Reply:
        limits = self._rate_limits.of(info.provider_name) if self._rate_limits is not None else None
        guess = request.estimated_tokens() if limits is not None else 0
        if limits is not None:
            await limits.admit(guess, run_id)
        folder = ReplyFolder()
        with self._spans.model(info, step_id) as work:
            async with aclosing(model.stream(request)) as deltas:
                async for delta in deltas:
                    folder.add(delta)
            reply = folder.reply()
            work.replied(reply)
            if limits is not None:
                limits.used(guess, reply.usage)
            if reply.finish is None:
                raise ModelUnavailable("The model's stream ended before the reply was finished.")
        return reply


class TokenRatios:
    """What a vendor counts for each token that we guess: learnt from its replies, and stored with their checkpoints.

    In memory once asked for; several workers learn side by side, and the last to store is read by the next.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, float | None] = {}
        self._stored: dict[str, float | None] = {}

    async def of(self, handle: str) -> float | None:
        """None: this model has not said yet."""
        if handle not in self._known:
            stored = await self._database.read(lambda tx: kv.number(tx, _key(handle)))
            self._stored.setdefault(handle, stored)
            self._known.setdefault(handle, stored)
        return self._known[handle]

    def learn(self, handle: str, guessed: int, usage: Usage | None) -> float | None:
        """The ratio to be stored, when it has moved far enough for that."""
        if usage is None or usage.estimated:
            return None
        ratio = self._known[handle] = updated_ratio(self._known.get(handle), guessed, usage.prompt_tokens)
        if ratio is None or not worth_storing(self._stored.get(handle), ratio):
            return None
        self._stored[handle] = ratio
        return ratio


async def store_ratio(tx: Transaction, handle: str, ratio: float) -> None:
    await kv.set_number(tx, _key(handle), ratio)


def _key(handle: str) -> str:
    return f"token_ratio/{handle}"
