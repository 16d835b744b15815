"""The catalog, over real sockets: what it asks, when, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.errors import AuthRejected, Invalid, NotFound, Unsupported
from holdfast.llm.base import ModelInfo, Price
from holdfast.llm.bridge.adapter import BridgedModel
from holdfast.llm.catalog import adapters
from holdfast.llm.catalog.adapters import Vendors
from holdfast.llm.catalog.catalog import ModelCatalog, OfflineProvider
from holdfast.llm.chat.adapter import ChatModel
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.offline.model import OFFLINE, OfflineModel
from holdfast.settings import DeclaredModel

from .adapters import as_if_not_installed
from .listing import ListingServer, endpoint_at, listing, openai_list

MODELS = "/v1/models"


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_us = 1_000_000_000

    def __call__(self) -> int:
        self.now_us += 1
        return self.now_us

    def pass_seconds(self, seconds: int) -> None:
        self.now_us += seconds * 1_000_000


class Brought:
    """Providers that users brought, as a store would hand them over."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.endpoints = list(endpoints)
        self.loads = 0

    async def __call__(self) -> list[Endpoint]:
        self.loads += 1
        return list(self.endpoints)


@asynccontextmanager
async def catalog_of(*endpoints: Endpoint, **options: Any) -> AsyncGenerator[ModelCatalog]:
    catalog = ModelCatalog(endpoints, vendors=Vendors(first_byte_s=60, total_s=60), **options)
    try:
        yield catalog
    finally:
        await catalog.aclose()


def byok(server: ListingServer, name: str, **fields: Any) -> Endpoint:
    return endpoint_at(server, "openai", provider_name=name, category="byok", **fields)


async def handles(catalog: ModelCatalog) -> list[str]:
    return [info.handle for info in await catalog.models()]


async def test_the_offline_model_is_always_there() -> None:
    catalog = ModelCatalog()
    assert await catalog.models() == [OFFLINE]
    assert await catalog.embedding_models() == []
    assert await catalog.providers() == []
    info = await catalog.find("holdfast/offline")
    assert (info.context_window, info.provider_name) == (128_000, "holdfast")
    await catalog.aclose()


async def test_one_offline_model_serves_the_whole_process() -> None:
    model = OfflineModel()
    catalog = ModelCatalog(offline=OfflineProvider(model))
    assert catalog.open(OFFLINE) is catalog.open(OFFLINE) is model


@pytest.mark.parametrize("handle", ["openai/gpt-4o", "holdfast/online", "acme/offline"])
async def test_an_unknown_handle_is_not_found_and_told_what_exists(handle: str) -> None:
    with pytest.raises(NotFound, match=f"Handle {handle} not found.*holdfast/offline"):
        await ModelCatalog().find(handle)


@pytest.mark.parametrize("handle", ["", "offline", "holdfast/", "/offline"])
async def test_a_malformed_handle_is_invalid(handle: str) -> None:
    with pytest.raises(Invalid, match="provider/model"):
        await ModelCatalog().find(handle)


async def test_nobody_is_asked_before_a_model_is_wanted_and_then_once() -> None:
    async with listing({MODELS: openai_list("b", "a/c")}) as server, catalog_of(endpoint_at(server)) as catalog:
        assert server.asked == []
        first = await catalog.find("openai/a/c")
        assert (await catalog.find("openai/a/c")) is first
        assert (first.name, first.provider_name) == ("a/c", "openai")
        await catalog.find("openai/b")
        assert await handles(catalog) == ["openai/a/c", "openai/b", "holdfast/offline"]
        assert server.paths == [MODELS]


async def test_a_list_is_asked_for_again_when_it_is_a_minute_old() -> None:
    clock = Hands()
    async with (
        listing({MODELS: openai_list("old")}) as server,
        catalog_of(endpoint_at(server), now_us=clock) as catalog,
    ):
        await catalog.models()
        server.answers[MODELS] = openai_list("new")
        clock.pass_seconds(50)
        assert await handles(catalog) == ["openai/old", "holdfast/offline"]
        clock.pass_seconds(20)
        assert await handles(catalog) == ["openai/new", "holdfast/offline"]
        with pytest.raises(NotFound):
            await catalog.find("openai/old")


