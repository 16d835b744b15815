"""Token and cost arithmetic: what was used, what it costs, how many tokens a prompt may have.

None means that the vendor did not say; zero means that it said zero. Before a reply we guess from bytes; vendors count
tokens, each in its own way. The ratio between the two is learnt per model from every reply that says what it cost.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

_PER: Final = 1_000_000  # prices are for so many tokens
LEAST_RATIO: Final = 0.5
MOST_RATIO: Final = 3.0
# Below this, the tokens that a vendor adds to every request would distort the ratio.
_TELLING_TOKENS: Final = 256
_NEWEST_COUNTS: Final = 0.25
_WORTH_STORING: Final = 0.03
_COMPACT_ABOVE_PERCENT: Final = 90  # of the window


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


def _plus(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right


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


def calibrated(guessed: int, ratio: float | None) -> int:
    return guessed if ratio is None else math.ceil(guessed * ratio)


def updated_ratio(known: float | None, guessed: int, reported: int) -> float | None:
    """The ratio after one more reply. A figure far outside what tokenizers differ by is ignored: the vendor must have
    counted something else."""
    if guessed < _TELLING_TOKENS:
        return known
    seen = reported / guessed
    if not LEAST_RATIO / 2 <= seen <= MOST_RATIO * 2:
        return known
    within = min(max(seen, LEAST_RATIO), MOST_RATIO)
    return within if known is None else known + _NEWEST_COUNTS * (within - known)


def worth_storing(stored: float | None, ratio: float) -> bool:
    return stored is None or abs(ratio - stored) > _WORTH_STORING * stored


def prompt_limit(context_window: int, max_output_tokens: int | None) -> int:
    """How many tokens a prompt may have: the window without what is kept for the reply, a quarter of it at most."""
    return context_window - min(max_output_tokens or 0, context_window // 4)


def should_compact(total_tokens: int, context_window: int) -> bool:
    return total_tokens > context_window * _COMPACT_ABOVE_PERCENT // 100
