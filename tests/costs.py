"""What a request costs, in function calls of Python and in statements to the database: the same on any machine, however
busy it is.

`.venv/bin/python -m tests.costs` measures, and prints the figures as `tests/test_costs.py` has them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from unittest import mock

import asyncpg
import msgspec
import uvloop

from holdfast import wiring
from holdfast.api.server import create_app
from holdfast.settings import Settings
from tests import postgres
from tests.sqlite import new_database

What = Literal["create an agent", "no-tool turn", "one-tool turn"]
SAMPLES: Final = 9
WARM_UP: Final = 5
AGENT: Final = {"model": "holdfast/offline", "include_base_tools": False}
TOOL: Final = '''def echo(text: str) -> str:
    """Give the text back.

    Args:
        text (str): It.
    """
    return text
'''
_driver: Any = asyncpg


class Cost(NamedTuple):
    calls: int
    statements: int


class Counter:
    """Counts while it is on. What runs beside requests is left out, because the least of several samples counts."""

    def __init__(self) -> None:
        self.on = False
        self.calls = self.statements = 0

    def profile(self, _: Any, event: str, __: Any) -> None:
        if event in ("call", "c_call") and self.on:
            self.calls += 1

    def statement(self, *_: Any) -> None:
        self.statements += self.on

    def begin(self) -> None:
        self.calls = self.statements = 0
        self.on = True

    def end(self) -> Cost:
        self.on = False
        return Cost(self.calls, self.statements)


@contextmanager
def counting() -> Generator[Counter]:
    """In this thread and in those that are begun meanwhile; statements of connections that are made meanwhile."""
    counter = Counter()
    connect = sqlite3.connect

    def connect_counted(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **named)
        connection.set_trace_callback(counter.statement)
        return connection

    def counted(method: Callable[..., Any], *, unless_values: bool = False) -> Callable[..., Any]:
        def call(connection: Any, query: str, *values: Any, **named: Any) -> Any:
            if not (unless_values and values):  # then it is told by the method that it calls
                counter.statement()
            return method(connection, query, *values, **named)

        return call

    driver = _driver.Connection
    before = sys.getprofile()
    with (
        mock.patch.object(sqlite3, "connect", connect_counted),
        mock.patch.object(driver, "execute", counted(driver.execute, unless_values=True)),
        mock.patch.object(driver, "_execute", counted(driver._execute)),
        mock.patch.object(driver, "_executemany", counted(driver._executemany)),
    ):
        threading.setprofile(counter.profile)
        sys.setprofile(counter.profile)
        try:
            yield counter
        finally:
            sys.setprofile(before)
            threading.setprofile(None)


@asynccontextmanager
async def application(directory: Path, database_url: str | None) -> AsyncGenerator[Any]:
    settings = Settings(data_dir=directory, database_url=database_url, default_model="holdfast/offline", drain_s=0.1)
    async with wiring.build(settings) as deps:
        await deps.sandbox.status()
        yield create_app(deps)


async def ask(app: Any, method: str, path: str, body: Any) -> Any:
    return msgspec.json.decode(await ask_bytes(app, method, path, body))


async def ask_bytes(app: Any, method: str, path: str, body: Any) -> bytes:
    """Straight to the application: neither a socket nor a client is measured with it."""
    encoded = msgspec.json.encode(body)
    asked = [{"type": "http.request", "body": encoded, "more_body": False}]
    told: list[dict[str, Any]] = []

    async def receive() -> Any:
        return asked.pop() if asked else await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(encoded)),
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": f"/v1{path}",
        "raw_path": f"/v1{path}".encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    await app(scope, receive, send)
    answer = b"".join(message.get("body", b"") for message in told)
    assert told[0]["status"] == 200, answer
    return answer


def measure(directory: Path, database_url: str | None) -> dict[What, Cost]:
    """With the loop that servers have, which is not written in Python and so adds no calls of its own."""
    with counting() as counter:
        return uvloop.run(_costs(counter, directory, database_url))


async def requests(app: Any) -> dict[What, tuple[str, Any]]:
    """The path and the body of each, once the agents and the tool are there."""
    tool = await ask(app, "PUT", "/tools/", {"source_code": TOOL})
    agent = await ask(app, "POST", "/agents/", AGENT)
    with_tool = await ask(app, "POST", "/agents/", AGENT | {"tool_ids": [tool["id"]]})
    return {
        "create an agent": ("/agents/", AGENT),
        "no-tool turn": (f"/agents/{agent['id']}/messages", {"input": "hello"}),
        "one-tool turn": (f"/agents/{with_tool['id']}/messages", {"input": "Call echo with 'hi'"}),
    }


async def _costs(counter: Counter, directory: Path, database_url: str | None) -> dict[What, Cost]:
    async with application(directory, database_url) as app:
        return {what: await _cost(counter, app, *request) for what, request in (await requests(app)).items()}


async def _cost(counter: Counter, app: Any, path: str, body: Any) -> Cost:
    samples: list[Cost] = []
    for number in range(WARM_UP + SAMPLES):
        counter.begin()
        await ask(app, "POST", path, body)
        cost = counter.end()
        if number >= WARM_UP:
            samples.append(cost)
    calls, statements = zip(*samples, strict=True)
    return Cost(min(calls), min(statements))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, postgres.running_server() as server:
        new_database(Path(folder))
        url = asyncio.run(postgres.create_database(server.uri))
        for name, address in (("sqlite", None), ("postgres", url)):
            for what, cost in measure(Path(folder), address).items():
                print(f'    ("{name}", "{what}"): {cost!r},')


if __name__ == "__main__":
    main()
