"""OpenAI's Responses API, as `FakeVendor` speaks it: nothing is stored, so reasoning goes out encrypted and must come
back as it was."""

from __future__ import annotations

import base64
from itertools import count
from typing import Any

import msgspec

from holdfast.core.deltas import (
    CallDelta,
    Delta,
    Finish,
    FinishReason,
    OmittedDelta,
    ReasoningDelta,
    RedactedDelta,
    TextDelta,
    UsageDelta,
)
from holdfast.core.messages import AnyPart, Image, OmittedReasoning, Reasoning, Text, ToolCall, ToolReturn, Turn
from holdfast.core.usage import Usage
from holdfast.llm.base import ModelRequest, NamedTool, ToolChoice, ToolSchema
from tests.llm.fakes import responses_rules as rules
from tests.llm.fakes.responses_rules import Body, Item, Piece
from tests.llm.fakes.script import Failure, FailureKind

# Status, type and code of what OpenAI answers.
_REFUSALS: dict[FailureKind, tuple[int, str, str | None]] = {
    "rate_limit": (429, "requests", "rate_limit_exceeded"),
    "auth": (401, "invalid_request_error", "invalid_api_key"),
    "quota": (429, "insufficient_quota", "insufficient_quota"),
    "overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "overloaded": (503, "service_unavailable_error", "server_is_overloaded"),
    "server": (500, "server_error", "server_error"),
    "bad_request": (400, "invalid_request_error", None),
    "timeout": (504, "server_error", "timeout"),
    "permission": (403, "request_forbidden", "unsupported_country_region_territory"),
    "not_found": (404, "invalid_request_error", "model_not_found"),
}
NEXT_SUMMARY = "\n\n"  # a delta of just this begins another summary of the same reasoning


class Secret(msgspec.Struct, frozen=True):
    """What the vendor alone can read."""

    id: str
    summary: tuple[str, ...]
    signature: str | None


def encrypted(secret: Secret) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(secret)).decode()


def decrypted(text: str | None) -> Secret | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text or ""), type=Secret)
    except ValueError:
        return None


class ResponsesProtocol:
    name = "responses"

    def __init__(self) -> None:
        self._numbers = count(1)
        self._belongs: dict[str, str] = {}  # by the id of an item, the id of its reasoning

    def answers(self, method: str, path: str) -> bool:
        return method == "POST" and path.endswith("/responses")

    def listing(self, path: str) -> bytes | None:
        if not path.endswith("/models"):
            return None
        return msgspec.json.encode({"object": "list", "data": [{"id": "offline", "object": "model", "created": 1}]})

    def complaint(self, path: str, body: dict[str, object]) -> str | None:
        return rules.complaint(body, _is_genuine, lambda item_id: self._belongs.get(item_id, ""))

    def decode(self, path: str, body: dict[str, object]) -> ModelRequest:
        asked = rules.read(body)
        handle = f"openai/{asked.model}"
        return ModelRequest(
            handle=handle,
            system="\n".join([asked.instructions, *_system_texts(asked)]).strip("\n"),
            turns=_turns(asked.input, handle),
            tools=tuple(ToolSchema(tool.name, tool.description, tool.parameters) for tool in asked.tools),
            tool_choice=_choice(asked),
            parallel_tool_calls=asked.parallel_tool_calls,
            max_output_tokens=asked.max_output_tokens,
            temperature=asked.temperature,
            response_format=_response_format(asked.text.format),
            user=asked.user,
        )

    def rendering(self, path: str, body: dict[str, object]) -> ResponsesRendering:
        return ResponsesRendering(rules.read(body), self._numbers, self._belongs)

    def refusal(self, failure: Failure) -> tuple[int, bytes]:
        status, kind, code = _REFUSALS[failure.kind]
        error = {"message": failure.message, "type": kind, "param": None, "code": code}
        return status, msgspec.json.encode({"error": error})


class _Open:
    """An item whose end has not been said."""

    def __init__(self, kind: str, item_id: str, place: int) -> None:
        self.kind = kind
        self.id = item_id
        self.place = place
        self.texts = [""]  # a message has one, reasoning has one for each summary
        self.signature: str | None = None
        self.call_id = self.name = ""


