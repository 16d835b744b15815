"""Providers that users bring, through the API, with the vendor on a loopback socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from holdfast import ids
from tests.llm.fakes.anthropic import AnthropicProtocol
from tests.llm.fakes.chat import ChatProtocol
from tests.llm.fakes.script import VendorProtocol
from tests.llm.fakes.server import FakeVendor
from tests.llm.listing import ListingServer, listing, openai_list
from tests.served import ServedClient, served

PROVIDERS = "/v1/providers/"
MODELS = "/v1/models"
KEY = "a-secret-key-of-mine"


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url) as opened:
        yield opened


@pytest.fixture
async def vendor() -> AsyncIterator[ListingServer]:
    async with listing({MODELS: openai_list("m")}) as server:
        yield server


async def bring(client: ServedClient, vendor: ListingServer, name: str = "mine", **fields: Any) -> dict[str, Any]:
    body = {"name": name, "provider_type": "openai", "api_key": KEY, "base_url": vendor.url, **fields}
    return await client.ask("POST", PROVIDERS, body)


async def handles(client: ServedClient, **query: Any) -> list[str]:
    return [model["handle"] for model in await client.ask("GET", "/v1/models/", **query)]


async def test_a_provider_is_shown_without_its_keys(client: ServedClient, vendor: ListingServer) -> None:
    created = await bring(client, vendor, access_key="another-secret", region="eu", api_version="2")
    assert ids.is_id("provider", created["id"])
    assert (created["name"], created["provider_type"], created["provider_category"]) == ("mine", "openai", "byok")
    assert (created["base_url"], created["region"], created["api_version"]) == (vendor.url, "eu", "2")
    for key in ("api_key", "access_key", "api_key_enc", "access_key_enc", "last_synced"):
        assert created[key] is None
    assert (created["has_api_key"], created["has_access_key"]) == (True, True)
    assert await client.ask("GET", PROVIDERS + created["id"]) == created
    assert await client.ask("GET", PROVIDERS) == [created]
    everything = await client.http.get(PROVIDERS)
    assert KEY not in everything.text
    assert vendor.asked == []  # nobody is called before a model is wanted


def bytes_below(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.glob("holdfast.db*"))


async def test_its_keys_are_not_stored_as_they_are(tmp_path: Path) -> None:
    async with listing({MODELS: openai_list("m")}) as vendor, served(tmp_path) as client:
        await bring(client, vendor)
    stored = bytes_below(tmp_path)
    assert b"provider-" in stored
    assert KEY.encode() not in stored


async def test_its_models_are_listed_beside_the_server_s_own(client: ServedClient, vendor: ListingServer) -> None:
    await bring(client, vendor)
    assert await handles(client) == ["mine/m", "holdfast/offline"]
    assert await handles(client, provider_category="byok") == ["mine/m"]
    assert await handles(client, provider_category="base") == ["holdfast/offline"]
    assert await handles(client, provider_name="mine") == ["mine/m"]
    found = {model.handle: model for model in await client.models.list(provider_category=["byok"])}
    assert found["mine/m"].provider_category == "byok"
    assert vendor.asked[0].headers["Authorization"] == f"Bearer {KEY}"


async def test_a_name_belongs_to_one_provider(client: ServedClient, vendor: ListingServer) -> None:
    await bring(client, vendor)
    body = {"name": "mine", "provider_type": "groq", "api_key": "k"}
    assert "mine" in await client.refusal(409, "POST", PROVIDERS, body)
    assert "belongs to" in await client.refusal(400, "POST", PROVIDERS, {**body, "name": "holdfast"})


async def test_the_name_of_a_provider_of_the_environment_is_taken(tmp_path: Path) -> None:
    environment = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:1"}
    async with served(tmp_path, providers=environment) as client:
        for taken in ("openai", "openai-proxy"):
            body = {"name": taken, "provider_type": "openai", "api_key": "k"}
            assert "belongs to" in await client.refusal(400, "POST", PROVIDERS, body)


async def test_a_deleted_provider_is_gone_and_comes_back_by_its_name(
    client: ServedClient, vendor: ListingServer
) -> None:
    created = await bring(client, vendor)
    assert await handles(client) == ["mine/m", "holdfast/offline"]
    deleted = await client.ask("DELETE", PROVIDERS + created["id"])
    assert created["id"] in deleted["message"]
    assert await handles(client) == ["holdfast/offline"]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/check"), ("PATCH", "/refresh")):
        assert "not found" in await client.refusal(404, method, PROVIDERS + created["id"] + path)
    revived = await bring(client, vendor, region="us")
    assert (revived["id"], revived["region"]) == (created["id"], "us")
    assert await handles(client) == ["mine/m", "holdfast/offline"]


async def test_a_change_takes_effect_at_once_and_leaves_the_rest(client: ServedClient, vendor: ListingServer) -> None:
    created = await bring(client, vendor, region="eu")
    await handles(client)
    changed = await client.ask("PATCH", PROVIDERS + created["id"], {"api_key": "another-key-of-mine"})
    assert (changed["region"], changed["base_url"], changed["has_api_key"]) == ("eu", vendor.url, True)
    await handles(client)
    assert vendor.asked[-1].headers["Authorization"] == "Bearer another-key-of-mine"
    cleared = await client.ask("PATCH", PROVIDERS + created["id"], {"api_key": "", "region": None})
    assert (cleared["has_api_key"], cleared["region"], cleared["base_url"]) == (False, None, vendor.url)


async def test_a_key_is_checked_with_the_vendor(client: ServedClient, vendor: ListingServer) -> None:
    created = await bring(client, vendor)
    body = {"provider_type": "openai", "api_key": KEY, "base_url": vendor.url}
    for answer in (
        await client.ask("POST", PROVIDERS + "check", body),
        await client.ask("POST", f"{PROVIDERS}{created['id']}/check"),
    ):
        assert answer == {"message": "Valid api key for provider_type=openai"}
    assert len(vendor.asked) == 2
    vendor.breaks(MODELS, 401, "no such key")
    for path, sent in (("check", body), (f"{created['id']}/check", None)):
        refused = await client.http.post(PROVIDERS + path, json=sent)
        assert refused.status_code == 401
        error = refused.json()["error"]
        assert error["type"] == "llm_authentication"
        assert "no such key" in error["detail"]


def self_signed(path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    unlocked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(unlocked + certificate.public_bytes(Encoding.PEM))
    return path


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Taken, so that nobody else can begin to listen there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
async def deaf_port() -> AsyncIterator[int]:
    """Somebody is there who never speaks TLS, and hangs up."""
    server = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
async def untrusted_port(tmp_path: Path) -> AsyncIterator[int]:
    """TLS with a certificate that nobody but its owner has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path / "certificate.pem"))
    server = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://nobody.localhost:{closed}", "cannot be reached"),
        ("http://127.0.0.1:{closed}", "cannot be reached"),
        ("https://127.0.0.1:{deaf}", "cannot be reached"),
        ("http://127.0.0.1:{deaf}", "was lost"),
        ("https://127.0.0.1:{untrusted}", "certificate"),
        ("{vendor}/elsewhere", "404"),
    ],
)
async def test_an_address_that_leads_nowhere_is_for_its_writer_to_mend(
    tmp_path: Path,
    vendor: ListingServer,
    closed_port: int,
    deaf_port: int,
    untrusted_port: int,
    address: str,
    why: str,
) -> None:
    url = address.format(closed=closed_port, deaf=deaf_port, untrusted=untrusted_port, vendor=vendor.url)
    async with served(tmp_path) as client:
        created = await bring(client, vendor)
        assert (await client.ask("PATCH", PROVIDERS + created["id"], {"base_url": url}))["base_url"] == url
        body = {"provider_type": "openai", "api_key": KEY, "base_url": url}
        for method, path, sent in (
            ("POST", "check", body),
            ("POST", f"{created['id']}/check", None),
            ("PATCH", f"{created['id']}/refresh", None),
        ):
            refusal = await client.refusal(400, method, PROVIDERS + path, sent)
            assert why in refusal
            assert "base_url" in refusal, "it says what to do"
            assert KEY not in refusal


