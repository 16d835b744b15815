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
from tests.conformance.vendors import NATIVE, OFFLINE, VENDORS, Site, Sites, Vendor, VendorProcess, reason_against
from tests.effort import EFFORT, sampled
from tests.serving import ServerProcess

HERE = Path(__file__).parent
MODEL = OFFLINE.model
QUICK = ("test_acceptance_turns.py",)
MakeAgent = Callable[..., Awaitable[str]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`messages.stream` is what people use, and the client calls it deprecated at every turn.

    Of what is sent in several modes, at most one is not slow. Tests of adapters come vendor by vendor, so that
    hardly any vendor has to be started in more than one process.
    """
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        item.add_marker(pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"))
    through_adapters = [item for item in ours if vendor_of(item) != OFFLINE.name]
    for item in through_adapters:
        item.add_marker(pytest.mark.adapter)
    kept = sorted(_chosen(through_adapters), key=lambda item: list(VENDORS).index(vendor_of(item)))
    if len(kept) < len(through_adapters):
        config.hook.pytest_deselected(items=[item for item in through_adapters if item not in kept])
    offline = [item for item in ours if vendor_of(item) == OFFLINE.name]
    quick = sampled([item for item in offline if item.path.name in QUICK], ("mode",))
    for item in offline:
        if item not in quick:
            item.add_marker(pytest.mark.slow)
    aside = set(through_adapters)
    items[:] = [item for item in items if item not in aside] + kept


def vendor_of(item: pytest.Item) -> str:
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return str(given.get("vendor", OFFLINE.name))


def _chosen(items: list[pytest.Item]) -> list[pytest.Item]:
    """Without what a vendor's protocol has no words for, which is no test of its adapter. What is not about adapters
    has one of ours and one that speaks through a vendor's library, unless more effort is asked for."""
    sayable = [item for item in items if not _is_unsayable(item)]
    if EFFORT > 1:
        return sayable
    about_adapters = [item for item in sayable if item.path.name == "test_acceptance_adapters.py"]
    others = [item for item in sayable if item.path.name != "test_acceptance_adapters.py"]
    native = sampled([item for item in others if vendor_of(item) in NATIVE], ("vendor",))
    through_libraries = sampled([item for item in others if vendor_of(item) not in NATIVE], ("vendor",))
    return [*about_adapters, *native, *through_libraries]


def _is_unsayable(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    return reason_against(item.originalname, vendor_of(item), item.callspec.params.values()) is not None


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
def fake(site: Site) -> VendorProcess:
    assert site.fake is not None
    return site.fake


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