class ResponsesRendering:
    def __init__(self, asked: Body, numbers: count[int], belongs: dict[str, str]) -> None:
        self._asked = asked
        self._numbers = numbers
        self._belongs = belongs
        self._sequence = count()
        self._places = count()
        self._response_id = f"resp_{next(numbers)}"
        self._reasoning = ""  # the id of the last
        self._open: _Open | None = None
        self._calls: dict[int, _Open] = {}
        self._usage: Usage | None = None
        self._finish: FinishReason | None = None

    def begin(self) -> list[bytes]:
        return [self._status("created", "in_progress"), self._status("in_progress", "in_progress")]

    def delta(self, delta: Delta) -> list[bytes]:
        match delta:
            case TextDelta(text):
                return self._text(text)
            case ReasoningDelta(text, signature):
                return self._thought(text, signature)
            case OmittedDelta(signature) | RedactedDelta(signature):
                return [*self._close(), *self._begin(self._new("reasoning", "rs"), signature), *self._close()]
            case CallDelta():
                return self._call(delta)
            case UsageDelta(usage):
                self._usage = usage
            case Finish(reason):
                self._finish = reason
        return []

    def end(self) -> list[bytes]:
        closed = self._close()
        if self._finish is None:
            return closed
        if self._finish == "length":
            return [*closed, self._status("incomplete", "incomplete")]
        return [*closed, self._status("completed", "completed")]

    def failure(self, failure: Failure) -> list[bytes]:
        """In each of the three ways in which it has been seen."""
        _, kind, code = _REFUSALS[failure.kind]
        match failure.kind:
            case "rate_limit" | "server":
                return [self._status("failed", "failed", error={"code": code, "message": failure.message})]
            case "overflow" | "overloaded":
                return [self._event("error", code=code, message=failure.message, param=None)]
            case _:
                error = {"type": kind, "code": code, "message": failure.message, "param": None}
                return [self._event("error", error=error)]

    def noise(self) -> list[bytes]:
        return [
            b": a comment\n\n",
            self._event("response.novelty", delta={"of": "a shape that nobody expects"}, output_index="first"),
            self._event("keepalive"),
        ]

    def _text(self, text: str) -> list[bytes]:
        events = list[bytes]()
        if self._open is None or self._open.kind != "message":
            events = [*self._close(), *self._begin(self._new("message", "msg"))]
            part = _text_part("")
            events.append(self._said("content_part.added", content_index=0, part=part))
        assert self._open is not None
        self._open.texts[0] += text
        return [*events, self._said("output_text.delta", content_index=0, delta=text, logprobs=[])]

    def _thought(self, text: str, signature: str | None) -> list[bytes]:
        events = list[bytes]()
        if self._open is None or self._open.kind != "reasoning":
            events = [*self._close(), *self._begin(self._new("reasoning", "rs")), *self._summary()]
        item = self._open
        assert item is not None
        if text == NEXT_SUMMARY and self._shows_thoughts:
            item.texts.append("")
            events += self._summary()
        elif text and self._shows_thoughts:
            item.texts[-1] += text
            place = len(item.texts) - 1
            events.append(self._said("reasoning_summary_text.delta", summary_index=place, delta=text))
        if signature is not None:
            item.signature = signature
            events += self._close()
        return events

    def _summary(self) -> list[bytes]:
        assert self._open is not None
        if not self._shows_thoughts:
            return []
        part = {"type": "summary_text", "text": ""}
        place = len(self._open.texts) - 1
        return [self._said("reasoning_summary_part.added", summary_index=place, part=part)]

    @property
    def _shows_thoughts(self) -> bool:
        return self._asked.reasoning.summary is not None

    def _call(self, delta: CallDelta) -> list[bytes]:
        events = list[bytes]()
        item = self._calls.get(delta.index)
        if item is None:
            events = self._close()
            item = self._calls[delta.index] = self._new("function_call", "fc")
            item.call_id, item.name = delta.id or "", delta.name or ""
            events += [self._event("response.output_item.added", output_index=item.place, item=self._shown(item))]
        if delta.arguments:
            item.texts[0] += delta.arguments
            events.append(
                self._event(
                    "response.function_call_arguments.delta",
                    item_id=item.id,
                    output_index=item.place,
                    delta=delta.arguments,
                )
            )
        return events

    def _new(self, kind: str, prefix: str) -> _Open:
        item = _Open(kind, f"{prefix}_{next(self._numbers)}", next(self._places))
        if kind == "reasoning":
            self._reasoning = item.id
        elif self._reasoning:
            self._belongs[item.id] = self._reasoning
        return item

    def _begin(self, item: _Open, signature: str | None = None) -> list[bytes]:
        self._open, item.signature = item, signature
        return [self._event("response.output_item.added", output_index=item.place, item=self._shown(item))]

    def _close(self) -> list[bytes]:
        ended = ([self._open] if self._open is not None else []) + list(self._calls.values())
        self._open, self._calls = None, {}
        return [event for item in ended for event in self._done(item)]

    def _done(self, item: _Open) -> list[bytes]:
        place: dict[str, Any] = {"item_id": item.id, "output_index": item.place}
        events = list[bytes]()
        if item.kind == "message":
            text = item.texts[0]
            part = _text_part(text)
            events = [
                self._event("response.output_text.done", **place, content_index=0, text=text, logprobs=[]),
                self._event("response.content_part.done", **place, content_index=0, part=part),
            ]
        elif item.kind == "function_call":
            name, said = item.name, item.texts[0]
            events = [self._event("response.function_call_arguments.done", **place, name=name, arguments=said)]
        shown = self._shown(item, ended=True)
        return [*events, self._event("response.output_item.done", output_index=item.place, item=shown)]

    def _shown(self, item: _Open, *, ended: bool = False) -> dict[str, Any]:
        status = "completed" if ended else "in_progress"
        if item.kind == "message":
            part = _text_part(item.texts[0])
            return {
                "type": "message",
                "id": item.id,
                "role": "assistant",
                "status": status,
                "content": [part] if ended else [],
            }
        if item.kind == "function_call":
            said = item.texts[0] if ended else ""
            known = {"call_id": item.call_id, "name": item.name, "arguments": said}
            return {"type": "function_call", "id": item.id, "status": status, **known}
        summary = tuple(text for text in item.texts if text) if ended else ()
        shown: dict[str, Any] = {"type": "reasoning", "id": item.id, "summary": _summary_parts(summary)}
        if ended and rules.ENCRYPTED in self._asked.include:
            shown["encrypted_content"] = encrypted(Secret(item.id, summary, item.signature))
        return shown

    def _said(self, kind: str, **more: object) -> bytes:
        assert self._open is not None
        return self._event(f"response.{kind}", item_id=self._open.id, output_index=self._open.place, **more)

    def _status(self, kind: str, status: str, error: object = None) -> bytes:
        response: dict[str, Any] = {
            "id": self._response_id,
            "object": "response",
            "created_at": 1,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._asked.model,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None if self._usage is None else counts(self._usage),
        }
        return self._event(f"response.{kind}", response=response)

    def _event(self, kind: str, **fields: object) -> bytes:
        data = msgspec.json.encode({"type": kind, "sequence_number": next(self._sequence), **fields})
        return f"event: {kind}\ndata: ".encode() + data + b"\n\n"


