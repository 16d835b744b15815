"""Says in which record of an agent file the fault is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from holdfast.errors import Conflict, Invalid, NotFound, Unprocessable


@contextmanager
def named(where: str) -> Generator[None]:
    """What is wrong with a record of the file is a 400 that begins with its section, place and name."""
    try:
        yield
    except (Invalid, Unprocessable, NotFound, Conflict) as error:
        raise Invalid(f"{where}: {error.message}") from error
