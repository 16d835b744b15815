"""Generated examples are the same for everyone, and none has to be quick: a busy machine fails no test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from .properties.effort import EFFORT

settings.register_profile(
    "steady",
    derandomize=EFFORT == 1,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
