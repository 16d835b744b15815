"""A server without a socket, and two ways to talk to it: plain HTTP, and the unmodified client library."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from letta_client import AsyncLetta

from holdfast.actions.dependencies import Holdfast
from holdfast.actions.tools.base_tools import sync_base_tools
from holdfast.api.routes import agent_blocks, agent_tools, agents, blocks, models, tools
from holdfast.api.server import ROUTERS, create_app
from holdfast.errors import ModelUnavailable
from holdfast.llm.base import Abilities, ModelInfo
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.settings import Settings
from holdfast.store.database import open_database
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox
from holdfast.wiring import assemble
from tests.clients import AS_1X

RESOURCES = (agents.router, agent_blocks.router, agent_tools.router, blocks.router, tools.router, models.router)

ROLL = '''
def roll_dice(sides: int) -> int:
    """Roll a die.

    Args:
        sides (int): How many sides it has.
    """
    return sides
'''


# Found when it is named, and not listed.
THINKER = ModelInfo(
    handle="acme/thinker",
    name="thinker",
    provider_name="acme",
    provider_type="anthropic",
    context_window=200_000,
    max_output_tokens=8_000,
    abilities=Abilities(reasoning=True),
)


class Catalog(ModelCatalog):
    """The offline model, a larger one from another provider, and one embedding model that can be made to fail."""

    # What a text is about, by words that others say it with: enough of a meaning for a test.
    ABOUT = (("tea", "drink", "coffee", "beverage"), ("dog", "cat", "pet", "animal"), ("car", "train", "vehicle"))
    failing = False

    async def models(self) -> list[ModelInfo]:
        large = ModelInfo(
            handle="acme/large",
            name="large",
            provider_name="acme",
            provider_type="anthropic",
            context_window=200_000,
            max_output_tokens=8_000,
        )
        return [*await super().models(), large]

    async def find(self, handle: str) -> ModelInfo:
        offered = [*await self.models(), THINKER]
        return next((info for info in offered if info.handle == handle), None) or await super().find(handle)

    async def embedding_models(self) -> list[dict[str, Any]]:
        return [{"handle": "acme/vectors", "embedding_dim": 8, "provider_type": "openai"}]

    async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
        if self.failing:
            raise ModelUnavailable("acme cannot be reached")
        told = [[any(word in text.lower() for word in words) for words in self.ABOUT] for text in texts]
        return [[float(one) for one in (*about, *([False] * 5))] for about in told]


class Served(msgspec.Struct, frozen=True):
    deps: Holdfast
    http: httpx.AsyncClient
    client: AsyncLetta

    async def create(self, **fields: Any) -> dict[str, Any]:
        return await self.ok("POST", "/v1/agents/", fields)

    async def create_tool(self, source: str = ROLL, **fields: Any) -> dict[str, Any]:
        return await self.ok("POST", "/v1/tools/", {"source_code": source, **fields})

    async def create_block(self, label: str = "human", **fields: Any) -> dict[str, Any]:
        return await self.ok("POST", "/v1/blocks/", {"label": label, "value": "", **fields})

    async def ok(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        answer = await self.http.request(method, path, json=body, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, status: int, method: str, path: str, body: Any = None, **query: Any) -> str:
        """The sentence that a refusal comes with."""
        answer = await self.http.request(method, path, json=body, params=query)
        assert answer.status_code == status, answer.text
        detail = answer.json()["detail"]
        assert isinstance(detail, str)
        assert detail
        return detail


@asynccontextmanager
async def serving(
    database_url: str, directory: Path, catalog: ModelCatalog | None = None, **options: Any
) -> AsyncGenerator[Served]:
    database = await open_database(database_url)
    sandbox = ForkServerSandbox(hidden=(directory,))
    settings = Settings(data_dir=directory, default_model="holdfast/offline", tool_timeout_s=100, **options)
    try:
        deps = assemble(settings, database, sandbox, catalog or Catalog())
        now_us = deps.clock.now_us()
        await database.write(lambda tx: sync_base_tools(tx, now_us))
        known = set(map(id, ROUTERS))
        app = create_app(deps, (*ROUTERS, *(router for router in RESOURCES if id(router) not in known)))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://holdfast", headers=AS_1X) as http:
            client = AsyncLetta(
                base_url="http://holdfast", http_client=http, max_retries=0, _strict_response_validation=True
            )
            yield Served(deps, http, client)
    finally:
        await sandbox.aclose()
        await database.aclose()