async def test_a_vendor_that_answers_with_an_error_of_its_own_is_not_a_wrong_address(
    client: ServedClient, vendor: ListingServer
) -> None:
    vendor.breaks(MODELS, 500)
    body = {"provider_type": "openai", "api_key": KEY, "base_url": vendor.url}
    answer = await client.http.post(PROVIDERS + "check", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "llm_error")


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example", "127.0.0.1:99999", "127.0.0.1:port", "[::1"])
async def test_an_address_that_cannot_exist_is_refused_before_anybody_is_asked(
    client: ServedClient, vendor: ListingServer, host: str
) -> None:
    body = {"name": "x", "provider_type": "openai", "api_key": KEY, "base_url": f"http://{host}"}
    for path in ("", "check"):
        assert "base_url must" in await client.refusal(400, "POST", PROVIDERS + path, body)
    created = await bring(client, vendor)
    change = {"base_url": f"http://{host}"}
    assert "base_url must" in await client.refusal(400, "PATCH", PROVIDERS + created["id"], change)


async def test_a_server_that_others_can_reach_says_what_is_wrong_with_a_host_before_it_stores_it(
    tmp_path: Path, vendor: ListingServer
) -> None:
    async with served(tmp_path, host="0.0.0.0", api_key="k", allowed_hosts=("127.0.0.1",)) as client:
        client.http.headers["authorization"] = "Bearer k"
        created = await bring(client, vendor)
        change = {"base_url": "http://nowhere.invalid"}
        for method, path, sent in (
            ("POST", "check", {"provider_type": "openai", "api_key": KEY, **change}),
            ("PATCH", created["id"], change),
        ):
            assert "nowhere.invalid could not be found" in await client.refusal(400, method, PROVIDERS + path, sent)


async def test_refreshing_asks_again_and_says_when(client: ServedClient, vendor: ListingServer) -> None:
    created = await bring(client, vendor)
    await handles(client)
    vendor.answers[MODELS] = openai_list("m", "n")
    assert await handles(client) == ["mine/m", "holdfast/offline"]
    refreshed = await client.ask("PATCH", f"{PROVIDERS}{created['id']}/refresh")
    assert refreshed["last_synced"] is not None
    assert await handles(client) == ["mine/m", "mine/n", "holdfast/offline"]
    vendor.breaks(MODELS, 500)
    failed = await client.http.patch(f"{PROVIDERS}{created['id']}/refresh")
    assert failed.json()["error"]["type"] == "llm_error"
    assert (await client.ask("GET", PROVIDERS + created["id"]))["last_synced"] == refreshed["last_synced"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"name": "a/b", "provider_type": "openai", "api_key": "k"}, 422, "name"),
        ({"name": "", "provider_type": "openai", "api_key": "k"}, 422, "name"),
        ({"name": "x", "provider_type": "nobody", "api_key": "k"}, 422, "provider_type"),
        ({"name": "x", "provider_type": "openai"}, 422, "api_key"),
        ({"name": "x", "provider_type": "openai", "api_key": "k", "surprise": 1}, 422, "surprise"),
        ({"name": "x", "provider_type": "openai", "api_key": "two\nlines"}, 422, "api_key"),
        ({"name": "x", "provider_type": "openai", "api_key": "schlüssel"}, 422, "api_key"),
        ({"name": "x", "provider_type": "vllm", "api_key": "k"}, 400, "base_url"),
        ({"name": "x", "provider_type": "openai", "api_key": "k", "base_url": "localhost"}, 400, "base_url"),
        ({"name": "x", "provider_type": "google_vertex", "api_key": "k", "region": "10.0.0.1/"}, 422, "region"),
        ({"name": "x", "provider_type": "letta", "api_key": "k"}, 400, "letta"),
        ({"name": "x", "provider_type": "bedrock", "api_key": "k"}, 400, "access_key"),
    ],
)
async def test_a_provider_that_could_not_work_is_refused(
    client: ServedClient, body: dict[str, Any], status: int, word: str
) -> None:
    assert word in await client.refusal(status, "POST", PROVIDERS, body)


