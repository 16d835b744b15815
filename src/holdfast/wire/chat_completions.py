"""The chat completions of OpenAI, with an agent in the place of the model.

An agent keeps its own history, so only the last message of the user counts. What it says is the completion: its
thoughts and tools are not shown. How the model is called is the agent's own: what a request says of it is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.core.frames import ErrorFrame, Frame, StopFrame, TextFrame, UsageFrame
from holdfast.core.records import FAILED_WITH_ANSWER, STATUS_OF_STOP, StopReason
from holdfast.core.usage import Usage
from holdfast.errors import Invalid
from holdfast.ids import is_id
from holdfast.wire.bounds import JsonObject, Many, Name
from holdfast.wire.requests import Key, LettaStreamingRequest

FinishReason = Literal["stop", "length"]

_CUT_SHORT: Final = frozenset({"max_steps", "max_tokens_exceeded"})
_DATA_URL: Final = re.compile(r"data:([^;,]+);base64,(.*)", re.S)
_BETWEEN_MESSAGES: Final = "\n\n"
_encode: Final = msgspec.json.Encoder().encode


class ChatMessage(BaseModel):
    role: Name
    content: str | Many[JsonObject] | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatCompletionRequest(BaseModel):
    model: Key = Field(description="The id of an agent.")
    messages: Many[ChatMessage]
    stream: bool | None = False
    stream_options: StreamOptions | None = None


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, int]


def agent_of(request: ChatCompletionRequest) -> str:
    if not is_id("agent", request.model):
        raise Invalid(f"`model` must be the id of an agent, such as agent-…, not {request.model!r}.")
    return request.model


def sent_message(request: ChatCompletionRequest) -> LettaStreamingRequest:
    last = next((message for message in reversed(request.messages) if message.role == "user"), None)
    if last is None or not last.content:
        raise Invalid("No user message found: one of `messages` must have the role user, and some content.")
    content = last.content if isinstance(last.content, str) else [_part(part) for part in last.content]
    message = {"role": "user", "content": content}
    return LettaStreamingRequest.model_validate({"messages": [message], "stream_tokens": True, "include_pings": False})


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            inline = _DATA_URL.fullmatch(url)
            if inline is None:
                return {"type": "image", "source": {"type": "url", "url": url}}
            return {"type": "image", "source": {"type": "base64", "media_type": inline[1], "data": inline[2]}}
        case _:
            raise Invalid(f"Agents take texts and images (text, image_url), not {part.get('type')!r}.")


class Spoken:
    """What an agent says in a run, told apart from all else. One per reader."""

    def __init__(self) -> None:
        self._message_id: str | None = None

    def text_of(self, frame: TextFrame) -> str:
        begun, self._message_id = self._message_id, frame.message_id
        return frame.text if begun in (None, frame.message_id) else _BETWEEN_MESSAGES + frame.text


class ChatChunks:
    """A run as the events of a chat completion. Does for them what FrameEncoder does for ours."""

    def __init__(self, run_id: str, agent_id: str, created: int, *, include_usage: bool) -> None:
        self._head = {"id": _id(run_id), "object": "chat.completion.chunk", "created": created, "model": agent_id}
        self._include_usage = include_usage
        self._spoken = Spoken()
        self._has_begun = False

    def encode_all(self, frames: Iterable[tuple[int, Frame]]) -> bytes:
        return b"".join(self._encode(frame) for _, frame in frames)

    def ping(self, last_seq: int | None = None) -> bytes:
        return b": ping\n\n"

    def _encode(self, frame: Frame) -> bytes:
        match frame:
            case TextFrame():
                role = {} if self._has_begun else {"role": "assistant"}
                self._has_begun = True
                return self._chunk({**role, "content": self._spoken.text_of(frame)}, None)
            case StopFrame(stop_reason) if stop_reason in STATUS_OF_STOP or stop_reason in FAILED_WITH_ANSWER:
                return self._chunk({}, _finish(stop_reason))
            case UsageFrame(usage) if self._include_usage:
                return self._event({**self._head, "choices": [], "usage": _usage(usage)})
            case ErrorFrame(error):
                shown = {"message": str(error.get("detail") or error.get("message")), "type": error.get("error_type")}
                return self._event({"error": shown})
            case _:
                return b""

    def _chunk(self, delta: dict[str, Any], finish: FinishReason | None) -> bytes:
        return self._event({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, shown: dict[str, Any]) -> bytes:
        return b"data: " + _encode(shown) + b"\n\n"


def completion_view(
    run_id: str, agent_id: str, created: int, frames: Iterable[Frame], stop_reason: StopReason, usage: Usage
) -> dict[str, Any]:
    spoken = Spoken()
    text = "".join(spoken.text_of(frame) for frame in frames if isinstance(frame, TextFrame))
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": _id(run_id),
        "object": "chat.completion",
        "created": created,
        "model": agent_id,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(stop_reason), "logprobs": None}],
        "usage": _usage(usage),
    }


def _id(run_id: str) -> str:
    return f"chatcmpl-{run_id}"


def _finish(stop_reason: StopReason) -> FinishReason:
    return "length" if stop_reason in _CUT_SHORT else "stop"


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
