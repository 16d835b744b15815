"""A server process, a client of it, and agents: everything here goes over a real socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta

from tests.conformance.modes import Recording
from tests.conformance.receiver import Receiver, open_receiver
from tests.conformance.vendors import OFFLINE, VENDORS, Site, Sites, Vendor, reason_against
from tests.serving import ServerProcess

HERE = Path(__file__).parent
MODEL = OFFLINE.model
MakeAgent = Callable[..., Awaitable[str]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`messages.stream` is what people use, and the client calls it deprecated at every turn. What a vendor's protocol
    has no words for is not a test of its adapter."""
    unsayable: list[pytest.Item] = []
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "vendor" in item.callspec.params:
            given = item.callspec.params
            if given["vendor"] != OFFLINE.name:
                item.add_marker(pytest.mark.adapter)
            if reason_against(item.originalname, str(given["vendor"]), given.values()) is not None:
                unsayable.append(item)
    if unsayable:
        config.hook.pytest_deselected(items=unsayable)
        items[:] = [item for item in items if item not in unsayable]


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Generator[Sites]:
    with Sites(tmp_path_factory.mktemp) as sites:
        yield sites


@pytest.fixture
def vendor(request: pytest.FixtureRequest) -> Vendor:
    """Whose model the agents use. Tests that are about more than the offline one are parametrised with it."""
    return VENDORS[getattr(request, "param", OFFLINE.name)]


@pytest.fixture
def site(sites: Sites, vendor: Vendor) -> Generator[Site]:
    """However a test goes, the vendor is not left talking to nobody."""
    site = sites.of(vendor)
    left_open = site.fake.standing().open if site.fake else 0
    yield site
    if site.fake is not None:
        site.fake.check_none_open(left_open)


@pytest.fixture
def server(site: Site) -> ServerProcess:
    return site.server


@pytest.fixture
def tool_ids(site: Site) -> dict[str, str]:
    return site.tool_ids


@pytest.fixture
async def client(server: ServerProcess) -> AsyncGenerator[AsyncLetta]:
    async with connected(server) as client:
        yield client


@pytest.fixture
def make_agent(client: AsyncLetta, site: Site) -> MakeAgent:
    """Call it with the names of tools and any field of an agent; the new agent's id comes back."""

    async def make(*names: str, **fields: Any) -> str:
        return await create_agent(
            client, [site.tool_ids[name] for name in names], **{"model": site.vendor.model} | fields
        )

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