async def test_a_model_that_was_just_added_is_found_at_once() -> None:
    async with listing({MODELS: openai_list("old")}) as server, catalog_of(endpoint_at(server)) as catalog:
        await catalog.models()
        server.answers[MODELS] = openai_list("old", "new")
        assert (await catalog.find("openai/new")).name == "new"
        assert len(server.asked) == 2


async def test_an_unlisted_handle_is_not_found_and_near_names_are_told() -> None:
    names = ["gpt-4o", "gpt-4o-mini", *(f"other-{number}" for number in range(30))]
    async with listing({MODELS: openai_list(*names)}) as server, catalog_of(endpoint_at(server)) as catalog:
        with pytest.raises(NotFound, match=r"openai does not list it\. Near it: .*openai/gpt-4o-mini") as caught:
            await catalog.find("openai/gpt-4o-mimi")
        assert "other" not in caught.value.message
        assert len(server.asked) == 1


async def test_a_near_name_is_told_of_every_provider_that_has_it_and_of_the_one_that_was_named_first() -> None:
    async with listing({MODELS: openai_list("smollm2-135m")}) as server:
        here, there = (endpoint_at(server, kind) for kind in ("openai", "vllm"))
        async with catalog_of(here, there) as catalog:
            await catalog.models()
            with pytest.raises(NotFound, match=r"Near it: vllm/smollm2-135m, openai/smollm2-135m\."):
                await catalog.find("vllm/smollm2-360m")


async def test_a_name_is_told_once_although_it_can_be_written_in_several_ways() -> None:
    path = "/v1/models?limit=1000"
    answers = {path: openai_list("claude-opus-4-1-20250805")}
    async with listing(answers) as server, catalog_of(endpoint_at(server, "anthropic")) as catalog:
        with pytest.raises(NotFound, match=r"Near it: anthropic/claude-opus-4-1-20250805\."):
            await catalog.find("anthropic/claude-opus-4-2-20250805")


async def test_where_nothing_is_near_the_models_of_the_provider_that_was_named_come_first() -> None:
    async with listing({MODELS: openai_list(*"abcdefghijkl")}) as server:
        mine = endpoint_at(server, "openai", provider_name="openai-proxy")
        async with catalog_of(mine, endpoint_at(server, "vllm")) as catalog:
            await catalog.models()
            with pytest.raises(NotFound, match=r"Some that exist: openai-proxy/a, .*openai-proxy/j\.$"):
                await catalog.find("openai/unlike-any")
            with pytest.raises(NotFound, match=r"Some that exist: vllm/a, .*vllm/j\.$"):
                await catalog.find("vllm/unlike-any")


async def test_while_a_list_cannot_be_had_a_handle_is_taken_at_its_word() -> None:
    async with listing({}) as server, catalog_of(endpoint_at(server)) as catalog:
        server.breaks(MODELS, 503)
        info = await catalog.find("openai/gpt-4o")
        assert (info.context_window, info.name) == (128_000, "gpt-4o")
        assert (await catalog.find("openai/gpt-4o")) is info
        assert len(server.asked) == 1  # known by now
        server.heals(MODELS, openai_list("other"))
        assert (await catalog.find("openai/other")).name == "other"
        with pytest.raises(NotFound):
            await catalog.find("openai/gpt-4o")


async def test_one_provider_s_failure_hides_no_other_s_models() -> None:
    async with listing({MODELS: openai_list("a")}) as good, listing({}) as bad:
        bad.breaks(MODELS, 401, "wrong key")
        broken = endpoint_at(bad, "groq")
        async with catalog_of(broken, endpoint_at(good)) as catalog:
            assert await handles(catalog) == ["openai/a", "holdfast/offline"]
            failed, fine = await catalog.providers()
            assert (failed.name, failed.status, failed.models) == ("groq", "failed", 0)
            assert "wrong key" in str(failed.problem)
            assert (fine.name, fine.status, fine.problem, fine.models) == ("openai", "ok", None, 1)
            assert len(bad.asked) == len(good.asked) == 1


async def test_a_provider_that_fails_keeps_its_last_list_and_tells_since_when() -> None:
    clock = Hands()
    async with listing({MODELS: openai_list("a")}) as server, catalog_of(endpoint_at(server), now_us=clock) as catalog:
        await catalog.models()
        server.breaks(MODELS, 500)
        clock.pass_seconds(61)
        assert await handles(catalog) == ["openai/a", "holdfast/offline"]
        (failed,) = await catalog.providers()
        clock.pass_seconds(61)
        (still,) = await catalog.providers()
        assert (failed.status, still.status) == ("failed", "failed")
        assert still.since_us == failed.since_us
        server.heals(MODELS, openai_list("a"))
        clock.pass_seconds(61)
        (healed,) = await catalog.providers()
        assert healed.status == "ok"
        assert (healed.since_us or 0) > (still.since_us or 0)
        assert len(server.asked) == 4


