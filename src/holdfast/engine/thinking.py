"""Calls the model for one step, folding its deltas and showing them to listeners as they come."""

from __future__ import annotations

from contextlib import aclosing

from holdfast.core.deltas import Reply, ReplyFolder
from holdfast.core.run import CallModel
from holdfast.engine.emitter import Emitter
from holdfast.engine.session import Session
from holdfast.errors import ModelUnavailable
from holdfast.llm.base import Model, ModelRequest


class ModelCall:
    """One attempt. What has come in so far can be read at any time, also after the attempt was cut off."""

    def __init__(self, session: Session, model: Model, request: ModelRequest, intent: CallModel) -> None:
        self._session = session
        self._model = model
        self._request = request
        self._folder = ReplyFolder()
        step = session.step
        assert step is not None
        self.attempt = session.begin_attempt(step)
        spec = session.spec
        self._emitter = Emitter(spec, intent, self.attempt, step.id, session.clock) if spec.stream_tokens else None

    @property
    def so_far(self) -> Reply:
        return self._folder.reply()

    async def complete(self) -> Reply:
        if self._emitter is None:
            await self._collect()
        else:
            await self._stream(self._emitter)
        reply = self._folder.reply()
        if reply.finish is None:
            raise ModelUnavailable("The model's stream ended before the reply was finished.")
        return reply

    async def _collect(self) -> None:
        add = self._folder.add
        async with aclosing(self._model.stream(self._request)) as deltas:
            async for delta in deltas:
                add(delta)

    async def _stream(self, emitter: Emitter) -> None:
        session, add = self._session, self._folder.add
        publish, frames_of = session.stream.publish, emitter.frames
        async with aclosing(self._model.stream(self._request)) as deltas:
            async for delta in deltas:
                add(delta)
                frames = frames_of(delta)
                if frames:
                    publish(*frames)
                    if session.ttft_ns is None:
                        session.first_content()
        publish(*emitter.finish())
