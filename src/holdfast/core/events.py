"""What can happen to a run: facts, in the past tense. The journal is a list of these; text lives in messages."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.core.hold import Hold, ToolIdentity
from holdfast.core.messages import Status, ToolCall
from holdfast.core.records import StopReason
from holdfast.core.spec import RunSpec
from holdfast.core.usage import Usage

# Long enough for any mapping key of a conditional rule; the whole text is in the tool's message.
RETURNED_CHARS = 512


class Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    pass


class JudgedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call the model made, and what the rules say of it.

    held: waits for a decision. refused: never runs; `note` is its return. fatal: refused, and ends the run.
    denied and answered: decided by the human or the client. `approved` is the only tool that an approved call may run.
    `heartbeat`: it asks for another step, in a run where that decides.
    """

    call: ToolCall
    verdict: Literal["allowed", "held", "refused", "fatal", "denied", "answered"]
    note: str | None = None
    approved: ToolIdentity | None = None
    heartbeat: bool = False


class RunStarted(Event, frozen=True, tag="run_started"):
    """`resumes`: the calls of a decided hold, with which an approval's successor run begins."""

    spec: RunSpec
    input_ids: tuple[str, ...]
    resumes: tuple[JudgedCall, ...] = ()
    resumed_step_id: str | None = None
    # Set when user messages came with the approval: the place kept free before them for the tools' returns.
    return_position: int | None = None


class ModelReplied(Event, frozen=True, tag="model_replied"):
    message_id: str | None  # None: the reply was empty and nothing was stored
    calls: tuple[JudgedCall, ...]
    finish: Literal["stop", "tool_calls", "length"]
    usage: Usage
    spoke: bool = True


class ModelFailed(Event, frozen=True, tag="model_failed"):
    """`usage` is what the failed try is known to have cost."""

    stop_reason: StopReason
    error: dict[str, Any]
    overflow: bool = False  # the context was too long: compaction may help
    retry_in_ms: int | None = None  # None: there is no other try
    usage: Usage = Usage()


class ToolsStarted(Event, frozen=True, tag="tools_started"):
    call_ids: tuple[str, ...]


class ToolReturned(Event, frozen=True, tag="tool_returned"):
    call_id: str
    status: Status
    returned: str = ""  # the first RETURNED_CHARS of the text, for conditional rules


class Parked(Event, frozen=True, tag="parked"):
    hold: Hold


class Resumed(Event, frozen=True, tag="resumed"):
    by_run: str


class Compacted(Event, frozen=True, tag="compacted"):
    summary_id: str
    evicted: int
    context_tokens: int


class CompactionFailed(Event, frozen=True, tag="compaction_failed"):
    stop_reason: StopReason
    error: dict[str, Any]


class CancelAsked(Event, frozen=True, tag="cancel_asked"):
    """`usage` is what the interrupted model call is known, or thought, to have cost."""

    by: str = "user"
    usage: Usage = Usage()


class RunFailed(Event, frozen=True, tag="run_failed"):
    """A bug or an error of the server. The run ends as failed, with its calls settled (I3, I10)."""

    stop_reason: StopReason
    error: dict[str, Any]


AnyEvent = (
    RunStarted
    | ModelReplied
    | ModelFailed
    | ToolsStarted
    | ToolReturned
    | Parked
    | Resumed
    | Compacted
    | CompactionFailed
    | CancelAsked
    | RunFailed
)
