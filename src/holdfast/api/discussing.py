"""Answers to messages to groups: what each agent says, in the order in which they speak, then one end for all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

from starlette.responses import Response

from holdfast.actions.assembled import Holdfast
from holdfast.api.errors import HANDED_OVER, failed_run_answer
from holdfast.api.event_stream import EventStream
from holdfast.api.json import json_response
from holdfast.core.frames import (
    TERMINAL,
    CompactionFrame,
    ErrorFrame,
    Frame,
    MessageFrame,
    StopFrame,
    UsageFrame,
    closing_frames,
)
from holdfast.core.messages import Message
from holdfast.core.records import Discussion
from holdfast.core.usage import Usage
from holdfast.engine.streams import Numbered
from holdfast.errors import HandedOver
from holdfast.wire.requests import LettaRequest, LettaStreamingRequest
from holdfast.wire.responses import live_messages, stop_reason_view, usage_statistics
from holdfast.wire.sse import FrameEncoder


class _Total:
    """What all runs of a discussion have used."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.steps = 0

    def add(self, frame: Frame) -> None:
        if isinstance(frame, UsageFrame):
            self.usage += frame.usage
            self.steps += frame.step_count


class _Encoder(FrameEncoder):
    """Shows the frames of one run after another."""

    def __init__(self, discussion_id: str, request: LettaRequest) -> None:
        super().__init__(discussion_id)
        self._request = request
        self._current: FrameEncoder | None = None

    def begin(self, run_id: str) -> None:
        self._current = FrameEncoder(
            run_id,
            include_types=self._request.include_return_message_types,
            include_compaction=self._request.include_compaction_messages,
        )

    def encode_all(self, frames: Iterable[Numbered]) -> bytes:
        return self._current.encode_all(frames) if self._current is not None else super().encode_all(frames)


async def answer(deps: Holdfast, group_id: str, request: LettaRequest) -> Response:
    discussion = await deps.discuss.begin(group_id, request)
    total, shown = _Total(), list[dict[str, object]]()
    async for run in deps.discuss.speaking_runs(discussion.id):
        frames = await deps.reader.frames_of(run.id)
        if not frames or not isinstance(frames[-1], TERMINAL):
            return failed_run_answer(HANDED_OVER)
        total.add(frames[-1])
        speaking = next((frame.speaking for frame in frames if isinstance(frame, MessageFrame)), None)
        shown += live_messages(
            _said(frames),
            include_types=request.include_return_message_types,
            include_compaction=request.include_compaction_messages,
            run_id=run.id,
            speaking=speaking,
        )
    end = _closing(await deps.discuss.outcome(discussion.id), total)
    if isinstance(end[-1], ErrorFrame):
        return failed_run_answer(end[-1].error)
    assert isinstance(end[0], StopFrame)
    return json_response(
        {
            "messages": shown,
            "stop_reason": stop_reason_view(end[0].stop_reason),
            "usage": usage_statistics(total.usage, step_count=total.steps),
            "logprobs": None,
            "turns": None,
        }
    )


async def stream(deps: Holdfast, group_id: str, request: LettaStreamingRequest) -> EventStream:
    discussion = await deps.discuss.begin(group_id, request, stream_tokens=request.stream_tokens)
    encoder = _Encoder(discussion.id, request)
    batches = _followed(deps, discussion, encoder)
    return EventStream(batches, encoder, keepalive_s=deps.settings.keepalive_s, include_pings=request.include_pings)


async def _followed(deps: Holdfast, discussion: Discussion, encoder: _Encoder) -> AsyncGenerator[Sequence[Numbered]]:
    total = _Total()
    async for run in deps.discuss.speaking_runs(discussion.id):
        encoder.begin(run.id)
        async for batch in deps.reader.follow(run):
            total.add(batch[-1][1])
            if kept := [each for each in batch if not isinstance(each[1], (StopFrame, *TERMINAL))]:
                yield kept
    yield list(enumerate(_closing(await deps.discuss.outcome(discussion.id), total), 1))


def _said(frames: Sequence[Frame]) -> Iterator[Message | CompactionFrame]:
    for frame in frames:
        if isinstance(frame, MessageFrame) and frame.index in (None, 0):
            yield frame.message
        elif isinstance(frame, CompactionFrame):
            yield frame


def _closing(outcome: Discussion | None, total: _Total) -> list[Frame]:
    if outcome is None:
        error = {"error_type": "internal_error", "message": "The group was deleted while it discussed the message."}
        return closing_frames("error", error, total.usage, total.steps)
    if outcome.ended_us is None or outcome.stop_reason is None:
        raise HandedOver(f"discussion {outcome.id} goes on")
    return closing_frames(outcome.stop_reason, outcome.error, total.usage, total.steps)
