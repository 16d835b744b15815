"""The surroundings are the same for everyone, and so are generated examples, of which none has to be quick: neither
a shell nor a busy machine fails a test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from .properties.effort import EFFORT
from .surroundings import calm

_calm = calm(os.environ)  # before any test and any of its processes look
os.environ.clear()
os.environ.update(_calm)

settings.register_profile(
    "steady",
    derandomize=EFFORT == 1,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
