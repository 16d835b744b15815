"""Users name addresses: of providers, of images, of callbacks. None of them may lead the server into its own network.

On loopback two servers have the same port: one at an address that is allowed and stands for the internet, one at an
address that is not. What is shown is that the second is never connected to.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.store import runs
from tests.api.test_runs import recorded
from tests.llm.fakes.anthropic import AnthropicProtocol
from tests.llm.fakes.chat import ChatProtocol
from tests.llm.fakes.gemini import GeminiProtocol
from tests.llm.fakes.mistral import MistralProtocol
from tests.llm.fakes.responses import ResponsesProtocol
from tests.llm.fakes.script import VendorProtocol
from tests.llm.fakes.server import FakeVendor
from tests.names import PRIVATE, PUBLIC, Names, one_port_on
from tests.served import ServedClient, served

NAME = "vendor.example"
PROVIDERS = "/v1/providers/"
KEY = "a-secret-key-of-mine"


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of provider, and what its models are called through."""

    provider_type: str
    protocol: Callable[[], VendorProtocol]
    model: str = "offline"
    settings: dict[str, Any] = {}


VENDORS = [
    pytest.param(Vendor(provider_type="openai", protocol=ChatProtocol), id="chat"),
    pytest.param(Vendor(provider_type="anthropic", protocol=AnthropicProtocol), id="anthropic"),
    pytest.param(
        Vendor(provider_type="openai", protocol=ResponsesProtocol, settings={"openai_responses": "always"}),
        id="responses",
    ),
    pytest.param(Vendor(provider_type="google_ai", protocol=GeminiProtocol), id="gemini"),
    pytest.param(Vendor(provider_type="mistral", protocol=MistralProtocol), id="mistral"),
]


class Network(msgspec.Struct, frozen=True):
    outside: FakeVendor  # where users may lead the server
    inside: FakeVendor  # where they may not
    port: int

    @property
    def url(self) -> str:
        return f"http://{NAME}:{self.port}"


@asynccontextmanager
async def network(protocol: Callable[[], VendorProtocol] = ChatProtocol) -> AsyncGenerator[Network]:
    outside, inside = FakeVendor(protocol()), FakeVendor(protocol())
    with one_port_on(PUBLIC, PRIVATE) as (first, second):
        port = first.getsockname()[1]
        outside.keeps_connections = False  # so that every request looks the name up
        async with outside.serving(bound=first), inside.serving(bound=second):
            yield Network(outside, inside, port)


@asynccontextmanager
async def guarded(directory: Path, **settings: Any) -> AsyncGenerator[ServedClient]:
    """A server whose callers have a key and which may be led to PUBLIC."""
    known: dict[str, Any] = {"api_key": "k", "allowed_hosts": (PUBLIC,), "model_retries": 0}
    async with served(directory, **known | settings) as client:
        client.api_key = "k"
        client.http.headers["authorization"] = "Bearer k"
        yield client


async def bring(client: ServedClient, base_url: str, provider_type: str = "openai", **fields: Any) -> dict[str, Any]:
    body = {"name": "mine", "provider_type": provider_type, "api_key": KEY, "base_url": base_url, **fields}
    return await client.ask("POST", PROVIDERS, body)


async def send(client: ServedClient, agent_id: str) -> Any:
    return await client.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Hello"})


# --- a name that leads elsewhere after its provider was stored -----------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_chat_call_is_not_led_to_a_private_address_by_a_name_that_was_public_when_it_was_stored(
    tmp_path: Path, names: Names, vendor: Vendor
) -> None:
    names.point(NAME, [PUBLIC])
    async with network(vendor.protocol) as net, guarded(tmp_path, **vendor.settings) as client:
        await bring(client, net.url, vendor.provider_type)
        agent = await client.agent(model=f"mine/{vendor.model}")
        assert (await send(client, agent.id)).status_code == 200
        assert net.outside.last.method == "POST"
        asked_by = net.outside.last.headers["host"]
        assert asked_by == f"{NAME}:{net.port}"
        names.point(NAME, [PRIVATE])
        answer = await send(client, agent.id)
    assert net.inside.connections_made == 0
    assert answer.status_code == 400, answer.text
    assert "not a public address" in answer.text
    assert PRIVATE not in answer.text


