"""Texts to vectors, by the embeddings API that OpenAI began and most servers speak."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import random
from typing import Final

import msgspec

from holdfast.core.failures import RetryPolicy, pause_ms
from holdfast.errors import BadReply, ModelError, Unsupported
from holdfast.llm.catalog.discovery import JsonSource
from holdfast.llm.endpoint import Endpoint, headers_of, path_of

_ELSEWHERE: Final = frozenset({"anthropic", "bedrock", "cohere", "google_ai", "google_vertex"})


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]


async def embed(
    source: JsonSource, endpoint: Endpoint, model: str, texts: Sequence[str], retry_policy: RetryPolicy
) -> list[list[float]]:
    """A vector for each text, in their order. Raises a ModelError, and Unsupported for another vendor's protocol."""
    if endpoint.provider_type in _ELSEWHERE:
        raise Unsupported(
            f"Embedding models of {endpoint.provider_name} are not built yet in this version of Holdfast; those of "
            "providers with an OpenAI-compatible API are."
        )
    failures = 0
    while True:
        try:
            return await _embed_once(source, endpoint, model, texts)
        except ModelError as error:
            failures += 1
            pause = pause_ms(retry_policy, failures, error.retry_after, random()) if error.retryable else None
            if pause is None:
                raise
        await asyncio.sleep(pause / 1_000)


async def _embed_once(source: JsonSource, endpoint: Endpoint, model: str, texts: Sequence[str]) -> list[list[float]]:
    body = {"model": model, "input": list(texts)}
    answer = await source.json(
        endpoint, path_of(endpoint, model, "embeddings"), body=body, headers=headers_of(endpoint)
    )
    try:
        items = msgspec.convert(answer, _Answer).data
    except msgspec.ValidationError as error:
        raise BadReply(f"{endpoint.provider_name} answered with something that is not embeddings: {error}") from error
    if len(items) != len(texts):
        raise BadReply(f"{endpoint.provider_name} sent {len(items)} embeddings for {len(texts)} texts.")
    if all(item.index is not None for item in items):
        items.sort(key=lambda item: item.index or 0)
    return [item.embedding for item in items]
