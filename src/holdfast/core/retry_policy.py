"""Whether a model call that failed with a temporary error is tried again, and after which pause (decision 10).

Exponential backoff with jitter. Pure: the random number is an argument.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

# If a vendor asks for a longer pause than this, the run fails at once and says so: its caller would wait too long.
LONGEST_PAUSE_S: Final = 60.0


class RetryPolicy(msgspec.Struct, frozen=True):
    retries: int = 3  # tries after the first
    first_pause_s: float = 0.5


def pause_ms(retry_policy: RetryPolicy, failures: int, retry_after_s: float | None, chance: float) -> int | None:
    """How long to wait now that `failures` tries have failed; None: give up.

    A pause is about twice the one before it. `chance`, from 0 to 1, is the jitter: it keeps runs that failed together
    from trying again together. A pause that the vendor asks for has precedence.
    """
    if failures > retry_policy.retries or asks_too_much(retry_after_s):
        return None
    if retry_after_s is not None:
        return math.ceil(retry_after_s * 1_000)
    doubled = min(retry_policy.first_pause_s * 2 ** (failures - 1), LONGEST_PAUSE_S)
    return round(doubled * 1_000 * (0.5 + chance / 2))


def left_ms(pause_ms: int, since_us: int, now_us: int) -> int:
    """What is left of a pause that began at `since_us`, by the clock of who waits now, which may not be the same.

    So it may seem not to have begun yet: even then the whole of it is enough.
    """
    return pause_ms - min(max(0, (now_us - since_us) // 1_000), pause_ms)


def asks_too_much(retry_after_s: float | None) -> bool:
    return retry_after_s is not None and retry_after_s > LONGEST_PAUSE_S