@pytest.mark.parametrize("vendor", VENDORS)
async def test_models_are_not_listed_from_a_private_address_that_a_name_came_to_lead_to(
    tmp_path: Path, names: Names, vendor: Vendor
) -> None:
    names.point(NAME, [PUBLIC], [PRIVATE])  # the lookup that decides about storing it sees the first
    async with network(vendor.protocol) as net, guarded(tmp_path, **vendor.settings) as client:
        created = await bring(client, net.url, vendor.provider_type)
        listed = await client.ask("GET", "/v1/models/")
        refreshed = await client.refusal(400, "PATCH", f"{PROVIDERS}{created['id']}/refresh")
        checked = await client.refusal(400, "POST", f"{PROVIDERS}{created['id']}/check")
    assert [model["handle"] for model in listed] == ["holdfast/offline"]
    assert net.inside.connections_made == 0
    for told in (refreshed, checked):
        assert "not a public address" in told
        assert "HOLDFAST_ALLOWED_HOSTS" in told


async def test_a_name_that_changes_with_every_lookup_reaches_only_what_was_checked(
    tmp_path: Path, names: Names
) -> None:
    names.point(NAME, *([[PUBLIC], [PRIVATE]] * 50))
    async with network() as net, guarded(tmp_path) as client:
        created = await bring(client, net.url)
        statuses: set[int] = set()
        for _ in range(10):
            refreshed = await client.http.patch(f"{PROVIDERS}{created['id']}/refresh")
            statuses.add(refreshed.status_code)
    assert statuses == {200, 400}, "some lookups said the allowed address, some the other"
    assert net.inside.connections_made == 0


async def test_a_name_with_a_public_and_a_private_address_is_refused_as_a_whole(tmp_path: Path, names: Names) -> None:
    """Whoever connects tries one address after the other, or several at once."""
    for addresses in ([PUBLIC, PRIVATE], [PRIVATE, PUBLIC], [PUBLIC, "::1"]):
        async with network() as net, guarded(tmp_path / str(len(names.lookups))) as client:
            names.point(NAME, [PUBLIC], addresses)
            created = await bring(client, net.url)
            told = await client.refusal(400, "PATCH", f"{PROVIDERS}{created['id']}/refresh")
            assert "not a public address" in told
            assert net.inside.connections_made == net.outside.connections_made == 0


async def test_bedrock_is_not_called_at_a_private_address(tmp_path: Path, names: Names) -> None:
    host = "bedrock-runtime.eu-west-1.amazonaws.com"
    names.point(host, [PRIVATE])
    async with guarded(tmp_path) as client:
        body = {"name": "mine", "provider_type": "bedrock", "api_key": KEY, "access_key": "AK", "region": "eu-west-1"}
        await client.ask("POST", PROVIDERS, body)
        agent = await client.agent(model="mine/anthropic.claude-sonnet-4-5-20250929-v1:0")
        answer = await send(client, agent.id)
    assert answer.status_code == 400, answer.text
    assert f"{host} is not a public address, or leads to one" in answer.text
    assert names.lookups == [host]


async def test_a_google_provider_without_a_key_is_not_given_the_credentials_of_the_server(tmp_path: Path) -> None:
    """They would be looked for at the metadata address of its cloud."""
    async with guarded(tmp_path) as client:
        body = {"name": "mine", "provider_type": "google_vertex", "api_key": KEY}
        created = await client.ask("POST", PROVIDERS, body)
        await client.ask("PATCH", PROVIDERS + created["id"], {"api_key": ""})
        agent = await client.agent(model="mine/gemini-2.5-pro")
        answer = await send(client, agent.id)
    assert answer.status_code == 401, answer.text
    assert "needs an API key" in answer.text