async def test_all_providers_are_asked_at_the_same_time() -> None:
    async with listing({MODELS: openai_list("a")}) as one, listing({MODELS: openai_list("b")}) as two:
        one.open.clear()
        two.open.clear()
        async with catalog_of(endpoint_at(one), endpoint_at(two, "groq")) as catalog:
            asking = asyncio.create_task(handles(catalog))
            await asyncio.gather(one.was_asked.wait(), two.was_asked.wait())
            one.open.set()
            two.open.set()
            assert await asking == ["openai/a", "groq/b", "holdfast/offline"]


async def test_many_who_want_an_unknown_handle_at_once_share_one_question() -> None:
    async with listing({MODELS: openai_list("a")}) as server, catalog_of(endpoint_at(server)) as catalog:
        server.open.clear()
        asking = [asyncio.create_task(catalog.find("openai/a")) for _ in range(10)]
        await server.was_asked.wait()
        server.open.set()
        found = await asyncio.gather(*asking)
        assert {info.handle for info in found} == {"openai/a"}
        assert len(server.asked) == 1


async def test_whoever_comes_while_a_list_is_being_asked_for_waits_for_it_too() -> None:
    async with listing({MODELS: openai_list("a")}) as server, catalog_of(endpoint_at(server)) as catalog:
        server.open.clear()
        first = asyncio.create_task(handles(catalog))
        await server.was_asked.wait()
        late = asyncio.create_task(handles(catalog))
        await asyncio.sleep(0)  # it looks at what is there before it asks for anything
        server.open.set()
        assert await asyncio.gather(first, late) == [["openai/a", "holdfast/offline"]] * 2
        assert len(server.asked) == 1


async def test_a_list_that_was_given_up_is_asked_for_again_at_once() -> None:
    async with listing({MODELS: openai_list("a")}) as server, catalog_of(endpoint_at(server)) as catalog:
        server.open.clear()
        first = asyncio.create_task(handles(catalog))
        await server.was_asked.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        server.open.set()
        assert await handles(catalog) == ["openai/a", "holdfast/offline"]


async def test_whoever_waits_asks_again_when_the_one_who_asked_gives_up() -> None:
    async with listing({MODELS: openai_list("a")}) as server, catalog_of(endpoint_at(server)) as catalog:
        server.open.clear()
        first, second = (asyncio.create_task(catalog.find("openai/a")) for _ in range(2))
        await server.was_asked.wait()
        first.cancel()
        server.open.set()
        assert (await second).handle == "openai/a"
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_proxy_answers_to_both_of_its_names() -> None:
    async with listing({MODELS: openai_list("m")}) as server:
        proxy = endpoint_at(server, "openai", provider_name="openai-proxy")
        async with catalog_of(proxy) as catalog:
            assert await handles(catalog) == ["openai-proxy/m", "holdfast/offline"]
            asked = await catalog.find("openai/m")
            assert (asked.handle, asked.provider_name) == ("openai/m", "openai-proxy")
            assert isinstance(catalog.open(asked), ChatModel)
            assert (await catalog.find("openai/m")) is asked
            assert (catalog.is_reserved("openai"), catalog.is_reserved("openai-proxy")) == (True, True)


async def test_a_dated_model_is_found_without_its_date() -> None:
    names = ("claude-3-5-haiku-20240101", "claude-3-5-haiku-20241022")
    path = "/v1/models?limit=1000"
    async with listing({path: openai_list(*names)}) as server, catalog_of(endpoint_at(server, "anthropic")) as catalog:
        for asked in ("claude-3-5-haiku", "claude-3-5-haiku-latest"):
            info = await catalog.find(f"anthropic/{asked}")
            assert (info.handle, info.name) == (f"anthropic/{asked}", "claude-3-5-haiku-20241022")
        assert (await catalog.find(f"anthropic/{names[0]}")).name == names[0]
        assert len(await catalog.models()) == 3


