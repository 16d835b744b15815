"""Makes the summary that stands for the oldest part of a window. Decides nothing that core/compaction can decide."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from holdfast import ids
from holdfast.core import compaction, model_history
from holdfast.core.deltas import Reply
from holdfast.core.failures import RetryPolicy
from holdfast.core.messages import Message, Summary, text_of
from holdfast.core.records import CompactionSettings, ModelChoice
from holdfast.core.usage import calibrated, estimate_tokens, should_compact
from holdfast.engine.clock import Clock
from holdfast.engine.model_call import Asker, TokenRatios, find_model
from holdfast.engine.rate_limits import RateLimits
from holdfast.engine.tracing import Spans
from holdfast.errors import ContextTooLong, EmptyReply, ModelError, Rejected, SystemPromptTooLong
from holdfast.llm.base import Catalog, Model, ModelInfo, ModelRequest, ToolSchema

log = logging.getLogger(__name__)


class Compaction(msgspec.Struct, frozen=True):
    summary: Message
    evicted: tuple[Message, ...]
    tokens_after: int


class CompactionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compacted, and for whom."""

    window: Sequence[Message]
    settings: CompactionSettings
    model: ModelChoice
    timezone: str
    trigger: str
    shown: bool
    run_id: str | None = None
    step_id: str | None = None
    tokens_before: int | None = None
    tools: Sequence[ToolSchema] = ()  # sent with every request, whatever the window holds
    fewest_evicted: int = 1  # rows; 2 where the window must have fewer rows afterwards


class Compactor:
    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        ratios: TokenRatios,
        retry_policy: RetryPolicy,
        spans: Spans | None = None,
        rate_limits: RateLimits | None = None,
    ) -> None:
        self.ratios = ratios
        self.asker = Asker(retry_policy, spans, rate_limits)
        self._catalog = catalog
        self._clock = clock

    async def compact(self, wanted: CompactionJob) -> Compaction:
        """The first mode that frees enough; else the best there was. Raises a ModelError when none can be had."""
        ratio = await self.ratios.of(wanted.model.handle)
        _require_small_system(wanted, ratio)
        best: Compaction | None = None
        failure: ModelError | None = None
        for mode in compaction.modes_to_try(wanted.settings.mode):
            settings = msgspec.structs.replace(wanted.settings, mode=mode)
            try:
                made = await self._try(wanted, settings, ratio)
            except ModelError as error:
                log.info("a summary could not be made in the mode %s: %s", mode, error)
                failure = error
                continue
            if made is None:
                continue
            if not should_compact(made.tokens_after, wanted.model.context_window):
                return made
            if best is None or made.tokens_after < best.tokens_after:
                best = made
        if best is None:
            raise failure or ContextTooLong(
                "The context is too long for the model and nothing in it can be summarised."
            )
        log.warning("compaction left %d tokens in a window of %d", best.tokens_after, wanted.model.context_window)
        return best

    async def _try(self, wanted: CompactionJob, settings: CompactionSettings, ratio: float | None) -> Compaction | None:
        window, model = wanted.window, wanted.model
        overhead = model_history.estimate_tools(wanted.tools)

        def estimate(row: Message) -> int:
            return model_history.estimate_shown(row, model.context_window)

        place = compaction.cut(
            window,
            settings,
            context_window=model.context_window,
            overhead_tokens=overhead,
            ratio=ratio,
            estimate=estimate,
        )
        start = compaction.first_evictable(window)
        evicted = tuple(window[start:place])
        if len(evicted) < wanted.fewest_evicted or not compaction.summarisable(evicted):
            return None
        said = await self._summarise(wanted, settings, evicted)
        text = compaction.clip(said, settings.clip_chars, context_window=model.context_window, ratio=ratio)
        kept = sum(map(estimate, [*window[:start], *window[place:]])) + overhead
        tokens_after = calibrated(kept + estimate_tokens(text), ratio)
        gone = sum(map(estimate, evicted))
        stats = compaction.stats(
            wanted.trigger,
            context_window=model.context_window,
            before=window,
            cut_at=place,
            tokens_before=wanted.tokens_before or calibrated(kept + gone, ratio),
            tokens_after=tokens_after,
        )
        summary = Message(
            id=ids.new("message"),
            role="summary",
            parts=(Summary(text, stats, shown=wanted.shown),),
            created_us=self._clock.now_us(),
            run_id=wanted.run_id,
            step_id=wanted.step_id,
            model=model.handle,
        )
        return Compaction(summary, evicted, tokens_after)

    async def _summarise(self, wanted: CompactionJob, settings: CompactionSettings, evicted: Sequence[Message]) -> str:
        by_itself = compaction.is_own_summary(settings.mode)
        info, model = await self._summariser(wanted.model.handle, None if by_itself else settings.model)
        system, turns = compaction.summary_request(
            evicted,
            settings,
            system=text_of(wanted.window[0].parts),
            model_handle=info.handle,
            context_window=min(info.context_window, wanted.model.context_window),
            timezone=wanted.timezone,
        )
        own = info.handle == wanted.model.handle
        request = ModelRequest(
            handle=info.handle,
            system=system,
            turns=turns,
            # Vendors keep prompts by their beginnings, and that is where the tools stand.
            tools=tuple(wanted.tools) if by_itself else (),
            tool_choice="none",
            context_window=info.context_window,
            max_output_tokens=wanted.model.max_output_tokens if own else None,
            settings=settings.model_settings or (wanted.model.settings if own else {}),
        )
        return _summary_of(info, await self.asker.ask(info, model, request, wanted.run_id, wanted.step_id))

    async def _summariser(self, own: str, named: str | None) -> tuple[ModelInfo, Model]:
        if named is not None and named != own:
            try:
                return await find_model(self._catalog, named)
            except Rejected as missing:
                log.warning("%s makes the summary, because %s cannot be had: %s", own, named, missing)
        return await find_model(self._catalog, own)


def _summary_of(info: ModelInfo, reply: Reply) -> str:
    if reply.usage is not None:
        # Not part of any run's usage: this is the one place that tells what it cost.
        cost = reply.usage.prompt_tokens, reply.usage.completion_tokens
        log.info("a summary by %s took %d prompt and %d completion tokens", info.handle, *cost)
    text = text_of(reply.parts)
    if not text.strip():
        raise EmptyReply("The model returned an empty summary.")
    return text


def system_too_long(tokens: int, context_window: int) -> SystemPromptTooLong:
    return SystemPromptTooLong(
        f"The system prompt and the tools take about {tokens} tokens of a window of {context_window}."
    )


def _require_small_system(wanted: CompactionJob, ratio: float | None) -> None:
    """Nothing that can be summarised would help."""
    fixed = wanted.window[: compaction.first_evictable(wanted.window)]
    guess = sum(map(model_history.estimate_message, fixed)) + model_history.estimate_tools(wanted.tools)
    tokens = calibrated(guess, ratio)
    if tokens >= wanted.model.context_window:
        raise system_too_long(tokens, wanted.model.context_window)
