"""The events of a chat completions stream, as far as we read them. Fields that nobody knows are passed over."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.usage import Usage


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


decode = msgspec.json.Decoder(Chunk).decode


def thought_in(piece: Piece) -> str:
    """A thought is itself a list, of texts and of references to what they speak about."""
    thinking = piece.thinking or ""
    if isinstance(thinking, str):
        return thinking
    return "".join(text for one in thinking if isinstance(text := one.get("text"), str))


def usage_of(usage: ChunkUsage) -> Usage:
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    details = usage.prompt_tokens_details or PromptDetails()
    thought = (usage.completion_tokens_details or CompletionDetails()).reasoning_tokens
    thought = usage.reasoning_tokens if thought is None else thought
    if thought and usage.total_tokens == prompt + completion + thought:
        completion += thought  # xAI counts what was thought beside what was said, and charges both
    counts = (details.cached_tokens, usage.prompt_cache_hit_tokens, usage.cached_tokens)
    cached = next((figure for figure in counts if figure is not None), None)
    return Usage(prompt, completion, cached, details.cache_write_tokens, thought)