async def test_the_latest_of_a_tagged_model_is_found_without_its_tag() -> None:
    tags = [{"name": "qwen3:latest"}, {"name": "qwen3:30b"}, {"name": "gemma3:27b"}]
    async with (
        listing({"/api/tags": {"models": tags}, "/api/show": {"capabilities": ["completion", "tools"]}}) as server,
        catalog_of(endpoint_at(server, "ollama")) as catalog,
    ):
        info = await catalog.find("ollama/qwen3")
        assert (info.handle, info.name) == ("ollama/qwen3", "qwen3:latest")
        with pytest.raises(NotFound, match=r"ollama/gemma3:27b"):
            await catalog.find("ollama/gemma3")


async def test_declared_models_need_no_list() -> None:
    declared = (
        DeclaredModel("vllm/mine", 32_768),
        DeclaredModel("vllm/llama3.1"),
        DeclaredModel("vllm/vectors", embedding_dim=99),
        DeclaredModel("nobody/else", 5),
    )
    async with listing({}) as server, catalog_of(endpoint_at(server, "vllm"), declared=declared) as catalog:
        assert (await catalog.find("vllm/mine")).context_window == 32_768
        assert (await catalog.find("vllm/llama3.1")).context_window == 131_072
        assert server.asked == []
        assert await handles(catalog) == ["vllm/llama3.1", "vllm/mine", "holdfast/offline"]
        (vectors,) = await catalog.embedding_models()
        assert (vectors["handle"], vectors["embedding_dim"]) == ("vllm/vectors", 99)


async def test_a_declared_window_beats_the_listed_one() -> None:
    answers = {MODELS: {"data": [{"id": "mine", "max_model_len": 1_000}]}}
    declared = (DeclaredModel("vllm/mine", 2_000),)
    async with listing(answers) as server, catalog_of(endpoint_at(server, "vllm"), declared=declared) as catalog:
        assert [info.context_window for info in await catalog.models()] == [2_000, OFFLINE.context_window]


async def test_what_a_server_says_of_a_declared_model_besides_its_window_is_believed() -> None:
    told = {
        "capabilities": ["completion", "tools", "vision", "thinking"],
        "model_info": {"qwen.context_length": 131_072},
    }
    answers = {"/api/tags": {"models": [{"name": "qwen:7b"}]}, "/api/show": told}
    for declared, window in (
        (DeclaredModel("ollama/qwen:7b", 32_768), 32_768),
        (DeclaredModel("ollama/qwen:7b"), 131_072),
    ):
        async with (
            listing(answers) as server,
            catalog_of(endpoint_at(server, "ollama"), declared=(declared,)) as catalog,
        ):
            info, _ = await catalog.models()
            assert (info.context_window, info.abilities.images, info.abilities.reasoning) == (window, True, True)
            assert await catalog.find("ollama/qwen:7b") == info


async def test_the_operators_price_counts_before_any_other() -> None:
    priced = {"id": "listed", "pricing": {"prompt": "0.000001", "completion": "0.000002"}}
    dated = {"id": "claude-sonnet-4-5-20250929"}
    prices = {
        "vllm/listed": Price(7, 8),
        "vllm/claude-sonnet-4-5": Price(5, 6),
        "vllm/declared": Price(3, 4, 0.5),
        "vllm/never-seen": Price(9, 9),
        "other/listed": Price(1, 1),
    }
    declared = (DeclaredModel("vllm/declared", 2_000),)
    async with (
        listing({MODELS: {"data": [priced, dated, {"id": "free"}]}}) as server,
        catalog_of(endpoint_at(server, "vllm"), declared=declared, prices=prices) as catalog,
    ):
        found = {info.name: info.price for info in await catalog.models() if info.provider_name == "vllm"}
        assert found == {
            "listed": Price(7, 8),
            "claude-sonnet-4-5-20250929": Price(5, 6),
            "declared": Price(3, 4, 0.5),
            "free": None,
        }
        server.breaks(MODELS, 503)
        assert (await catalog.find("vllm/never-seen")).price == Price(9, 9)


