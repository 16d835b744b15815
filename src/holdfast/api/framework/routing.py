"""Routes that cost nothing until they are used, are found by walking their path, and are answered the short way.

The framework builds validators for every route when it is declared, which took half of the time in which the server is
to be healthy; here a route is built when it is first asked for. It also tries every route in turn, which at this API's
size took longer than answering. Fixed words win over parameters, so `/v1/agents/count` needs no place before
`/v1/agents/{agent_id}`.

The short way is for an endpoint that takes ids from its path, plain query parameters, a JSON body and the server. The
framework spends as long on working out its arguments as it takes to send a message. Here they are worked out once, when
the route is first used. Only what is in order goes this way: anything else is left to the framework, which then says
what is wrong with it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, get_args, get_origin
from urllib.parse import parse_qsl

from fastapi import APIRouter
from fastapi.params import Depends, Path, Query
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ValidationError, create_model
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope, Send

from holdfast.api.params import Asking, Deps, Opener, client_for, holdfast_for, is_json_type, opener_for

_CHOSEN: Final = "holdfast.route"
Endpoint = Callable[..., Awaitable[Response]]
# Gives None when it has answered, and otherwise what the framework is to read instead of what is used up.
Direct = Callable[[Scope, Receive, Send], Awaitable[Receive | None]]
_PLAIN: tuple[object, ...] = (str, int, bool, float, type(None))
_FROM_SCOPE: tuple[tuple[object, Callable[[Scope], Any]], ...] = (
    (Deps, holdfast_for),
    (Opener, opener_for),
    (Asking, client_for),
)


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


def direct_way(endpoint: Callable[..., Any]) -> Direct | None:
    """None when the endpoint takes more than this can work out."""
    signature, arguments = inspect.signature(endpoint, eval_str=True), _Arguments()
    answers = inspect.isclass(signature.return_annotation) and issubclass(signature.return_annotation, Response)
    understood = all(arguments.take(name, parameter) for name, parameter in signature.parameters.items())
    return _way(endpoint, arguments) if answers and understood else None


class _Arguments:
    def __init__(self) -> None:
        self.from_scope: list[tuple[str, Callable[[Scope], Any]]] = []
        self.ids: dict[str, re.Pattern[str]] = {}
        self.body: tuple[str, type[BaseModel]] | None = None
        self.query: dict[str, Any] = {}
        self.lists: set[str] = set()
        self.made: list[tuple[str, Callable[..., Any], type[BaseModel]]] = []  # of query parameters, by `Depends`

    def take(self, name: str, parameter: inspect.Parameter) -> bool:
        wanted = parameter.annotation
        if (read := next((read for kind, read in _FROM_SCOPE if wanted == kind), None)) is not None:
            self.from_scope.append((name, read))
        elif (pattern := _id_pattern(wanted)) is not None:
            self.ids[name] = pattern
        elif inspect.isclass(wanted) and issubclass(wanted, BaseModel) and self.body is None:
            self.body = name, wanted
        elif _is_query(wanted):
            self.query[name] = self._field(name, parameter)
        elif (make := _dependency(wanted)) is not None:
            return self._take_made(name, make)
        else:
            return False
        return True

    def _take_made(self, name: str, make: Callable[..., Any]) -> bool:
        parameters = inspect.signature(make, eval_str=True).parameters
        if inspect.iscoroutinefunction(make) or not all(_is_query(each.annotation) for each in parameters.values()):
            return False
        fields: dict[str, Any] = {taken: self._field(taken, parameter) for taken, parameter in parameters.items()}
        self.made.append((name, make, create_model("Query", **fields)))
        return True

    def _field(self, name: str, parameter: inspect.Parameter) -> tuple[Any, Any]:
        if _holds_list(parameter.annotation):
            self.lists.add(name)
        return parameter.annotation, ... if parameter.default is inspect.Parameter.empty else parameter.default


def _way(endpoint: Endpoint, arguments: _Arguments) -> Direct:
    ids, from_scope, lists, made = arguments.ids, arguments.from_scope, arguments.lists, arguments.made
    body_name, model = arguments.body or ("", None)
    read_body = model.__pydantic_validator__.validate_json if model else None
    query = create_model("Query", **arguments.query) if arguments.query else None

    async def way(scope: Scope, receive: Receive, send: Send) -> Receive | None:
        given: dict[str, Any] = dict(scope["path_params"])
        if given.keys() != ids.keys() or not all(pattern.fullmatch(given[name]) for name, pattern in ids.items()):
            return receive
        unread = receive
        try:
            if query is not None or made:
                asked = _asked(scope, lists)
                if query is not None:
                    given.update(query.model_validate(asked).__dict__)
                for name, make, model_of_query in made:
                    given[name] = make(**model_of_query.model_validate(asked).__dict__)
            if read_body is not None:
                message = await receive()
                unread = _again(message, receive)
                if message["type"] != "http.request" or message.get("more_body") or not _is_json(scope):
                    return unread
                given[body_name] = read_body(message["body"])
        except ValidationError:
            return unread
        for name, read in from_scope:
            given[name] = read(scope)
        response = await endpoint(**given)
        await response(scope, receive, send)
        return None

    return way


def _id_pattern(annotation: object) -> re.Pattern[str] | None:
    kind, notes = _taken_apart(annotation)
    if kind is not str or len(notes) != 1 or not isinstance(notes[0], Path):
        return None
    patterns = [note.pattern for note in notes[0].metadata if getattr(note, "pattern", None)]
    return re.compile(patterns[0]) if patterns else re.compile(".+")


def _is_query(annotation: object) -> bool:
    """Values that a query string can spell, under the parameter's own name."""
    kind, notes = _taken_apart(annotation)
    if not all(isinstance(note, AfterValidator) or (isinstance(note, Query) and not note.alias) for note in notes):
        return False
    return all(leaf in _PLAIN or isinstance(leaf, str) for leaf in _leaves(kind))


def _dependency(annotation: object) -> Callable[..., Any] | None:
    kind, notes = _taken_apart(annotation)
    if len(notes) != 1 or not isinstance(notes[0], Depends):
        return None
    return notes[0].dependency or (kind if inspect.isclass(kind) else None)


def _taken_apart(annotation: object) -> tuple[object, list[Any]]:
    if get_origin(annotation) is Annotated:
        kind, *notes = get_args(annotation)
        return kind, notes
    return annotation, []


def _leaves(kind: object) -> Iterator[object]:
    """The classes and literals that a type is made of."""
    parts = get_args(kind)
    if not parts:
        yield kind
    for part in parts:
        yield from _leaves(part)


def _holds_list(annotation: object) -> bool:
    kind, _ = _taken_apart(annotation)
    return get_origin(kind) is list or any(get_origin(part) is list for part in get_args(kind))


def _asked(scope: Scope, lists: set[str]) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if name in lists:
            asked.setdefault(name, []).append(value)
        else:
            asked[name] = value
    return asked


def _is_json(scope: Scope) -> bool:
    return any(name == b"content-type" and is_json_type(value) for name, value in scope["headers"])


def _again(first: Message, receive: Receive) -> Receive:
    waiting = [first]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
