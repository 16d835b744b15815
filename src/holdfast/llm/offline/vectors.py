"""Embeddings without a vendor: wordllama, whose wheel carries its weights. Imported and loaded when first used."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

HANDLE: Final = "holdfast/wordllama"
DIMENSION: Final = 256


def is_installed() -> bool:
    return find_spec("wordllama") is not None


def described() -> dict[str, Any]:
    """As providers describe their embedding models."""
    return {
        "handle": HANDLE,
        "name": HANDLE.partition("/")[2],
        "embedding_dim": DIMENSION,
        "provider_name": HANDLE.partition("/")[0],
        "provider_type": "holdfast",
        "embedding_endpoint": None,
    }


async def embed(texts: Sequence[str]) -> list[list[float]]:
    return await asyncio.to_thread(lambda: _model().embed(list(texts)).tolist())


@cache
def _model() -> Any:
    package = import_module("wordllama")
    # Its own files: it would look for them in the user's cache and then ask the network.
    return package.WordLlama.load(cache_dir=Path(package.__file__ or "").parent, disable_download=True)