async def test_models_of_a_proxy_are_declared_by_either_of_its_names() -> None:
    declared = (
        DeclaredModel("openai/mine", 9_000),
        DeclaredModel("openai-proxy/yours", 8_000),
        DeclaredModel("openai/vectors", embedding_dim=99),
    )
    async with listing({MODELS: openai_list()}) as server:
        proxy = endpoint_at(server, "openai", provider_name="openai-proxy")
        async with catalog_of(proxy, declared=declared) as catalog:
            assert await handles(catalog) == ["openai-proxy/mine", "openai-proxy/yours", "holdfast/offline"]
            assert (await catalog.find("openai/mine")).context_window == 9_000
            (vectors,) = await catalog.embedding_models()
            assert (vectors["handle"], vectors["embedding_dim"]) == ("openai/vectors", 99)


async def test_a_model_without_tools_is_not_offered_but_can_be_named() -> None:
    entries = [{"id": "able"}, {"id": "unable", "supported_parameters": ["temperature"]}]
    async with listing({MODELS: {"data": entries}}) as server, catalog_of(endpoint_at(server)) as catalog:
        assert await handles(catalog) == ["openai/able", "holdfast/offline"]
        assert not (await catalog.find("openai/unable")).abilities.tools


async def test_a_provider_that_cannot_list_is_never_asked() -> None:
    bedrock = Endpoint(provider_name="bedrock", provider_type="bedrock", base_url="http://127.0.0.1:1")
    async with catalog_of(bedrock) as catalog:
        info = await catalog.find("bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0")
        assert info.context_window == 200_000
        assert await handles(catalog) == ["holdfast/offline"]
        (status,) = await catalog.providers()
        assert (status.status, status.problem) == ("unlistable", None)


async def test_a_provider_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("boto3", "cohere"):
        as_if_not_installed(library, monkeypatch)
    bedrock = Endpoint(provider_name="bedrock", provider_type="bedrock", base_url="http://127.0.0.1:1")
    found = {"/v1/models?page_size=1000": {"models": [{"name": "command-a", "endpoints": ["chat"]}]}}
    async with listing(found) as server, catalog_of(bedrock, endpoint_at(server, "cohere")) as catalog:
        problems = [status.problem or "" for status in await catalog.providers()]
        assert all("pip install 'holdfast[vendors]'" in problem for problem in problems)
        for handle in ("bedrock/any", "cohere/command-a"):
            info = await catalog.find(handle)
            with pytest.raises(Unsupported, match=r"pip install 'holdfast\[vendors\]'"):
                catalog.open(info)


async def test_embedding_models_come_from_the_providers_themselves() -> None:
    names = ("text-embedding-3-small", "nomic-embed-text", "chat")
    async with listing({MODELS: openai_list(*names)}) as server, catalog_of(endpoint_at(server)) as catalog:
        found = await catalog.embedding_models()
        assert [(one["handle"], one["embedding_dim"]) for one in found] == [
            ("openai/nomic-embed-text", 768),
            ("openai/text-embedding-3-small", 1536),
        ]
        assert {one["embedding_endpoint"] for one in found} == {f"{server.url}/v1"}


async def test_providers_that_users_brought_come_after_the_server_s_own() -> None:
    async with listing({MODELS: openai_list("m")}) as server:
        brought = Brought(byok(server, "zoe"), byok(server, "adam"))
        async with catalog_of(endpoint_at(server), brought=brought) as catalog:
            assert await handles(catalog) == ["openai/m", "adam/m", "zoe/m", "holdfast/offline"]
            assert (await catalog.find("zoe/m")).provider_category == "byok"


async def test_a_brought_provider_cannot_take_the_name_of_a_base_one() -> None:
    async with listing({MODELS: openai_list("m")}) as mine, listing({MODELS: openai_list("theirs")}) as theirs:
        brought = Brought(byok(theirs, "openai"), byok(theirs, "holdfast"))
        async with catalog_of(endpoint_at(mine), brought=brought) as catalog:
            assert await handles(catalog) == ["openai/m", "holdfast/offline"]
            assert theirs.asked == []


async def test_a_change_by_this_process_is_seen_at_once() -> None:
    async with listing({MODELS: openai_list("m")}) as server:
        brought = Brought(byok(server, "mine", api_key="first-key"))
        async with catalog_of(brought=brought) as catalog:
            opened = catalog.open(await catalog.find("mine/m"))
            brought.endpoints = [byok(server, "mine", api_key="second-key")]
            await catalog.reload()
            assert catalog.open(await catalog.find("mine/m")) is not opened
            assert server.asked[-1].headers["Authorization"] == "Bearer second-key"
            brought.endpoints = []
            await catalog.reload()
            with pytest.raises(NotFound, match="no provider is called mine"):
                await catalog.find("mine/m")


