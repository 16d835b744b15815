"""What is known of models by their names: families by hand, windows and prices from the generated list."""

from __future__ import annotations

import pytest

from holdfast.llm.base import Price
from holdfast.llm.catalog.known_models import (
    EMBEDDINGS,
    FAMILIES,
    WINDOWS,
    _source,
    default_window,
    embedding_dimension,
    is_embedding_name,
    plain_name,
    price_of,
    spec_of,
    wide_window,
)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o"),
        ("gpt-4-0613", "gpt-4"),
        ("gpt-5-chat-latest", "gpt-5-chat"),
        ("openai/gpt-5-mini", "gpt-5"),
        ("o1-2024-12-17", "o1"),
        ("claude-3-5-haiku-latest", "claude-3-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "claude-sonnet-4"),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", "claude-3-5"),
        ("models/gemini-2.5-flash", "gemini-2.5"),
        ("llama3.1:8b", "llama3.1"),
        ("qwen3:14b", "qwen3"),
    ],
)
def test_dates_makers_and_tags_are_not_part_of_a_name(name: str, key: str) -> None:
    assert spec_of(name) == FAMILIES[key]


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
    assert spec_of(name) == FAMILIES[family]
    assert not any(price_of(maker, name) for maker in _source())


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("gpt-5.4", 1_050_000),  # of the list, where its family has less
        ("gpt-5.4-mini", 400_000),
        ("gpt-4.1-mini", 1_047_576),  # of our own, where the list rounds
        ("gpt-5.1-chat-latest", 128_000),  # and where it tells that of another model
        ("deepseek-chat", 128_000),
        ("devstral-2512", 262_144),  # of the list, with the abilities of a family
        ("magistral-medium-2509", None),  # of which only the price is known
    ],
)
def test_a_window_is_ours_then_the_lists_then_the_familys(name: str, window: int | None) -> None:
    spec = spec_of(name)
    assert spec is not None
    assert spec.window == window


def test_a_window_by_hand_is_only_there_where_the_list_is_wrong() -> None:
    listed = {name: model.window for models in _source().values() for name, model in models.items()}
    assert [name for name, window in WINDOWS.items() if listed.get(name) in (None, window)] == []


@pytest.mark.parametrize(
    ("maker", "name", "price"),
    [
        ("openai", "gpt-4o", Price(2.5, 10, 1.25)),
        ("openai", "gpt-4o-2024-11-20", Price(2.5, 10, 1.25)),
        ("openai", "gpt-4o-2024-05-13", Price(5, 15)),
        ("openai", "gpt-5-mini", Price(0.25, 2, 0.025)),
        ("openai", "o3", Price(2, 8, 0.5)),
        ("anthropic", "claude-3-haiku-20240307", Price(0.25, 1.25, 0.03, 0.3)),
        ("anthropic", "claude-sonnet-4-20250514", Price(3, 15, 0.3, 3.75)),
        ("anthropic", "claude-opus-4-5-20251101", Price(5, 25, 0.5, 6.25)),
        ("google_ai", "gemini-2.0-flash-latest", Price(0.1, 0.4, 0.025)),
        ("google_ai", "gemini-2.5-flash", Price(0.3, 2.5, 0.03)),
        ("google_ai", "gemini-2.5-pro", Price(1.25, 10, 0.125, longest_prompt=200_000)),
    ],
)
def test_a_price_is_the_makers_for_that_very_model(maker: str, name: str, price: Price) -> None:
    assert price_of(maker, name, day="2026-11-17") == price


@pytest.mark.parametrize(
    ("maker", "name"),
    [
        ("openai", "gpt-4o-2031-01-01"),  # another date may have another price, as one of them has
        ("mistral", "mistral-large-2402"),
        ("azure", "gpt-4o"),
        ("openai", "claude-sonnet-4-5"),
        ("deepseek", "deepseek-chat"),  # costs more at some hours of the day
    ],
)
def test_no_price_is_guessed(maker: str, name: str) -> None:
    assert price_of(maker, name) is None


def test_a_price_that_is_announced_counts_from_its_day_on() -> None:
    assert price_of("google_ai", "gemini-4-argon", day="2026-11-30") == Price(2, 10, 0.1)
    assert price_of("google_ai", "gemini-4-argon", day="2026-12-01") == Price(4, 20, 0.2)
    assert price_of("openai", "o3", day="2025-06-09") == Price(10, 40, 0.5)


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
    for name, spec in FAMILIES.items():
        assert name == name.lower()
        assert spec.window is not None
        assert 1_000 < spec.window <= 10_000_000, name
        assert spec.output is None or 1_000 < spec.output <= spec.window, name


def test_the_list_makes_sense() -> None:
    for models in _source().values():
        for name, model in models.items():
            assert name == plain_name(name)
            assert model.window is None or 1_000 < model.window <= 10_000_000, name
            for price in model.prices.values():
                assert 0 <= price.input <= price.output, name
                assert price.cached_input is None or price.cached_input < price.input, name
                assert price.cache_write is None or price.cache_write > 0, name


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
    assert not any(
        is_embedding_name(name) for name in (*FAMILIES, *(name for one in _source().values() for name in one))
    )
