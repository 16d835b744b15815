"""Reads a streamed reply of the chat completions API: events in, deltas out.

Fields that nobody knows are passed over. Servers agree on the words of a call's fragments, not on how to number them,
and a local server leaves reasoning in the text: `<think>…</think>` at its very beginning, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.core.deltas import (
    CallDelta,
    Delta,
    Finish,
    FinishReason,
    ReasoningDelta,
    RedactedDelta,
    TextDelta,
    UsageDelta,
)
from holdfast.core.usage import Usage
from holdfast.errors import BadReply, ModelUnavailable, Overloaded, Refused
from holdfast.llm import failures
from holdfast.llm.base import ModelRequest
from holdfast.llm.broken_json import NOT_JSON, repaired
from holdfast.llm.chat.dialects import Dialect
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import shown, without_key
from holdfast.llm.tool_calls import CallIds, own_name, own_names

_DONE: Final = b"[DONE]"
# Whatever is not named here is taken for `stop`: vendors have many words for an ordinary end.
_FINISHES: Final[dict[str, FinishReason]] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}

_OPENING: Final = "<think>"
_CLOSING: Final = "</think>"
_MOST_BLANKS: Final = 1_000  # before a tag; a model that goes on with them has lost its way, and is to be heard


class ChatReply:
    """The events of one reply, read one by one."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, request: ModelRequest) -> None:
        self._endpoint = endpoint
        self._dialect = dialect
        self._calls = ChatCalls(CallIds(request), own_names(request.tools))
        self._tags = ThinkTags() if dialect.think_tags else None
        self._has_text = False
        self._finish: str | None = None
        self.is_done = False  # the vendor has said its last word

    def read(self, data: bytes) -> Sequence[Delta]:
        if data == _DONE or not data or self.is_done:
            self.is_done = self.is_done or bool(data)
            return ()
        try:
            chunk = _decode(data)
        except NOT_JSON:
            chunk = self._repaired(data)
        if not chunk.choices or chunk.error is not None:
            return self._aside(chunk, data)
        choice = chunk.choices[0]
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason or self._finish
        deltas = self._content(choice.delta) if choice.delta is not None else []
        if chunk.usage is not None or chunk.x_groq is not None:
            deltas += _usage(chunk)
        return deltas

    def _aside(self, chunk: Chunk, data: bytes) -> list[Delta]:
        """An event that is no part of the reply itself."""
        if chunk.error is not None or chunk.message is not None:
            raise failures.in_stream(self._endpoint.provider_name, self._object(data))
        return _usage(chunk)

    def end(self) -> Sequence[Delta]:
        """What the reply ended with; no Finish when it was cut off. Raises when the vendor says that it failed.

        A filter that speaks up before anything was said, or in the middle of a call, refused the request. After some
        text it cut the reply short; what it let through is kept as the whole answer.
        """
        deltas = self._tags.rest() if self._tags is not None else []
        name, finish = self._endpoint.provider_name, self._finish
        if finish is None:
            finished = self.is_done and self._dialect.omits_finish
            return [*deltas, Finish("tool_calls" if self._calls.made else "stop")] if finished else deltas
        if finish == "content_filter" and (self._calls.made or not (self._has_text or deltas)):
            raise Refused(f"{name} withheld the reply: its content filter objected.")
        if finish == "insufficient_system_resource":
            raise Overloaded(f"Overloaded: {name} ran out of resources in the middle of a reply.")
        if finish in ("error", "abort"):
            raise ModelUnavailable(f"{name} broke off the reply: {finish}.")
        reason = _FINISHES.get(finish, "stop")
        return [*deltas, Finish("tool_calls" if self._calls.made and reason == "stop" else reason)]

    def _content(self, delta: Content) -> list[Delta]:
        deltas: list[Delta] = []
        if delta.reasoning_content or delta.reasoning or delta.reasoning_details:
            deltas = _reasoning(delta)
        if content := delta.content or delta.refusal:
            deltas += self._text(content) if isinstance(content, str) else self._pieces(content)
        if delta.tool_calls:
            deltas += self._calls.read(delta.tool_calls)
        elif delta.function_call is not None:
            deltas += self._calls.read([CallFragment(0, None, delta.function_call)])
        return deltas

    def _text(self, text: str) -> list[Delta]:
        self._has_text = True
        return [TextDelta(text)] if self._tags is None else self._tags.split(text)

    def _pieces(self, pieces: list[Piece]) -> list[Delta]:
        deltas: list[Delta] = []
        for piece in pieces:
            if thought := _thought_in(piece):
                deltas.append(ReasoningDelta(thought))
            elif piece.text:
                deltas += self._text(piece.text)
        return deltas

    def _repaired(self, data: bytes) -> Chunk:
        try:
            return repaired(_decode, data)
        except msgspec.DecodeError as error:
            vendor, beginning = self._endpoint.provider_name, shown(self._endpoint, data)
            raise BadReply(f"{vendor} sent an event that cannot be read ({error}): {beginning}") from error

    def _object(self, data: bytes) -> dict[str, Any]:
        return msgspec.json.decode(without_key(self._endpoint, data), type=dict[str, Any])