async def test_a_change_is_not_undone_by_a_look_that_began_before_it() -> None:
    async with listing({MODELS: openai_list("m")}) as server:
        brought = Brought(byok(server, "mine", api_key="first-key"))
        began, go_on = asyncio.Event(), asyncio.Event()

        async def slow_at_first() -> list[Endpoint]:
            found = await brought()
            if not began.is_set():
                began.set()
                await go_on.wait()
            return found

        async with catalog_of(brought=slow_at_first) as catalog:
            looking = asyncio.create_task(catalog.reload())
            await began.wait()
            brought.endpoints = [byok(server, "mine", api_key="second-key")]
            changed = asyncio.create_task(catalog.reload())
            await asyncio.sleep(0)  # it may be done by now, and must not be overtaken by the other then
            go_on.set()
            await asyncio.gather(looking, changed)
            await catalog.embedding_models()
            assert server.asked[-1].headers["Authorization"] == "Bearer second-key"


async def test_what_a_provider_listed_is_forgotten_when_it_was_changed_while_it_was_asked() -> None:
    async with listing({MODELS: openai_list("m")}) as before, listing({MODELS: openai_list("n")}) as now:
        brought = Brought(byok(before, "mine"))
        async with catalog_of(brought=brought) as catalog:
            before.open.clear()
            finding = asyncio.create_task(catalog.find("mine/m"))
            await before.was_asked.wait()
            brought.endpoints = [byok(now, "mine")]
            await catalog.reload()
            before.open.set()
            await finding
            with pytest.raises(NotFound, match="mine does not list it"):
                await catalog.find("mine/m")


async def test_a_provider_whose_key_is_gone_leaves_nothing_behind_that_knows_it() -> None:
    async with listing({MODELS: openai_list("m")}) as server:
        brought = Brought(byok(server, "mine", api_key="first-key"))
        async with catalog_of(brought=brought) as catalog:
            model = weakref.ref(catalog.open(await catalog.find("mine/m")))
            brought.endpoints = []
            await catalog.reload()
            gc.collect()
            assert model() is None


async def test_a_change_by_another_process_is_seen_within_a_minute() -> None:
    clock = Hands()
    async with listing({MODELS: openai_list("m")}) as server:
        brought = Brought(byok(server, "mine"))
        async with catalog_of(brought=brought, now_us=clock) as catalog:
            await catalog.find("mine/m")
            brought.endpoints = []
            clock.pass_seconds(30)
            await catalog.find("mine/m")
            loads = brought.loads
            clock.pass_seconds(31)
            with pytest.raises(NotFound):
                await catalog.find("mine/m")
            assert brought.loads > loads


async def test_a_provider_that_another_process_added_is_found_at_once() -> None:
    async with listing({MODELS: openai_list("m")}) as server:
        brought = Brought()
        async with catalog_of(brought=brought) as catalog:
            await catalog.models()
            brought.endpoints = [byok(server, "new")]
            assert (await catalog.find("new/m")).handle == "new/m"


async def test_a_known_handle_of_the_server_s_own_costs_no_look_at_the_store() -> None:
    clock, brought = Hands(), Brought()
    async with (
        listing({MODELS: openai_list("m")}) as server,
        catalog_of(endpoint_at(server), brought=brought, now_us=clock) as catalog,
    ):
        await catalog.find("openai/m")
        loads = brought.loads
        clock.pass_seconds(3600)
        for _ in range(3):
            await catalog.find("openai/m")
        assert (brought.loads, len(server.asked)) == (loads, 1)


async def test_refreshing_lists_anew_and_tells_what_went_wrong() -> None:
    async with listing({MODELS: openai_list("a")}) as server, catalog_of(endpoint_at(server)) as catalog:
        await catalog.models()
        server.answers[MODELS] = openai_list("b")
        await catalog.refresh("openai")
        assert await handles(catalog) == ["openai/b", "holdfast/offline"]
        server.breaks(MODELS, 401)
        with pytest.raises(AuthRejected):
            await catalog.refresh("openai")
        with pytest.raises(NotFound):
            await catalog.refresh("nobody")