async def test_a_redirect_of_a_provider_is_not_followed(tmp_path: Path, names: Names) -> None:
    names.point(NAME, [PUBLIC])
    async with AsyncExitStack() as stack:
        net = await stack.enter_async_context(network())
        client = await stack.enter_async_context(guarded(tmp_path))
        await bring(client, f"http://{NAME}:{net.port}")
        agent = await client.agent(model="mine/offline")
        net.outside.redirects_to = f"http://{PRIVATE}:{net.port}/v1/chat/completions"
        answer = await send(client, agent.id)
    assert answer.status_code >= 400
    assert net.inside.connections_made == 0


# --- who is trusted ------------------------------------------------------------------------------------------------


SPELLINGS = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "0.0.0.0",
    "[::]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "127.0.0.1.",
    "１２７.０.０.１",
    socket.gethostname(),
]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"api_key": "k", "host": "127.0.0.1"}, id="with a key on loopback"),
        pytest.param({"api_key": "k", "host": "0.0.0.0"}, id="with a key on every address"),
        pytest.param({"host": "127.0.0.1", "allow_private_addresses": False}, id="without a key, by its setting"),
    ],
)
async def test_callers_that_are_not_trusted_lead_the_server_nowhere_private(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with network() as net, served(tmp_path, **settings) as client:
        client.api_key = "k"
        client.http.headers["authorization"] = "Bearer k"
        for host in SPELLINGS:
            body = {"name": "x", "provider_type": "openai", "api_key": "k", "base_url": f"http://{host}:{net.port}"}
            for path in ("", "check"):
                told = await client.http.post(PROVIDERS + path, json=body)
                assert (host, told.status_code) == (host, 400), told.text
        assert await client.ask("GET", PROVIDERS) == []
        assert net.inside.connections_made == 0


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="without a key on loopback"),
        pytest.param({"api_key": "k", "allow_private_addresses": True}, id="by its setting"),
        pytest.param({"api_key": "k", "allowed_hosts": ("localhost",)}, id="by the name of the host"),
        pytest.param({"api_key": "k", "allowed_hosts": ("127.0.0.0/8", "::1")}, id="by its network"),
    ],
)
async def test_a_provider_on_the_private_network_is_called_where_that_is_allowed(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with FakeVendor(ChatProtocol()).serving() as vendor, served(tmp_path, **settings) as client:
        client.api_key = "k"
        client.http.headers["authorization"] = "Bearer k"
        await bring(client, vendor.url.replace("127.0.0.1", "localhost"))
        agent = await client.agent(model="mine/offline")
        assert (await send(client, agent.id)).status_code == 200
        assert vendor.last.method == "POST"


async def test_a_host_that_is_allowed_by_name_opens_no_other_name_for_its_address(tmp_path: Path, names: Names) -> None:
    names.point("ollama.internal", [PRIVATE])
    names.point("other.internal", [PRIVATE])
    async with network() as net, guarded(tmp_path, allowed_hosts=("ollama.internal",)) as client:
        await bring(client, f"http://ollama.internal:{net.port}")
        assert "mine/offline" in [model["handle"] for model in await client.ask("GET", "/v1/models/")]
        body = {"name": "x", "provider_type": "openai", "api_key": "k", "base_url": f"http://other.internal:{net.port}"}
        assert "not a public address" in await client.refusal(400, "POST", PROVIDERS, body)


async def test_a_provider_of_the_operator_may_be_anywhere(tmp_path: Path, names: Names) -> None:
    names.point(NAME, [PRIVATE])
    async with network() as net:
        environment = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": net.url}
        async with guarded(tmp_path, providers=environment) as client:
            agent = await client.agent(model="openai-proxy/offline")
            assert (await send(client, agent.id)).status_code == 200
        assert net.inside.last.method == "POST"


async def test_a_connection_that_the_operator_s_provider_left_open_serves_no_user(tmp_path: Path, names: Names) -> None:
    """It leads to a private address, and has the same name and port as what the user names."""
    names.point(NAME, [PRIVATE])
    async with network() as net:
        environment = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": net.url}
        async with guarded(tmp_path, providers=environment) as client:
            agent = await client.agent(model="openai-proxy/offline")
            assert (await send(client, agent.id)).status_code == 200
            names.point(NAME, [PUBLIC], [PRIVATE])
            created = await bring(client, net.url)
            asked = len(net.inside.exchanges)
            await client.refusal(400, "PATCH", f"{PROVIDERS}{created['id']}/refresh")
        assert len(net.inside.exchanges) == asked


@pytest.mark.parametrize("provider_type", ["openai", "google_ai"])
async def test_a_proxy_of_the_environment_does_not_carry_what_a_user_wrote(
    tmp_path: Path, names: Names, monkeypatch: pytest.MonkeyPatch, provider_type: str
) -> None:
    """It would look the name up itself, in its own network, and nothing would be checked."""
    protocol = ChatProtocol if provider_type == "openai" else GeminiProtocol
    names.point(NAME, [PUBLIC])
    async with network(protocol) as net, FakeVendor(protocol()).serving() as proxy, guarded(tmp_path) as client:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        await bring(client, net.url, provider_type)
        agent = await client.agent(model="mine/offline")
        assert (await send(client, agent.id)).status_code == 200
    assert proxy.connections_made == 0
    assert net.outside.last.method == "POST"


# --- callbacks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        *(f"http://{host}:{{port}}/told" for host in SPELLINGS),
        "http://169.254.169.254/latest/meta-data/",
        "http://private.example:{port}/told",
        "http://mixed.example:{port}/told",
        "http://me:secret@93.184.215.14:{port}/told",
        f"http://93.184.215.14@{PRIVATE}:{{port}}/told",
        "http://[::1",
        "http://93.184.215.14:0/",
        "http://93.184.215.14:99999/",
        "http://nobody.invalid..example/",
    ],
)
async def test_a_callback_that_may_not_be_called_is_refused_at_once_and_nothing_is_stored(
    tmp_path: Path, names: Names, url: str
) -> None:
    names.point("private.example", [PRIVATE])
    names.point("mixed.example", ["93.184.215.14", PRIVATE])
    async with network() as net, served(tmp_path) as client:
        agent = await client.agent()
        path = f"/v1/agents/{agent.id}/messages"
        body = {"input": "hello", "callback_url": url.format(port=net.port)}
        told = await client.refusal(400, "POST", f"{path}/async", body)
        assert "callback_url" in told
        assert await client.ask("GET", "/v1/runs/", agent_id=agent.id) == []
        assert [message["message_type"] for message in await client.ask("GET", path)] == ["system_message"]
        assert net.inside.connections_made == 0


async def test_a_callback_is_checked_again_when_it_is_delivered(tmp_path: Path, names: Names) -> None:
    names.point("hook.example", [PUBLIC], [PRIVATE])
    async with network() as net, guarded(tmp_path) as client:
        agent = await client.agent()
        url = f"http://hook.example:{net.port}/told"
        run = await client.ask("POST", f"/v1/agents/{agent.id}/messages/async", {"input": "hi", "callback_url": url})
        after = await recorded(client, run["id"])
        assert (after["status"], after["callback_status_code"]) == ("completed", None)
        assert "not a public address" in after["callback_error"]
        assert net.inside.connections_made == 0


async def test_a_callback_whose_name_cannot_be_looked_up_for_the_moment_is_accepted_and_tried_again(
    tmp_path: Path, names: Names
) -> None:
    names.fail_for_now("hook.example")
    async with guarded(tmp_path) as client:
        agent = await client.agent()
        body = {"input": "hi", "callback_url": "http://hook.example/told"}
        run = await client.ask("POST", f"/v1/agents/{agent.id}/messages/async", body)
        after = await recorded(client, run["id"])
        assert "Temporary failure in name resolution" in after["callback_error"]
        assert await client.deps.database.read(runs.next_callback_us) is not None, "it is tried again"
