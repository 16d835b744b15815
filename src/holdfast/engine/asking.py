"""Asks a model outside the steps of a run: for a summary, or for one answer. Tries again as runs do."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from random import random

from holdfast.core.deltas import Reply, ReplyFolder
from holdfast.core.retry_policy import RetryPolicy, pause_ms
from holdfast.engine.rate_limits import RateLimits
from holdfast.engine.spans import Spans
from holdfast.errors import ModelError, ModelUnavailable
from holdfast.llm.base import Model, ModelInfo, ModelRequest

log = logging.getLogger(__name__)


class Asker:
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