async def test_a_key_that_cannot_be_sent_hides_nobody_s_models(client: ServedClient, vendor: ListingServer) -> None:
    await bring(client, vendor, api_key=f"  {KEY}\n")
    body = {"name": "bad", "provider_type": "openai", "api_key": "two\nlines", "base_url": vendor.url}
    assert "lines" not in await client.refusal(422, "POST", PROVIDERS, body)
    assert await handles(client) == ["mine/m", "holdfast/offline"]
    assert vendor.asked[-1].headers["Authorization"] == f"Bearer {KEY}"


async def test_ids_are_checked_before_anything_else(client: ServedClient) -> None:
    await client.refusal(422, "GET", PROVIDERS + "provider-1")
    await client.refusal(404, "GET", PROVIDERS + ids.new("provider"))


async def test_keys_that_cannot_be_checked_say_so(client: ServedClient) -> None:
    body = {"provider_type": "bedrock", "api_key": "s", "access_key": "i"}
    assert "without calling a model" in await client.refusal(501, "POST", PROVIDERS + "check", body)


async def test_providers_are_listed_page_by_page_and_filtered(client: ServedClient, vendor: ListingServer) -> None:
    names = ["a", "b", "c"]
    for name in names:
        await bring(client, vendor, name, provider_type="openai" if name != "c" else "groq")
    newest = await client.ask("GET", PROVIDERS, limit=2)
    rest = await client.ask("GET", PROVIDERS, limit=2, after=newest[-1]["id"])
    assert [one["name"] for one in (*newest, *rest)] == ["c", "b", "a"]
    assert [one["name"] for one in await client.ask("GET", PROVIDERS, provider_type="groq")] == ["c"]
    assert [one["name"] for one in await client.ask("GET", PROVIDERS, name="b")] == ["b"]