def _reasoning(delta: Content) -> list[Delta]:
    """OpenRouter tells the same again in details: what has a signature or is in cipher is kept whole, to be sent back
    as it came."""
    plain = delta.reasoning_content or delta.reasoning
    if not delta.reasoning_details:
        return [ReasoningDelta(plain)] if plain else []
    deltas: list[Delta] = []
    has_text = False
    for detail in delta.reasoning_details:
        text: str = detail.get("text") or detail.get("summary") or ""
        has_text = has_text or bool(text)
        if detail.get("type") == "reasoning.encrypted":
            deltas.append(RedactedDelta(msgspec.json.encode(detail).decode()))
        elif detail.get("signature"):
            rest = {key: value for key, value in detail.items() if key != "text" and value is not None}
            deltas.append(ReasoningDelta(text, msgspec.json.encode(rest).decode()))
        elif text:
            deltas.append(ReasoningDelta(text))
    return deltas if has_text or not plain else [ReasoningDelta(plain), *deltas]


def _usage(chunk: Chunk) -> list[Delta]:
    usage = chunk.usage or (chunk.x_groq.usage if chunk.x_groq else None)
    return [UsageDelta(_usage_of(usage))] if usage is not None else []


class _Call:
    def __init__(self, sent_id: str | None) -> None:
        self.sent_id = sent_id or ""
        self.name = ""
        self.waiting = ""  # arguments that came before the name
        self._pieces: list[str] = []
        self._end = ""  # the last of them that is not blank

    def add(self, arguments: str) -> None:
        self._pieces.append(arguments)
        self._end = arguments.rstrip() or self._end

    @property
    def is_whole(self) -> bool:
        """Asked with every fragment where the name is repeated: mostly its end shows that it is not."""
        return self._end.endswith("}") and _is_whole("".join(self._pieces))


class ChatCalls:
    """`names`: what tools are called here, by what the vendor was told."""

    def __init__(self, ids: CallIds, names: Mapping[str, str]) -> None:
        self._ids = ids
        self._names = names
        self._calls: list[_Call] = []
        self._by_index: dict[int | None, int] = {}  # the vendor's index, None when it gives none; our number

    @property
    def made(self) -> bool:
        return bool(self._calls)

    def read(self, fragments: list[CallFragment]) -> list[Delta]:
        deltas: list[Delta] = []
        seen: set[int | None] = set()
        for fragment in fragments:
            number = self._by_index.get(fragment.index)
            if number is None or self._begins_another(fragment, self._calls[number], fragment.index in seen):
                number = self._by_index[fragment.index] = len(self._calls)
                self._calls.append(_Call(fragment.id))
            seen.add(fragment.index)
            if (delta := self._delta(number, fragment.function or Function())) is not None:
                deltas.append(delta)
        return deltas

    def _begins_another(self, fragment: CallFragment, known: _Call, same_chunk: bool) -> bool:
        """Whether a fragment with a known index is nevertheless of a call of its own."""
        name = fragment.function.name if fragment.function else None
        if not name:
            return False
        if fragment.id and known.sent_id:
            return fragment.id != known.sent_id
        # Without ids a name says it: another one, again in the same chunk, or again when the arguments were whole.
        return bool(known.name) and (name != known.name or same_chunk or known.is_whole)

    def _delta(self, number: int, function: Function) -> CallDelta | None:
        call, arguments = self._calls[number], _text(function)
        call.add(arguments)
        if call.name:
            return CallDelta(number, arguments=arguments) if arguments else None
        if not function.name:
            call.waiting += arguments
            return None
        call.name = function.name
        name = own_name(function.name, self._names)
        return CallDelta(number, self._ids.own(call.sent_id), name, call.waiting + arguments)


