"""Whichever way leads to an endpoint, it is given the same, and what is wrong is said in the same words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRoute, LazyRouter, RouteIndex, direct_way
from holdfast.api.params import After, Before, Limit

ThingId = Annotated[str, Path(pattern="^thing-[0-9]+$")]


class Body(BaseModel):
    text: str
    count: int = Field(default=1, ge=1)


async def post_thing(thing_id: ThingId, body: Body, loud: bool = False) -> Response:
    return json_response({"id": thing_id, "text": body.text, "count": body.count, "loud": loud})


async def list_things(
    limit: Annotated[int, Query(ge=1, le=9)] = 5,
    names: Annotated[list[str] | None, Query()] = None,
    order: Literal["asc", "desc"] = "asc",
    after: str | None = None,
) -> Response:
    return json_response({"limit": limit, "names": names, "order": order, "after": after})


async def list_pages(limit: Limit = 50, before: Before = None, after: After = None) -> Response:
    return json_response({"limit": limit, "before": before, "after": after})


class Which:
    """Query parameters that several endpoints share."""

    def __init__(self, name: str | None = None, names: Annotated[list[str] | None, Query()] = None, old: bool = False):
        self.shown = [name, names, old]


def _volume(loudness: Annotated[int, Query(ge=0)] = 1) -> str:
    return "!" * loudness


async def _awaited() -> str:
    return "an event loop"


async def count_things(
    which: Annotated[Which, Depends()], volume: Annotated[str, Depends(_volume)], limit: Limit = 50
) -> Response:
    return json_response({"which": which.shown, "volume": volume, "limit": limit})


def client(*, direct: bool) -> httpx.AsyncClient:
    router = LazyRouter(prefix="/things")
    router.add_api_route("/{thing_id}", post_thing, methods=["POST"])
    router.add_api_route("/", list_things, methods=["GET"])
    router.add_api_route("/pages/", list_pages, methods=["GET"])
    router.add_api_route("/count", count_things, methods=["GET"])
    routes = [route for route in router.routes if isinstance(route, LazyRoute)]
    for route in routes:
        assert route.direct is not None
        if not direct:
            route.__dict__["direct"] = None
    app = FastAPI()
    app.router.routes.append(RouteIndex(routes))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://things")


GET, POST = "GET", "POST"
SAID: list[tuple[str, str, Any]] = [
    (POST, "/things/thing-1", {"text": "hi"}),
    (POST, "/things/thing-1?loud=true", {"text": "hi", "count": "3", "unknown": 1}),
    (POST, "/things/thing-1?loud=perhaps", {"text": "hi"}),
    (POST, "/things/thing-x", {"text": "hi"}),
    (POST, "/things/thing-1", {"text": 7}),
    (POST, "/things/thing-1", {"count": 0}),
    (POST, "/things/thing-1", [1]),
    (GET, "/things/", None),
    (GET, "/things/?limit=3&names=a&names=b&order=desc&after=", None),
    (GET, "/things/?limit=10", None),
    (GET, "/things/?order=sideways&unknown=1", None),
    (GET, "/things/pages/?limit=100000&before=&after=thing-1", None),
    (GET, "/things/pages/?limit=0", None),
    (GET, "/things/count", None),
    (GET, "/things/count?name=a&names=b&names=c&old=true&loudness=3&limit=7", None),
    (GET, "/things/count?loudness=-1&old=perhaps", None),
    (GET, "/things/?names=%C5%BElu%C5%A5+k%C5%AF%C5%88", None),
]


@pytest.mark.parametrize(("method", "path", "body"), SAID)
async def test_both_ways_give_the_same_answer(method: str, path: str, body: Any) -> None:
    answers: list[tuple[int, Any]] = []
    for direct in (True, False):
        async with client(direct=direct) as http:
            answer = await http.request(method, path, json=body) if body is not None else await http.get(path)
            answers.append((answer.status_code, answer.json()))
    assert answers[0] == answers[1]


async def test_a_body_of_another_type_is_left_to_the_framework() -> None:
    async with client(direct=True) as http:
        answer = await http.post("/things/thing-1", content=b'{"text": "hi"}', headers={"content-type": "text/plain"})
    assert answer.status_code == 422


def test_there_is_no_short_way_to_an_endpoint_that_takes_more() -> None:
    async def with_header(agent: Annotated[str, Header()]) -> Response:
        return json_response(agent)

    async def with_optional_body(body: Body | None = None) -> Response:
        return json_response(body)

    async def with_two_bodies(first: Body, second: Body) -> Response:
        return json_response([first, second])

    async def with_alias(name: Annotated[str, Query(alias="n")]) -> Response:
        return json_response(name)

    async def with_async_dependency(name: Annotated[str, Depends(_awaited)]) -> Response:
        return json_response(name)

    async def without_response(name: str) -> dict[str, str]:
        return {"name": name}

    for endpoint in (
        with_header,
        with_optional_body,
        with_two_bodies,
        with_alias,
        with_async_dependency,
        without_response,
    ):
        assert direct_way(endpoint) is None, endpoint.__name__
