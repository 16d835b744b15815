"""A provider on a loopback socket that knows how to list its models, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from holdfast.llm.endpoint import Endpoint


class Asked(msgspec.Struct, frozen=True):
    path: str
    headers: Mapping[str, str]
    body: Any


class ListingServer:
    """`answers` maps a path, with its query if it has one, to a JSON body; `statuses` holds those that are not 200."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.statuses: dict[str, int] = {}
        self.asked: list[Asked] = []
        self.was_asked = asyncio.Event()
        self.open = asyncio.Event()  # cleared, it lets everybody wait
        self.open.set()
        self.url = ""

    @property
    def paths(self) -> list[str]:
        return [one.path for one in self.asked]

    def breaks(self, path: str, status: int, message: str = "out of order") -> None:
        self.statuses[path] = status
        self.answers[path] = {"error": {"message": message}}

    def heals(self, path: str, answer: Any) -> None:
        self.statuses.pop(path, None)
        self.answers[path] = answer

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path_qs
        body = msgspec.json.decode(await request.read()) if request.can_read_body else None
        self.asked.append(Asked(path, dict(request.headers), body))
        self.was_asked.set()
        await self.open.wait()
        found = self.answers.get(path)
        if callable(found):
            found = found(body)
        if found is None:
            return web.json_response({"error": {"message": f"nothing at {path}"}}, status=404)
        return web.json_response(found, status=self.statuses.get(path, 200))


@asynccontextmanager
async def listing(answers: dict[str, Any]) -> AsyncGenerator[ListingServer]:
    server = ListingServer(answers)
    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}"
        yield server
    finally:
        server.open.set()
        await runner.cleanup()


def endpoint_at(server: ListingServer, provider_type: str = "openai", **fields: Any) -> Endpoint:
    unversioned = provider_type in ("anthropic", "google_ai", "azure")
    known: dict[str, Any] = {
        "provider_name": provider_type,
        "provider_type": provider_type,
        "base_url": server.url if unversioned else f"{server.url}/v1",
        "api_key": "a-secret-key",
    }
    return Endpoint(**known | fields)


def openai_list(*names: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
