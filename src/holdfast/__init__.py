"""Holdfast: the server for stateful LLM agents that people can stop, approve and trust."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.in_process import embedded

__all__ = ["embedded"]


def __getattr__(name: str) -> Any:
    """Loaded when first asked for: it needs the optional client, and `holdfast --help` should not wait for it."""
    if name != "embedded":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("holdfast.in_process").embedded
    except ModuleNotFoundError as missing:
        if missing.name not in ("httpx", "letta_client"):
            raise
        raise ImportError(
            "holdfast.embedded gives a letta-client, which is not installed: pip install 'holdfast[client]'"
        ) from missing
