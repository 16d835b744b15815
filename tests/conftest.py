"""The surroundings are the same for everyone, and so are generated examples, of which none has to be quick: neither
a shell nor a busy machine fails a test."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import HealthCheck, settings

from .names import Names
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


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Names that lead where the test says."""
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    return made
