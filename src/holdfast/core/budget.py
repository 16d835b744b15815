"""How many tokens a prompt may have, and what our guess of them is worth.

We guess from bytes; vendors count tokens, each in its own way. The ratio between the two is learnt per model from
every reply that says what it cost.
"""

from __future__ import annotations

import math
from typing import Final

LEAST_RATIO: Final = 0.5
MOST_RATIO: Final = 3.0
# Below this, the tokens that a vendor adds to every request would distort the ratio.
_TELLING_TOKENS: Final = 256
_NEWEST_COUNTS: Final = 0.25
_WORTH_STORING: Final = 0.03


def prompt_limit(context_window: int, max_output_tokens: int | None) -> int:
    """How many tokens a prompt may have: the window without what is kept for the reply, a quarter of it at most."""
    return context_window - min(max_output_tokens or 0, context_window // 4)


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


def calibrated(guessed: int, ratio: float | None) -> int:
    return guessed if ratio is None else math.ceil(guessed * ratio)
