"""A server process, a client of it, and agents: everything here goes over a real socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta

from tests.conformance import tools
from tests.conformance.modes import Recording
from tests.conformance.receiver import Receiver, open_receiver
from tests.serving import ServerProcess

HERE = Path(__file__).parent
MODEL = "holdfast/offline"
MakeAgent = Callable[..., Awaitable[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`messages.stream` is what people use, and the client calls it deprecated at every turn."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    environment = {
        "HOLDFAST_ALLOWED_HOSTS": "127.0.0.1",
        "HOLDFAST_QUEUE_WAIT_S": "10",
        "HOLDFAST_MODEL_RETRY_S": "0.01",
    }
    with ServerProcess(tmp_path_factory.mktemp("server"), **environment) as process:
        yield process


@pytest.fixture(scope="session")
def tool_ids(server: ServerProcess) -> dict[str, str]:
    with server.client() as client:
        return tools.install(client)


@pytest.fixture
async def client(server: ServerProcess) -> AsyncGenerator[AsyncLetta]:
    async with connected(server) as client:
        yield client


@pytest.fixture
def make_agent(client: AsyncLetta, tool_ids: dict[str, str]) -> MakeAgent:
    """Call it with the names of tools and any field of an agent; the new agent's id comes back."""

    async def make(*names: str, **fields: Any) -> str:
        return await create_agent(client, [tool_ids[name] for name in names], **fields)

    return make


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


def connected(server: ServerProcess) -> AsyncLetta:
    """Never retries by itself, and remembers what streams said byte for byte."""
    http = httpx.AsyncClient(transport=Recording(), timeout=60)
    return AsyncLetta(base_url=server.url, api_key="not needed", max_retries=0, http_client=http)


async def create_agent(client: AsyncLetta, tool_ids: list[str], **fields: Any) -> str:
    """Plain: no memory, no base tools, no rules but those that the tools bring along."""
    parallel = fields.pop("parallel", True)
    plain: dict[str, Any] = {
        "name": "ada",
        "agent_type": "letta_v1_agent",
        "model": MODEL,
        "include_base_tools": False,
        "include_base_tool_rules": False,
        "tool_ids": tool_ids,
    }
    agent = await client.agents.create(**plain | fields)
    if parallel:
        await client.agents.update(agent_id=agent.id, parallel_tool_calls=True)
    return agent.id