def counts(usage: Usage) -> dict[str, Any]:
    told: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.cached_input_tokens is not None:
        told["input_tokens_details"] = {"cached_tokens": usage.cached_input_tokens}
    if usage.reasoning_tokens is not None:
        told["output_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return told


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _summary_parts(texts: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"type": "summary_text", "text": text} for text in texts]


def _is_genuine(item: Item) -> bool:
    secret = decrypted(item.encrypted_content)
    return secret is not None and secret.id == item.id and secret.summary == tuple(one.text for one in item.summary)


def _system_texts(asked: Body) -> list[str]:
    return [piece.text for item in asked.input if item.role in ("system", "developer") for piece in item.pieces]


def _turns(items: list[Item], handle: str) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    names = {item.call_id: item.name for item in items if item.type == "function_call"}
    for item in items:
        if item.role in ("system", "developer"):
            continue
        role = "tool" if item.type == "function_call_output" else "assistant" if item.is_the_models else "user"
        parts = tuple(_parts(item, names))
        if turns and turns[-1].role == role:
            turns[-1] = Turn(role, turns[-1].parts + parts, turns[-1].model)
        else:
            turns.append(Turn(role, parts, handle if role == "assistant" else None))
    return tuple(turns)


def _parts(item: Item, names: dict[str, str]) -> list[AnyPart]:
    match item.type:
        case "reasoning":
            secret = decrypted(item.encrypted_content)
            signature = secret.signature if secret is not None else None
            text = NEXT_SUMMARY.join(one.text for one in item.summary)
            return [Reasoning(text, signature) if text else OmittedReasoning(signature)]
        case "function_call":
            return [ToolCall(item.call_id, item.name, item.arguments or "")]
        case "function_call_output":
            said = item.output or ""
            content = said if isinstance(said, str) else tuple(_shown(piece) for piece in said)
            failed = isinstance(content, str) and content.startswith('{"error":')  # as the library puts it
            return [ToolReturn(item.call_id, names[item.call_id], "error" if failed else "success", content)]
        case "message":
            return [_shown(piece) for piece in item.pieces]


def _shown(piece: Piece) -> Text | Image:
    if piece.type != "input_image":
        return Text(piece.text)
    media_type, _, data = piece.image_url.removeprefix("data:").partition(";base64,")
    return Image(media_type, data, None if piece.detail == "auto" else piece.detail)


def _choice(asked: Body) -> ToolChoice:
    choice = asked.tool_choice
    return NamedTool(choice.name) if isinstance(choice, rules.Named) else choice


def _response_format(wanted: rules.Format) -> dict[str, Any] | None:
    match wanted.type:
        case "json_schema":
            return {"type": "json_schema", "json_schema": {"name": wanted.name, "schema": wanted.schema}}
        case "json_object":
            return {"type": "json_object"}
        case "text":
            return None
