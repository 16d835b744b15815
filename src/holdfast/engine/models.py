"""Finds the model that a handle names. A run outlives what it was told at its start: by now it may be out of reach."""

from __future__ import annotations

from holdfast.errors import Rejected, RequestError
from holdfast.llm.base import Catalog, Model, ModelInfo


async def find_model(catalog: Catalog, handle: str) -> tuple[ModelInfo, Model]:
    """Raises a ModelError, as a vendor does that does not know the model."""
    try:
        info = await catalog.find(handle)
        return info, catalog.open(info)
    except RequestError as refusal:  # it is not there any more, or what it is reached through is not installed
        raise Rejected(refusal.message) from refusal
