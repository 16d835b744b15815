"""Finds a route by walking its path. The framework tries every route in turn, which at this API's size took longer
than answering. Fixed words win over parameters, so `/v1/agents/count` needs no place before `/v1/agents/{agent_id}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

_CHOSEN: Final = "holdfast.route"


class _Node:
    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: list[Route] = []

    def add(self, segments: Sequence[str], route: Route) -> None:
        if not segments:
            self.routes.append(route)
            return
        head, *rest = segments
        if not head.startswith("{"):
            self.words.setdefault(head, _Node()).add(rest, route)
            return
        if self.parameter is None:
            self.parameter = _Node()
        self.parameter.add(rest, route)

    def find(self, segments: Sequence[str], depth: int = 0) -> Iterator[Route]:
        if depth == len(segments):
            yield from self.routes
            return
        if word := self.words.get(segments[depth]):
            yield from word.find(segments, depth + 1)
        if self.parameter is not None and segments[depth]:
            yield from self.parameter.find(segments, depth + 1)


class RouteIndex(BaseRoute):
    """Many routes that behave as one. `{x:path}` parameters span segments and cannot be indexed."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            if ":path}" in route.path:
                raise ValueError(f"{route.path} spans segments: add it to the application itself")
            self._root.add(route.path.split("/"), route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        allowed: set[str] = set()
        for route in self._root.find(scope["path"].split("/")):
            match, found = route.matches(scope)
            if match is Match.FULL:
                return Match.FULL, {**found, _CHOSEN: route}
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        return (Match.PARTIAL, {_CHOSEN: sorted(allowed)}) if allowed else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        chosen: Any = scope[_CHOSEN]
        if not isinstance(chosen, Route):
            raise HTTPException(405, headers={"allow": ", ".join(chosen)})
        await chosen.handle(scope, receive, send)
