"""How hard to look. By default every run of the suite tries the same examples, so that a red build is red for everyone.

HOLDFAST_EFFORT=20 looks twenty times as long, with examples nobody has tried before.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EFFORT = int(os.environ.get("HOLDFAST_EFFORT", "1"))


def examples(count: int, *, steps: int = 50) -> settings:
    return settings(
        max_examples=count * EFFORT,
        stateful_step_count=steps,
        derandomize=EFFORT == 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
