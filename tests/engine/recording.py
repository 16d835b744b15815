"""A catalog that remembers what its models were asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from holdfast.core.compaction import REQUEST_TAG
from holdfast.core.deltas import Delta
from holdfast.core.messages import Text
from holdfast.llm.base import Model, ModelInfo, ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog


class RecordingCatalog(ModelCatalog):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ModelRequest] = []

    def open(self, info: ModelInfo) -> Model:
        return _Recorded(super().open(info), self.asked)

    @property
    def summaries(self) -> list[ModelRequest]:
        return [request for request in self.asked if wants_summary(request)]

    @property
    def replies(self) -> list[ModelRequest]:
        return [request for request in self.asked if not wants_summary(request)]


class _Recorded:
    def __init__(self, inner: Model, asked: list[ModelRequest]) -> None:
        self._inner = inner
        self._asked = asked

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        self._asked.append(request)
        return self._inner.stream(request)

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return self._inner.payload(request)


def wants_summary(request: ModelRequest) -> bool:
    last = request.turns[-1].parts[-1] if request.turns else None
    return isinstance(last, Text) and last.text.startswith(REQUEST_TAG)
