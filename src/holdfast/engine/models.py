"""Finds the model that a handle names. A run outlives what it was told at its start: the model may be gone."""

from __future__ import annotations

from holdfast.errors import NotFound, Rejected
from holdfast.llm.base import Catalog, Model, ModelInfo


async def find_model(catalog: Catalog, handle: str) -> tuple[ModelInfo, Model]:
    """Raises a ModelError, as a vendor does that does not know the model."""
    try:
        info = await catalog.find(handle)
        return info, catalog.open(info)
    except NotFound as missing:
        raise Rejected(missing.message) from missing
