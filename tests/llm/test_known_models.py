"""The table of well-known models."""

from __future__ import annotations

import pytest

from holdfast.llm.catalog.known_models import (
    EMBEDDINGS,
    MODELS,
    default_window,
    embedding_dimension,
    is_embedding_name,
    spec_of,
    wide_window,
)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("gpt-4-0613", "gpt-4"),
        ("gpt-5-chat-latest", "gpt-5-chat"),
        ("openai/gpt-5-mini", "gpt-5-mini"),
        ("o1-2024-12-17", "o1"),
        ("claude-3-5-haiku-latest", "claude-3-5-haiku"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "claude-sonnet-4"),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", "claude-3-5-sonnet"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("llama3.1:8b", "llama3.1"),
        ("qwen3:14b", "qwen3"),
    ],
)
def test_dates_makers_and_tags_are_not_part_of_a_name(name: str, key: str) -> None:
    assert spec_of(name) == MODELS[key]


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("gpt-5.9", "gpt-5"),
        ("gpt-4o-something-new", "gpt-4o"),
        ("claude-opus-6", "claude"),
        ("gemma2:9b", "gemma"),
        ("mistral-7b-instruct", "mistral"),
    ],
)
def test_a_new_member_has_the_window_of_its_family_but_not_its_price(name: str, family: str) -> None:
    spec = spec_of(name)
    assert spec is not None
    assert (spec.window, spec.output, spec.abilities) == (
        MODELS[family].window,
        MODELS[family].output,
        MODELS[family].abilities,
    )
    assert spec.price is None


@pytest.mark.parametrize("name", ["nobody-knows", "o10", "gpt-40", "", "xgpt-4o"])
def test_a_name_that_only_looks_alike_is_unknown(name: str) -> None:
    assert spec_of(name) is None


def test_unknown_models_of_openai_have_a_small_window_and_others_a_usual_one() -> None:
    assert [default_window(kind) for kind in ("openai", "azure", "ollama", "vllm", "anthropic")] == [
        30_000,
        30_000,
        128_000,
        128_000,
        128_000,
    ]


def test_the_table_makes_sense() -> None:
    for name, spec in MODELS.items():
        assert name == name.lower()
        assert 1_000 < spec.window <= 10_000_000, name
        assert spec.output is None or 1_000 < spec.output <= spec.window, name
        if price := spec.price:
            assert 0 < price.input <= price.output, name
            assert price.cached_input is None or price.cached_input < price.input, name
            assert price.cache_write is None or price.cache_write > price.input, name


def test_the_wide_window_is_for_families_that_the_operator_named() -> None:
    assert wide_window("claude-sonnet-4-20250514", {"context_1m": "sonnet"}) == 1_000_000
    assert wide_window("claude-opus-4-1", {"context_1m": "sonnet,opus"}) == 1_000_000
    assert wide_window("claude-opus-4-1", {"context_1m": "sonnet"}) is None
    assert wide_window("claude-3-5-sonnet", {"context_1m": "sonnet"}) is None
    assert wide_window("claude-sonnet-4", {}) is None


@pytest.mark.parametrize(
    ("name", "dimension"),
    [
        ("text-embedding-3-small", 1536),
        ("nomic-embed-text:latest", 768),
        ("text-embedding-nomic-embed-text-v1.5", 768),
        ("text-embedding-of-ours", None),
        ("BAAI/bge-m3", 1024),
        ("sentence-transformers/all-MiniLM-L6-v2", 384),
        ("qwen3-embedding:8b", 4096),
        ("gpt-4o", None),
    ],
)
def test_the_dimension_of_an_embedding_model_is_known_or_not(name: str, dimension: int | None) -> None:
    assert embedding_dimension(name) == dimension


def test_embedding_models_are_told_by_their_names() -> None:
    assert all(is_embedding_name(name) for name in EMBEDDINGS)
    assert not any(is_embedding_name(name) for name in MODELS)
