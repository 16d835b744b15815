"""Makes the summary that stands for the oldest part of a window. Decides nothing that core/compaction can decide."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from holdfast import ids
from holdfast.core import compaction, context
from holdfast.core.deltas import ReplyFolder
from holdfast.core.messages import Message, Summary, text_of
from holdfast.core.records import CompactionSettings, ModelChoice
from holdfast.engine.clock import Clock
from holdfast.errors import ContextTooLong, EmptyReply, ModelError, SystemPromptTooLong
from holdfast.llm.base import Catalog, ModelRequest


class Compaction(msgspec.Struct, frozen=True):
    summary: Message
    evicted: tuple[Message, ...]
    tokens_after: int


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
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


class Compactor:
    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    async def compact(self, wanted: Wanted) -> Compaction:
        """The first mode that frees enough; else the best there was. Raises a ModelError when none can be had."""
        best: Compaction | None = None
        failure: ModelError | None = None
        for mode in compaction.modes_to_try(wanted.settings.mode):
            settings = msgspec.structs.replace(wanted.settings, mode=mode)
            try:
                made = await self._try(wanted, settings)
            except ModelError as error:
                failure = error
                continue
            if made is not None:
                best = made
                if not compaction.should_compact(made.tokens_after, wanted.model.context_window):
                    return made
        if best is None:
            raise failure or self._nothing_to_evict(wanted)
        return best

    async def _try(self, wanted: Wanted, settings: CompactionSettings) -> Compaction | None:
        window, model = wanted.window, wanted.model
        place = compaction.cut(window, settings, context_window=model.context_window)
        start = compaction.first_evictable(window)
        evicted = tuple(window[start:place])
        if not evicted or (len(evicted) == 1 and evicted[0].role == "summary"):
            return None
        text = compaction.clip(await self._summarise(wanted, settings, evicted), settings.clip_chars)
        kept = [*window[:start], *window[place:]]
        tokens_after = sum(map(context.estimate_message, kept)) + len(text) // context.BYTES_PER_TOKEN
        stats = compaction.stats(
            wanted.trigger,
            context_window=model.context_window,
            before=window,
            cut_at=place,
            tokens_before=wanted.tokens_before or sum(map(context.estimate_message, window)),
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

    async def _summarise(self, wanted: Wanted, settings: CompactionSettings, evicted: Sequence[Message]) -> str:
        info = await self._catalog.find(settings.model or wanted.model.handle)
        system, turns = compaction.summary_request(
            evicted,
            settings,
            system=text_of(wanted.window[0].parts),
            model_handle=info.handle,
            context_window=min(info.context_window, wanted.model.context_window),
            timezone=wanted.timezone,
        )
        request = ModelRequest(
            handle=info.handle,
            system=system,
            turns=turns,
            context_window=info.context_window,
            settings=settings.model_settings or {},
        )
        folder = ReplyFolder()
        async with aclosing(self._catalog.open(info).stream(request)) as deltas:
            async for delta in deltas:
                folder.add(delta)
        text = text_of(folder.reply().parts)
        if not text.strip():
            raise EmptyReply("The model returned an empty summary.")
        return text

    def _nothing_to_evict(self, wanted: Wanted) -> ModelError:
        system_tokens = context.estimate_message(wanted.window[0]) if wanted.window else 0
        if system_tokens >= wanted.model.context_window:
            return SystemPromptTooLong(
                f"The system prompt takes about {system_tokens} tokens of a window of {wanted.model.context_window}."
            )
        return ContextTooLong("The context is too long for the model and nothing in it can be summarised.")
