"""Mistral's chat completions: OpenAI's, but for calls that come whole, thoughts within the content, and short ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import msgspec

from holdfast.core.deltas import CallDelta, Delta, ReasoningDelta
from holdfast.llm.base import ModelRequest
from tests.llm.fakes import chat
from tests.llm.fakes.chat import ChatProtocol, ChatRendering
from tests.llm.fakes.script import Failure, FailureKind

PATH = "/v1/chat/completions"
_ID = re.compile(r"[a-zA-Z0-9]{9}")
# Status, type and code.
_REFUSALS: dict[FailureKind, tuple[int, str, str | None]] = {
    "rate_limit": (429, "rate_limited", "1300"),
    "auth": (401, "unauthorized", None),
    "quota": (402, "payment_required", None),
    "overflow": (400, "invalid_request_invalid_args", "3051"),
    "overloaded": (503, "unreachable_backend", "1100"),
    "server": (500, "internal_server_error", "1000"),
    "bad_request": (400, "invalid_request_error", None),
    "timeout": (504, "timeout", None),
    "permission": (403, "access_denied", None),
    "not_found": (404, "invalid_model", "1500"),
}
# What an error within a stream is known by: there is no status.
_IN_STREAM: dict[FailureKind, str] = {
    "auth": "authentication_error",
    "quota": "insufficient_credits",
    "overloaded": "unavailable",
    "permission": "permission_denied",
    "not_found": "model_not_found",
}
# Those of its own; the rest is OpenAI's.
_FIELDS = ("n", "top_p", "random_seed", "safe_prompt", "prompt_mode", "stop", "presence_penalty", "frequency_penalty")
_NOT_ITS = ("max_completion_tokens", "stream_options", "user", "verbosity")
_FILLER = {"role": "assistant", "content": "OK"}


class MistralProtocol:
    name = "mistral"

    def __init__(self) -> None:
        self._chat = ChatProtocol()

    def answers(self, method: str, path: str) -> bool:
        return method == "POST" and path == PATH

    def listing(self, path: str) -> bytes | None:
        return self._chat.listing(path)

    def complaint(self, path: str, body: dict[str, object]) -> str | None:
        return next(_complaints(body), None) or self._chat.complaint(path, _as_chat(body))

    def decode(self, path: str, body: dict[str, object]) -> ModelRequest:
        return self._chat.decode(path, _as_chat(body))

    def rendering(self, path: str, body: dict[str, object]) -> MistralRendering:
        return MistralRendering(str(body["model"]), tells_usage=True)

    def refusal(self, failure: Failure) -> tuple[int, bytes]:
        status, kind, code = _REFUSALS[failure.kind]
        if failure.kind == "auth":
            return status, msgspec.json.encode({"detail": failure.message})
        return status, msgspec.json.encode(_error(failure, kind, code))


class MistralRendering(ChatRendering):
    """The last chunk holds all calls, the reason and the usage."""

    def __init__(self, model: str, tells_usage: bool) -> None:
        super().__init__(model, tells_usage)
        self._calls: dict[int, CallDelta] = {}

    def begin(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def delta(self, delta: Delta) -> list[bytes]:
        match delta:
            case ReasoningDelta(text):
                thought = {"type": "thinking", "thinking": [{"type": "text", "text": text}]}
                return [self._chunk({"content": [thought]})]
            case CallDelta():
                known = self._calls.get(delta.index)
                said = known.arguments + delta.arguments if known else delta.arguments
                self._calls[delta.index] = msgspec.structs.replace(known or delta, arguments=said)
                return []
            case _:
                return super().delta(delta)

    def end(self) -> list[bytes]:
        if self._finish is None:
            return []
        calls = [
            {"id": one.id, "index": index, "function": {"name": one.name, "arguments": one.arguments}}
            for index, one in self._calls.items()
        ]
        delta = {"content": "", "tool_calls": calls} if calls else {"content": ""}
        choice = {"index": 0, "delta": delta, "finish_reason": self._finish}
        told = {} if self._usage is None else {"usage": chat.usage_object(self._usage)}
        return [chat.event(self._head() | {"choices": [choice]} | told), b"data: [DONE]\n\n"]

    def failure(self, failure: Failure) -> list[bytes]:
        _, kind, code = _REFUSALS[failure.kind]
        return [chat.event(_error(failure, _IN_STREAM.get(failure.kind, kind), code))]


def _error(failure: Failure, kind: str, code: str | None) -> dict[str, Any]:
    return {"object": "error", "message": failure.message, "type": kind, "param": None, "code": code}


def _complaints(body: dict[str, object]) -> Iterator[str]:
    yield from (f"Extra inputs are not permitted: {name}" for name in _NOT_ITS if name in body)
    messages = cast("list[dict[str, Any]]", body.get("messages") or [])
    for before, after in pairwise(messages):
        if (before["role"], after["role"]) == ("tool", "user"):
            yield "Unexpected role 'user' after role 'tool'"
    for message in messages:
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        ids += [message["tool_call_id"]] if message["role"] == "tool" else []
        yield from (
            f"Tool call id was {one} but must be a-z, A-Z, 0-9, with a length of 9."
            for one in ids
            if not _ID.fullmatch(one)
        )
        if message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls"):
            yield "Assistant message must have either content or tool_calls, but not none."
        for call in message.get("tool_calls") or ():
            if not isinstance(msgspec.json.decode(call["function"]["arguments"]), dict):
                yield "Function call arguments must be a JSON object"
    if messages and messages[-1]["role"] == "assistant" and not messages[-1].get("prefix"):
        yield "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"


def _as_chat(body: dict[str, object]) -> dict[str, object]:
    """The same in OpenAI's words."""
    made = {name: value for name, value in body.items() if name not in _FIELDS and value is not None}
    if made.get("tool_choice") == "any":
        made["tool_choice"] = "required"
    if "tools" not in made:
        made.pop("tool_choice", None)
        made.pop("parallel_tool_calls", None)
    messages = [_as_chat_message(one) for one in cast("list[dict[str, Any]]", body.get("messages") or [])]
    made["messages"] = [
        one
        for index, one in enumerate(messages)
        if not (one == _FILLER and messages[index - 1]["role"] == "tool" and index)
    ]
    return made


def _as_chat_message(message: dict[str, Any]) -> dict[str, Any]:
    made = {name: value for name, value in message.items() if name not in ("prefix", "name") and value is not None}
    if message["role"] == "assistant":
        content = message.get("content") or ""
        made["content"] = content if isinstance(content, str) else "".join(one.get("text", "") for one in content)
        calls = [{**call, "type": "function"} for call in message.get("tool_calls") or ()]
        made["tool_calls"] = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
        if not calls:
            del made["tool_calls"]
    return made