def _text(function: Function) -> str:
    arguments = function.arguments
    if isinstance(arguments, dict):
        return msgspec.json.encode(arguments).decode()
    return arguments or ""


def _is_whole(arguments: str) -> bool:
    try:
        msgspec.json.decode(arguments, type=dict)
    except NOT_JSON:
        return False
    return True


class ThinkTags:
    """Fed with the pieces of a text. A piece that may be the beginning of a tag waits for the next one."""

    def __init__(self) -> None:
        self._state: Literal["beginning", "thinking", "thought", "text"] = "beginning"
        self._held = ""

    def split(self, piece: str) -> list[Delta]:
        if self._state == "text":
            return [TextDelta(piece)]
        held, self._held = self._held + piece, ""
        if self._state == "beginning":
            return self._begin(held)
        if self._state == "thinking":
            return self._think(held)
        return self._speak(held)

    def rest(self) -> list[Delta]:
        """What was still waiting when the reply ended."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [ReasoningDelta(held) if self._state == "thinking" else TextDelta(held)]

    def _begin(self, text: str) -> list[Delta]:
        stripped = text.lstrip()
        if stripped.startswith(_OPENING):
            self._state = "thinking"
            return self._think(stripped.removeprefix(_OPENING))
        if _OPENING.startswith(stripped) and len(text) <= _MOST_BLANKS:
            self._held = text
            return []
        self._state = "text"
        return [TextDelta(text)]

    def _think(self, text: str) -> list[Delta]:
        thought, closed, after = text.partition(_CLOSING)
        if not closed:
            kept = next(size for size in range(len(_CLOSING), -1, -1) if text.endswith(_CLOSING[:size]))
            thought, self._held = text[: len(text) - kept], text[len(text) - kept :]
        deltas: list[Delta] = [ReasoningDelta(thought)] if thought else []
        if closed:
            self._state = "thought"
            deltas += self._speak(after)
        return deltas

    def _speak(self, text: str) -> list[Delta]:
        """The blank lines between a thought and the answer belong to neither."""
        text = text.lstrip()
        if not text:
            return []
        self._state = "text"
        return [TextDelta(text)]


class Function(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None  # Ollama's may be an object


class CallFragment(msgspec.Struct, frozen=True, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Of content in a list: Mistral's thinking models say text and thoughts in the same place."""

    type: str | None = None
    text: str | None = None
    thinking: str | list[dict[str, Any]] | None = None


class Content(msgspec.Struct, frozen=True, gc=False):
    content: str | list[Piece] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[CallFragment] | None = None
    function_call: Function | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    delta: Content | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None  # DeepSeek's word for cached
    cached_tokens: int | None = None  # where Moonshot says it
    reasoning_tokens: int | None = None  # where SGLang says it


class Groq(msgspec.Struct, frozen=True, gc=False):
    usage: ChunkUsage | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    x_groq: Groq | None = None
    error: dict[str, Any] | str | None = None
    message: str | None = None  # of an error that stands for the whole event, as older servers of models send it


_decode = msgspec.json.Decoder(Chunk).decode


def _thought_in(piece: Piece) -> str:
    """A thought is itself a list, of texts and of references to what they speak about."""
    thinking = piece.thinking or ""
    if isinstance(thinking, str):
        return thinking
    return "".join(text for one in thinking if isinstance(text := one.get("text"), str))


def _usage_of(usage: ChunkUsage) -> Usage:
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    details = usage.prompt_tokens_details or PromptDetails()
    thought = (usage.completion_tokens_details or CompletionDetails()).reasoning_tokens
    thought = usage.reasoning_tokens if thought is None else thought
    if thought and usage.total_tokens == prompt + completion + thought:
        completion += thought  # xAI counts what was thought beside what was said, and charges both
    counts = (details.cached_tokens, usage.prompt_cache_hit_tokens, usage.cached_tokens)
    cached = next((figure for figure in counts if figure is not None), None)
    return Usage(prompt, completion, cached, details.cache_write_tokens, thought)
