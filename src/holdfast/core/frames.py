"""What a listener sees of a run, in order. A run's frames are numbered 1, 2, 3…; the number is the wire's `seq_id`.

Numbers are dense while a run has one owner, and jump where an owner died (decision 13). Only frames of background runs
are stored (decision 3).

The last frame of a finished run is UsageFrame, or ErrorFrame when it failed; StopFrame comes right before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.messages import Message, wire_message_count
from holdfast.core.records import FAILED_WITH_ANSWER, StopReason
from holdfast.core.spec import Speaking, only_confirms_speech, spoken_text
from holdfast.core.usage import Usage


class FrameBase(msgspec.Struct, frozen=True, array_like=True):
    pass


class TextFrame(FrameBase, frozen=True, tag="t"):
    """A fragment of assistant text. `index` is the wire index of the part within its message (for the otid)."""

    message_id: str
    index: int
    step_id: str
    at_us: int
    text: str


class ReasoningFrame(FrameBase, frozen=True, tag="r"):
    message_id: str
    index: int
    step_id: str
    at_us: int
    text: str
    signature: str | None = None
    native: bool = True  # False: thoughts that the model was asked for, in an argument of its call


class HiddenReasoningFrame(FrameBase, frozen=True, tag="h"):
    message_id: str
    index: int
    step_id: str
    at_us: int
    state: Literal["redacted", "omitted"]
    data: str | None = None


class CallFrame(FrameBase, frozen=True, tag="c"):
    """A fragment of a tool call. The name comes with the first fragment only. `held`: it asks for approval."""

    message_id: str
    index: int
    step_id: str
    at_us: int
    call_id: str
    name: str | None
    arguments: str
    held: bool


class MessageFrame(FrameBase, frozen=True, tag="m"):
    """A stored message: every message of a step in step mode; tool returns and summaries in token mode.

    `index` is that of the wire message it stands for, as one row may become several; None stands for all of them.
    """

    message: Message
    index: int | None = None
    speaking: Speaking | None = None  # the tool whose calls are shown as words


class CompactionFrame(FrameBase, frozen=True, tag="x"):
    """Compaction began; shown only to requests that asked for compaction messages."""

    message_id: str
    step_id: str | None
    at_us: int
    trigger: str
    context_token_estimate: int | None
    context_window: int


class RetryFrame(FrameBase, frozen=True, tag="y"):
    """A try of a model call failed, and another follows. What was shown of it is void."""

    message_id: str
    step_id: str
    at_us: int
    attempt: int  # the one to come
    max_attempts: int
    error_type: str
    message: str
    retry_in_ms: int
    abandoned_ids: tuple[str, ...] = ()  # of the messages whose fragments were shown


class AbandonedFrame(FrameBase, frozen=True, tag="a"):
    """The fragments of this message belong to an abandoned attempt (decisions 4, 10): a replay leaves them out. Not on
    the wire."""

    message_id: str


class StopFrame(FrameBase, frozen=True, tag="s"):
    stop_reason: StopReason


class UsageFrame(FrameBase, frozen=True, tag="u"):
    usage: Usage
    step_count: int
    context_tokens: int | None = None
    run_ids: tuple[str, ...] = ()  # of the runs that this one has made due


class ErrorFrame(FrameBase, frozen=True, tag="e"):
    error: dict[str, Any]  # the same object as run.metadata["error"]


Frame = (
    TextFrame
    | ReasoningFrame
    | HiddenReasoningFrame
    | CallFrame
    | MessageFrame
    | CompactionFrame
    | RetryFrame
    | AbandonedFrame
    | StopFrame
    | UsageFrame
    | ErrorFrame
)
TERMINAL = (UsageFrame, ErrorFrame)


def closing_frames(
    stop_reason: StopReason,
    error: dict[str, Any] | None,
    usage: Usage,
    step_count: int,
    context_tokens: int | None = None,
) -> list[Frame]:
    """The last two frames of every stream, whether the run has just stopped or its stored end is shown again."""
    if error is not None and stop_reason not in FAILED_WITH_ANSWER:
        return [StopFrame(stop_reason), ErrorFrame(error)]
    return [StopFrame(stop_reason), UsageFrame(usage, step_count, context_tokens)]


def with_due_runs(frames: Sequence[Frame], run_ids: tuple[str, ...]) -> Sequence[Frame]:
    """The end of a run tells of the runs that it has made due, if there are any."""
    if not run_ids:
        return frames
    return [msgspec.structs.replace(each, run_ids=run_ids) if isinstance(each, UsageFrame) else each for each in frames]


def message_frames(message: Message, speaking: Speaking | None = None) -> list[MessageFrame]:
    """One for each wire message, so that each has a number of its own and a reader can resume between them. None for
    returns that are not shown, because the words of their calls are."""
    if message.role == "tool" and all(only_confirms_speech(answer, speaking) for answer in message.returns):
        return []
    return [MessageFrame(message, index, speaking) for index in range(_shown_parts(message, speaking))]


def _shown_parts(message: Message, speaking: Speaking | None) -> int:
    """Each call that is shown as words is a message of its own; all others are one together."""
    spoken = (
        sum(spoken_text(call, speaking) is not None for call in message.calls) if message.role == "assistant" else 0
    )
    others = 0 < spoken < len(message.calls)
    return wire_message_count(message) + max(0, spoken - 1) + others
