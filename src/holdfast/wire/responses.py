"""What a run answers: the one answer to a blocking request, and the events of a stream.

Rules of a stream. An event has no name, except `event: error`, which makes the SDK raise; any other name it drops.
The types a client asked for concern content only: retries, stop, usage, errors and pings always pass. Fragments are
the hot path, so all that stays the same from one to the next (message, part, second) is encoded once and kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core.frames import (
    AbandonedFrame,
    CallFrame,
    CompactionFrame,
    ErrorFrame,
    Frame,
    HiddenReasoningFrame,
    MessageFrame,
    ReasoningFrame,
    RetryFrame,
    StopFrame,
    TextFrame,
    UsageFrame,
)
from holdfast.core.messages import Message
from holdfast.core.records import StopReason
from holdfast.core.spec import Speaking
from holdfast.core.usage import Usage
from holdfast.wire.messages import WireMessage, envelope, filter_types, hidden_reasoning, to_live, wire_otid
from holdfast.wire.times import MICROSECONDS

DONE: Final = b"data: [DONE]\n\n"

_encode: Final = msgspec.json.Encoder().encode
# JSON may hold these as they are, but readers that split lines the Unicode way would cut an event at them.
_LINE_BREAKS: Final = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
Fragment = TextFrame | ReasoningFrame | CallFrame


def letta_response(
    messages: Iterable[Message | CompactionFrame],
    stop_reason: StopReason,
    usage: Usage,
    *,
    step_count: int,
    context_tokens: int | None = None,
    include_types: Collection[str] | None = None,
    include_compaction: bool = False,
    run_id: str | None = None,
    speaking: Speaking | None = None,
    due_run_ids: Collection[str] = (),
) -> dict[str, Any]:
    """`messages` are those the run made, in order; its input among them does no harm."""
    return {
        "messages": live_messages(
            messages,
            include_types=include_types,
            include_compaction=include_compaction,
            run_id=run_id,
            speaking=speaking,
        ),
        "stop_reason": stop_reason_view(stop_reason),
        "usage": usage_statistics(
            usage, step_count=step_count, context_tokens=context_tokens, run_ids=list(due_run_ids) or None
        ),
        "logprobs": None,
        "turns": None,
    }


def live_messages(
    messages: Iterable[Message | CompactionFrame],
    *,
    include_types: Collection[str] | None = None,
    include_compaction: bool = False,
    run_id: str | None = None,
    speaking: Speaking | None = None,
) -> list[WireMessage]:
    shown: list[WireMessage] = []
    for message in messages:
        if isinstance(message, Message):
            shown += to_live(message, include=include_types, include_compaction=include_compaction, speaking=speaking)
        elif include_compaction:
            shown += filter_types([compaction_event(message, run_id)], include_types)
    return shown


def compaction_event(frame: CompactionFrame, run_id: str | None, seq_id: int | None = None) -> WireMessage:
    shown = envelope(
        "event_message", frame.message_id, frame.at_us, step_id=frame.step_id, run_id=run_id, seq_id=seq_id
    )
    data = {
        "trigger": frame.trigger,
        "context_token_estimate": frame.context_token_estimate,
        "context_window": frame.context_window,
    }
    return shown | {"event_type": "compaction", "event_data": data}


def retry_event(frame: RetryFrame, run_id: str, seq_id: int | None = None) -> WireMessage:
    shown = envelope(
        "event_message", frame.message_id, frame.at_us, step_id=frame.step_id, run_id=run_id, seq_id=seq_id
    )
    data = {
        "attempt": frame.attempt,
        "max_attempts": frame.max_attempts,
        "error_type": frame.error_type,
        "message": frame.message,
        "retry_in_ms": frame.retry_in_ms,
        "abandoned_message_ids": list(frame.abandoned_ids),
    }
    # Clients do not know this event, take it for some message, and append the contents of neighbours.
    return shown | {"event_type": "retry", "event_data": data, "content": ""}


def stop_reason_view(stop_reason: StopReason) -> dict[str, Any]:
    return {"message_type": "stop_reason", "stop_reason": stop_reason}


def usage_statistics(
    usage: Usage, *, step_count: int, context_tokens: int | None = None, run_ids: list[str] | None = None
) -> dict[str, Any]:
    """Null means that the vendor did not say."""
    return {
        "message_type": "usage_statistics",
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "step_count": step_count,
        "run_ids": run_ids,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "context_tokens": context_tokens,
    }


def error_message(error: Mapping[str, Any], run_id: str, seq_id: int | None = None) -> dict[str, Any]:
    """`error` is what the run keeps in `metadata.error`. Absent fields are left out: their schema has no null."""
    shown: dict[str, Any] = {
        "message_type": "error_message",
        "run_id": error.get("run_id") or run_id,
        "error_type": error.get("error_type") or "internal_error",
        "message": error.get("message") or "An error occurred during agent execution.",
    }
    if (detail := error.get("detail")) is not None:
        shown["detail"] = str(detail)
    if seq_id is not None:
        shown["seq_id"] = seq_id
    return shown


def _now_us() -> int:
    return time.time_ns() // 1000


class FrameEncoder:
    """One per reader of a run. `background` runs show their sequence numbers; the others have nothing to resume."""

    def __init__(
        self,
        run_id: str,
        *,
        background: bool = False,
        include_types: Collection[str] | None = None,
        include_compaction: bool = False,
        now_us: Callable[[], int] = _now_us,
    ) -> None:
        self._run_id = run_id
        self._background = background
        self._include = include_types
        self._include_compaction = include_compaction
        self._now_us = now_us
        self._text = _FragmentHead("assistant_message", b'"content":', run_id)
        self._reasoning = _FragmentHead("reasoning_message", b'"source":"reasoner_model","reasoning":', run_id)
        self._thoughts = _FragmentHead("reasoning_message", b'"source":"non_reasoner_model","reasoning":', run_id)
        self._call = _FragmentHead("tool_call_message", b'"tool_call":', run_id)
        self._held_call = _FragmentHead("approval_request_message", b'"tool_call":', run_id)
        self._encoders: dict[type[Any], Callable[[int, Any], bytes | None]] = {
            TextFrame: self._text_fragment if self._shows("assistant_message") else _hide,
            ReasoningFrame: self._reasoning_fragment if self._shows("reasoning_message") else _hide,
            HiddenReasoningFrame: self._hidden_reasoning if self._shows("hidden_reasoning_message") else _hide,
            CallFrame: self._call_fragment,
            MessageFrame: self._message,
            CompactionFrame: self._compaction if include_compaction and self._shows("event_message") else _hide,
            RetryFrame: self._retry,
            AbandonedFrame: _hide,
            StopFrame: self._stop,
            UsageFrame: self._usage,
            ErrorFrame: self._error,
        }

    def encode(self, seq: int, frame: Frame) -> bytes | None:
        """None: this reader is not to see the frame."""
        return self._encoders[type(frame)](seq, frame)

    def encode_all(self, frames: Iterable[tuple[int, Frame]]) -> bytes:
        encoders = self._encoders
        return b"".join([shown for seq, frame in frames if (shown := encoders[type(frame)](seq, frame))])

    def ping(self, last_seq: int | None = None) -> bytes:
        """Repeats the number of the last frame, so that a client may resume after a ping as after anything else."""
        seq_id = self._seq_id(last_seq) if last_seq else None
        return _event(envelope("ping", ids.new("ping"), self._now_us(), run_id=self._run_id, seq_id=seq_id))

    # --- fragments ---

    def _text_fragment(self, seq: int, frame: TextFrame) -> bytes:
        return b"%b%b%b" % (self._text.before(frame), _json_text(frame.text), self._tail(seq))

    def _reasoning_fragment(self, seq: int, frame: ReasoningFrame) -> bytes:
        signature = b"null" if frame.signature is None else _json_text(frame.signature)
        head = (self._reasoning if frame.native else self._thoughts).before(frame)
        return b'%b%b,"signature":%b%b' % (head, _json_text(frame.text), signature, self._tail(seq))

    def _call_fragment(self, seq: int, frame: CallFrame) -> bytes | None:
        if not self._shows("approval_request_message" if frame.held else "tool_call_message"):
            return None
        head = self._held_call if frame.held else self._call
        delta: dict[str, Any] = {"name": frame.name, "arguments": frame.arguments, "tool_call_id": frame.call_id}
        if frame.name is None and not frame.held:
            del delta["name"]
        shown = _json(delta)
        return b'%b%b,"tool_calls":%b%b' % (head.before(frame), shown, shown, self._tail(seq))

    def _tail(self, seq: int) -> bytes:
        return b',"seq_id":%d}\n\n' % seq if self._background else b',"seq_id":null}\n\n'

    # --- whole messages ---

    def _hidden_reasoning(self, seq: int, frame: HiddenReasoningFrame) -> bytes:
        otid = wire_otid(frame.message_id, frame.index)
        shown = self._envelope("hidden_reasoning_message", seq, frame.message_id, frame.at_us, frame.step_id, otid)
        return _event(shown | hidden_reasoning(frame.state, frame.data))

    def _message(self, seq: int, frame: MessageFrame) -> bytes | None:
        shown = to_live(
            frame.message,
            index=frame.index,
            include=self._include,
            include_compaction=self._include_compaction,
            seq_id=self._seq_id(seq),
            speaking=frame.speaking,
        )
        return b"".join([_event(message) for message in shown]) or None

    def _compaction(self, seq: int, frame: CompactionFrame) -> bytes:
        return _event(compaction_event(frame, self._run_id, self._seq_id(seq)))

    def _retry(self, seq: int, frame: RetryFrame) -> bytes:
        return _event(retry_event(frame, self._run_id, self._seq_id(seq)))

    # --- the end ---

    def _stop(self, seq: int, frame: StopFrame) -> bytes:
        return _event(self._numbered(stop_reason_view(frame.stop_reason), seq))

    def _usage(self, seq: int, frame: UsageFrame) -> bytes:
        shown = usage_statistics(frame.usage, step_count=frame.step_count, context_tokens=frame.context_tokens)
        return _event(self._numbered(shown, seq))

    def _error(self, seq: int, frame: ErrorFrame) -> bytes:
        return b"event: error\n" + _event(error_message(frame.error, self._run_id, self._seq_id(seq)))

    def _numbered(self, shown: WireMessage, seq: int) -> WireMessage:
        return shown | {"run_id": self._run_id, "seq_id": self._seq_id(seq)}

    def _envelope(
        self, message_type: str, seq: int, id: str, at_us: int, step_id: str | None, otid: str | None
    ) -> WireMessage:
        return envelope(
            message_type, id, at_us, otid=otid, step_id=step_id, run_id=self._run_id, seq_id=self._seq_id(seq)
        )

    def _seq_id(self, seq: int) -> int | None:
        return seq if self._background else None

    def _shows(self, message_type: str) -> bool:
        return self._include is None or message_type in self._include


class _FragmentHead:
    """The bytes of an event before its fragment. They change only with the message, the part or the second."""

    def __init__(self, message_type: str, opening: bytes, run_id: str) -> None:
        self._message_type = message_type
        self._opening = opening
        self._run_id = run_id
        self._message_id = ""
        self._index = -1
        self._second = -1
        self._bytes = b""

    def before(self, frame: Fragment) -> bytes:
        second = frame.at_us // MICROSECONDS
        if second != self._second or frame.index != self._index or frame.message_id != self._message_id:
            self._second, self._index, self._message_id = second, frame.index, frame.message_id
            self._bytes = self._build(frame)
        return self._bytes

    def _build(self, frame: Fragment) -> bytes:
        held = self._message_type == "approval_request_message"
        shown = envelope(
            self._message_type,
            frame.message_id,
            frame.at_us,
            otid=frame.message_id if held else wire_otid(frame.message_id, frame.index),
            step_id=frame.step_id,
            run_id=self._run_id,
        )
        del shown["seq_id"]  # the tail of the event has it
        return b"data: " + _encode(shown).removesuffix(b"}") + b"," + self._opening


def _hide(seq: int, frame: Frame) -> None:
    return None


def _event(shown: WireMessage) -> bytes:
    return b"data: " + _json(shown) + b"\n\n"


def _json(value: object) -> bytes:
    encoded = _encode(value)
    return encoded if encoded.isascii() else _keep_on_one_line(encoded)


def _json_text(text: str) -> bytes:
    # Asking the text is cheaper than asking its bytes: a str knows whether it is ASCII.
    return _encode(text) if text.isascii() else _keep_on_one_line(_encode(text))


def _keep_on_one_line(encoded: bytes) -> bytes:
    for raw, escaped in _LINE_BREAKS:
        encoded = encoded.replace(raw, escaped)
    return encoded