async def test_a_server_that_others_can_reach_sends_nobody_into_its_own_network(tmp_path: Path) -> None:
    async with served(tmp_path, host="0.0.0.0", api_key="k") as client:
        client.http.headers["authorization"] = "Bearer k"
        body = {"name": "x", "provider_type": "openai", "api_key": "k", "base_url": "http://127.0.0.1:1"}
        assert "HOLDFAST_ALLOWED_HOSTS" in await client.refusal(400, "POST", PROVIDERS, body)
        assert "HOLDFAST_ALLOWED_HOSTS" in await client.refusal(400, "POST", PROVIDERS + "check", body)


async def test_a_provider_sealed_with_another_key_is_used_without(
    tmp_path: Path, vendor: ListingServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, encryption_key="one") as client:
        await bring(client, vendor)
    async with served(tmp_path, encryption_key="two") as client:
        assert await handles(client) == ["mine/m", "holdfast/offline"]
    assert "Authorization" not in vendor.asked[-1].headers
    assert "sealed with another key" in caplog.text


async def test_steps_name_the_provider_that_a_user_brought_also_when_it_is_gone(client: ServedClient) -> None:
    async with FakeVendor(ChatProtocol()).serving() as vendor:
        body = {"name": "mine", "provider_type": "openai", "api_key": KEY, "base_url": vendor.url}
        brought = await client.ask("POST", PROVIDERS, body)
        agent = await client.agent(model="mine/offline")
        await client.say(agent.id, "Hello")
        waiting = await client.agents.messages.create_async(agent.id, input="Hello [[stall]]")
        while "[[stall]]" not in str((await vendor.arrivals.get()).body):
            pass
        (pending,) = await client.ask("GET", f"/v1/runs/{waiting.id}/steps")
        assert (pending["provider_id"], pending["provider_category"]) == (brought["id"], "byok")
        await client.agents.messages.cancel(agent.id)
    await client.ask("DELETE", PROVIDERS + brought["id"])
    listed = await client.ask("GET", "/v1/steps/", agent_id=agent.id)
    of_run = await client.ask("GET", f"/v1/runs/{listed[0]['run_id']}/steps")
    one = await client.ask("GET", f"/v1/steps/{listed[0]['id']}")
    rated = await client.ask("PATCH", f"/v1/steps/{listed[0]['id']}/feedback", {"feedback": "positive"})
    metrics = await client.ask("GET", f"/v1/steps/{listed[0]['id']}/metrics")
    assert len(listed) == 2
    assert {step["provider_id"] for step in (*listed, *of_run, one, rated, metrics)} == {brought["id"]}
    assert {step["provider_category"] for step in (*listed, *of_run, one, rated)} == {"byok"}


