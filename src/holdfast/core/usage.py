"""Token and cost arithmetic. None means that the vendor did not say; zero means that it said zero."""

from __future__ import annotations

from typing import Final

import msgspec

_PER: Final = 1_000_000  # prices are for so many tokens


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """`prompt_tokens` is everything that went in: what was read from a cache or written to one is part of it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            _plus(self.cached_input_tokens, other.cached_input_tokens),
            _plus(self.cache_write_tokens, other.cache_write_tokens),
            _plus(self.reasoning_tokens, other.reasoning_tokens),
            self.estimated or other.estimated,
        )


class Price(msgspec.Struct, frozen=True):
    """US dollars per million tokens. A kind of token without a price of its own costs what plain input costs."""

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None
    longest_prompt: int | None = None  # in tokens: what a longer one costs is not known


def cost(usage: Usage, price: Price | None) -> float | None:
    """In US dollars; None when nobody knows the price. Of estimated tokens, an estimate."""
    if price is None or (price.longest_prompt is not None and usage.prompt_tokens > price.longest_prompt):
        return None
    cached, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
    plain = max(0, usage.prompt_tokens - cached - written)  # a vendor that miscounts must not earn anybody money
    cached_price = price.input if price.cached_input is None else price.cached_input
    write_price = price.input if price.cache_write is None else price.cache_write
    spent = plain * price.input + cached * cached_price + written * write_price
    return (spent + usage.completion_tokens * price.output) / _PER


def estimate_tokens(text: str) -> int:
    """A vendor-neutral guess: four bytes to a token, rounded up."""
    return -(-len(text.encode()) // 4)


def _plus(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right
