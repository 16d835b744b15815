"""New SQLite files without the work of making one: their schema is written once for each test process, then copied."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from holdfast.store.sqlite import migrate


def new_database(directory: Path) -> str:
    """Its address. It is where a server with this data directory looks for it, and as private as one that it makes."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "holdfast.db"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(_empty())
    return f"sqlite:///{path}"


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "empty.db")
        migrate(path)
        return path.read_bytes()