async def test_a_model_is_opened_once_and_not_after_its_provider_is_gone() -> None:
    async with listing({MODELS: openai_list("m")}) as server:
        brought = Brought(byok(server, "mine"))
        async with catalog_of(brought=brought) as catalog:
            info = await catalog.find("mine/m")
            assert catalog.open(info) is catalog.open(info)
            brought.endpoints = []
            await catalog.reload()
            with pytest.raises(NotFound, match="was removed"):
                catalog.open(info)


def info_of(endpoint: Endpoint, name: str) -> ModelInfo:
    return ModelInfo(
        handle=f"{endpoint.provider_name}/{name}",
        name=name,
        provider_name=endpoint.provider_name,
        provider_type=endpoint.provider_type,
        context_window=1_000,
    )


@pytest.mark.parametrize(
    ("provider_type", "base_url", "name", "responses", "kind"),
    [
        ("openai", "https://api.openai.com/v1", "gpt-4o", "auto", "ChatModel"),
        ("openai", "https://api.openai.com/v1", "gpt-4o", "always", "BridgedModel"),
        ("openai", "https://api.openai.com/v1", "gpt-5-mini", "auto", "BridgedModel"),
        ("openai", "https://api.openai.com/v1", "o3", "auto", "BridgedModel"),
        ("openai", "https://api.openai.com/v1", "o3", "never", "ChatModel"),
        ("openai", "https://api.openai.com/v1", "gpt-5-chat-latest", "auto", "ChatModel"),
        ("openai", "http://localhost:1/v1", "o3", "auto", "ChatModel"),
        ("openrouter", "https://openrouter.ai/api/v1", "openai/o3", "always", "ChatModel"),
        ("anthropic", "https://api.anthropic.com", "claude-3-5-haiku", "always", "AnthropicModel"),
        ("google_ai", "https://generativelanguage.googleapis.com", "gemini-2.5-pro", "never", "BridgedModel"),
        ("ollama", "http://localhost:11434/v1", "llama3.1", "auto", "ChatModel"),
    ],
)
async def test_the_adapter_goes_by_the_provider_s_type(
    provider_type: str, base_url: str, name: str, responses: adapters.Responses, kind: str
) -> None:
    vendors = Vendors(openai_responses=responses)
    endpoint = Endpoint(provider_name=provider_type, provider_type=provider_type, base_url=base_url, api_key="k")
    model = vendors.open(endpoint, info_of(endpoint, name))
    assert type(model).__name__ == kind
    if isinstance(model, BridgedModel):
        await model.aclose()
    await vendors.aclose()


@pytest.mark.parametrize(("name", "installed", "told"), [("gpt-5.6", False, 1), ("gpt-5.6", True, 0), ("o3", False, 0)])
async def test_the_log_says_what_a_model_needs_to_reason_with_tools(
    name: str, installed: bool, told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not installed:
        monkeypatch.setattr(adapters, "find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    vendors = Vendors()
    official = Endpoint(provider_name="openai", provider_type="openai", base_url="https://api.openai.com/v1")
    model = vendors.open(official, info_of(official, name))
    if isinstance(model, BridgedModel):
        await model.aclose()
    await vendors.aclose()
    assert len([one for one in caplog.messages if f"openai/{name} will not reason where it has tools" in one]) == told


async def test_a_missing_extra_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    vendors = Vendors()
    google = Endpoint(provider_name="google_ai", provider_type="google_ai", base_url="https://g")
    with pytest.raises(Unsupported, match=r"pip install 'holdfast\[vendors\]'"):
        vendors.open(google, info_of(google, "gemini-2.5-pro"))
    official = Endpoint(provider_name="openai", provider_type="openai", base_url="https://api.openai.com/v1")
    assert isinstance(vendors.open(official, info_of(official, "o3")), ChatModel)
    await vendors.aclose()


def test_a_catalog_with_providers_loads_no_http_client_until_one_is_used() -> None:
    code = (
        "import sys, asyncio\n"
        "from holdfast.llm.catalog.catalog import ModelCatalog\n"
        "from holdfast.llm.catalog.environment import endpoints\n"
        "catalog = ModelCatalog(endpoints({'OPENAI_API_KEY': 'k', 'ANTHROPIC_API_KEY': 'k'}))\n"
        "asyncio.run(catalog.find('holdfast/offline'))\n"
        "print([name for name in ('aiohttp', 'pydantic_ai', 'openai') if name in sys.modules])\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
