"""The last 0.x client, unmodified, and a server process. `make test-0x` puts that client in the place of the 1.x one,
which type checkers still see: so everything of the client is Any."""

from __future__ import annotations

from collections.abc import Callable, Generator
from importlib.metadata import version
from typing import Any

import httpx
import pytest
from letta_client import Letta

from tests.serving import ServerProcess

LIMIT_S = 60
MakeAgent = Callable[..., Any]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    assert version("letta-client").startswith("0."), "run this suite with `make test-0x`"
    settings = {"HOLDFAST_DEFAULT_MODEL": "holdfast/offline", "HOLDFAST_MCP_STDIO": "true"}
    with ServerProcess(tmp_path_factory.mktemp("holdfast"), **settings) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Generator[Any]:
    connect: Any = Letta
    with httpx.Client(timeout=LIMIT_S) as http:
        yield connect(base_url=server.url, token="not needed", httpx_client=http)


@pytest.fixture
def make_agent(client: Any) -> Generator[MakeAgent]:
    """Call it with any field of an agent; it is deleted when the test is over."""
    made: list[str] = []

    def make(**fields: Any) -> Any:
        agent = client.agents.create(**{"include_base_tools": False} | fields)
        made.append(agent.id)
        return agent

    yield make
    for agent_id in made:
        client.agents.delete(agent_id=agent_id)
