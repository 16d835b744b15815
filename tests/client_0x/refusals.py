"""Refusals as the 0.x client raises them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

_ApiError: Any = import_module(
    "letta_client.core.api_error"
).ApiError  # which 1.x, and so a type checker, does not have


@contextmanager
def refused(status: int) -> Generator[None]:
    with pytest.raises(_ApiError) as raised:
        yield
    assert raised.value.status_code == status