async def test_steps_of_the_server_s_own_providers_name_none(tmp_path: Path) -> None:
    """As they are not among the providers that are listed, there is no id that would lead anywhere."""
    async with FakeVendor(ChatProtocol()).serving() as vendor:
        environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": vendor.url}
        async with served(tmp_path, providers=environment) as client:
            for handle in ("openai-proxy/offline", "holdfast/offline"):
                agent = await client.agent(model=handle)
                await client.say(agent.id, "Hello")
                (step,) = await client.ask("GET", "/v1/steps/", agent_id=agent.id)
                assert (step["provider_id"], step["provider_category"]) == (None, "base")
            assert await client.ask("GET", PROVIDERS) == []


async def test_an_agent_says_whose_key_its_model_is_called_with(client: ServedClient, vendor: ListingServer) -> None:
    await bring(client, vendor)

    async def category(agent_id: str) -> str:
        return (await client.ask("GET", f"/v1/agents/{agent_id}"))["llm_config"]["provider_category"]

    agent = await client.agent(model="mine/m")
    assert agent.llm_config.provider_category == await category(agent.id) == "byok"
    await client.agents.update(agent.id, model="holdfast/offline")
    assert await category(agent.id) == "base"
    await client.agents.update(agent.id, model="mine/m")
    assert await category(agent.id) == "byok"
    assert await category((await client.agent()).id) == "base"


@pytest.mark.parametrize(("provider_type", "protocol"), [("openai", ChatProtocol), ("anthropic", AnthropicProtocol)])
async def test_an_agent_speaks_through_a_provider_that_a_user_brought(
    tmp_path: Path, provider_type: str, protocol: Callable[[], VendorProtocol]
) -> None:
    async with FakeVendor(protocol()).serving() as vendor, served(tmp_path, default_model=None) as client:
        body = {"name": "mine", "provider_type": provider_type, "api_key": KEY, "base_url": vendor.url}
        await client.ask("POST", PROVIDERS, body)
        agent = await client.agents.create(model="mine/offline", include_base_tools=False)
        assert agent.model == "mine/offline"
        shown = await client.ask("GET", f"/v1/agents/{agent.id}")
        assert shown["model_settings"]["provider_type"] == provider_type
        answer = await client.say(agent.id, "Hello")
        assert any("Hello" in str(getattr(message, "content", "")) for message in answer.messages)
        assert "mine/offline" in await client.refusal(400, "POST", "/v1/agents/", {})
        (step,) = await client.ask("GET", "/v1/steps/", agent_id=agent.id)
        assert (step["model_handle"], step["provider_name"]) == ("mine/offline", "mine")
