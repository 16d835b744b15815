"""Routes that cost nothing until they are used, and are found by walking their path.

The framework builds validators for every route when it is declared, which took half of the time in which the server is
to be healthy; here a route is built when it is first asked for. It also tries every route in turn, which at this API's
size took longer than answering. Fixed words win over parameters, so `/v1/agents/count` needs no place before
`/v1/agents/{agent_id}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from holdfast.api.framework.direct import Direct, direct_way

_CHOSEN: Final = "holdfast.route"


class LazyRoute(Route):
    """Knows its path and methods at once; becomes the framework's route when it is first handled or described."""

    def __init__(self, path: str, endpoint: Callable[..., Any], methods: Iterable[str], build: Callable[[], APIRoute]):
        super().__init__(path, endpoint, methods=list(methods))
        self._build = build

    @cached_property
    def built(self) -> APIRoute:
        return self._build()

    @cached_property
    def direct(self) -> Direct | None:
        return direct_way(self.endpoint)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.direct is not None and scope["method"] != "HEAD":
            unread = await self.direct(scope, receive, send)
            if unread is None:
                return
            receive = unread
        scope["route"] = self.built
        await self.built.handle(scope, receive, send)


class LazyRouter(APIRouter):
    """Used like the framework's router."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        def build() -> APIRoute:
            router = APIRouter(prefix=self.prefix, tags=self.tags, include_in_schema=self.include_in_schema)
            router.add_api_route(path, endpoint, **options)
            [route] = router.routes
            assert isinstance(route, APIRoute)
            return route

        self.routes.append(LazyRoute(self.prefix + path, endpoint, options.get("methods") or {"GET"}, build))


def built(routes: Iterable[BaseRoute]) -> list[BaseRoute]:
    """What the framework's own description of an API needs."""
    return [route.built if isinstance(route, LazyRoute) else route for route in routes]


class _Node:
    __slots__ = ("parameter", "routes", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: list[Route] = []

    def add(self, route: Route) -> None:
        node = self
        for segment in route.path.split("/"):
            found = node.parameter if segment.startswith("{") else node.words.get(segment)
            if found is None:
                found = _Node()
                if segment.startswith("{"):
                    node.parameter = found
                else:
                    node.words[segment] = found
            node = found
        node.routes.append(route)

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
            self._root.add(route)

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
