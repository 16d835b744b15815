"""The whole server without a socket: real wiring, SQLite in a directory, the offline model, the unmodified client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
from letta_client import AsyncLetta
from letta_client.types import AgentState

from holdfast import wiring
from holdfast.actions.dependencies import Holdfast
from holdfast.api.server import create_app
from holdfast.asgi_transport import AsgiTransport
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.settings import Settings
from holdfast.store.transaction import Transaction
from tests.clients import AS_1X
from tests.scenario import eventually
from tests.sqlite import new_database

URL = "http://holdfast"


class ServedClient(AsyncLetta):
    """An AsyncLetta, with plain HTTP beside it for what the SDK hides, served alike, and the server's insides."""

    http: httpx.AsyncClient
    deps: Holdfast

    async def agent(self, **fields: Any) -> AgentState:
        known: dict[str, Any] = {"model": "holdfast/offline", "include_base_tools": False}
        return await self.agents.create(**known | fields)

    async def guarded_agent(self, source: str, **fields: Any) -> AgentState:
        """An agent whose one tool asks for approval."""
        tool = await self.tools.upsert(source_code=source, default_requires_approval=True)
        return await self.agent(tool_ids=[tool.id], **fields)

    @property
    def open_model_streams(self) -> int:
        catalog = self.deps.catalog
        assert isinstance(catalog, ModelCatalog)
        return catalog.offline.model.open_streams

    async def model_asked(self) -> None:
        """Returns when a model is being asked and the run that asks is on record: the one may come before the other."""
        await eventually(lambda: self.open_model_streams == 1)
        await self.all_stored()

    async def all_stored(self) -> None:
        """Returns when what was on its way to the database is in it."""
        await self.deps.database.write(_nothing)

    async def say(self, agent_id: str, text: str, **options: Any) -> Any:
        """A blocking message to the agent's default thread, unless the options say otherwise."""
        send: Any = self.agents.messages.create  # its overloads cannot be told apart through options
        return await send(agent_id, input=text, **options)

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        answer = await self.http.request(method, path, json=body, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refusal(self, status: int, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The `detail` of an answer that is a refusal."""
        answer = await self.http.request(method, path, json=body, params=query)
        assert answer.status_code == status, answer.text
        return answer.json()["detail"]

    async def events(self, path: str, body: Any = None) -> list[dict[str, Any] | str]:
        """A stream read to its end: the objects, and the terminator as it stands."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return [_event(line) for line in answer.text.splitlines() if line.startswith("data: ")]


async def _nothing(_: Transaction) -> None:
    pass


@asynccontextmanager
async def served(directory: Path, **settings: Any) -> AsyncGenerator[ServedClient]:
    known: dict[str, Any] = {"data_dir": directory, "default_model": "holdfast/offline", "drain_s": 0.1}
    known["model_retry_s"] = 0.001
    made = Settings(**known | settings)
    if made.database_file is not None and not made.database_file.exists():
        new_database(directory)
    async with wiring.build(made, warm_tools=False) as deps:
        transport = AsgiTransport(create_app(deps))
        async with (
            httpx.AsyncClient(transport=transport, base_url=URL, headers=AS_1X, timeout=60) as http,
            ServedClient(base_url=URL, api_key="none", http_client=http, max_retries=0) as client,
        ):
            client.http, client.deps = http, deps
            yield client


async def run_of(stream: Any) -> str:
    """The run that a stream belongs to, told by the ping that opens it."""
    return (await anext(aiter(stream))).run_id


def _event(line: str) -> dict[str, Any] | str:
    text = line.removeprefix("data: ")
    return text if text == "[DONE]" else cast("dict[str, Any]", httpx.Response(200, text=text).json())
