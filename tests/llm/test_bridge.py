"""What is peculiar to models that are reached through pydantic-ai. What all adapters do is in test_adapters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.models.google import GoogleModel

from holdfast.core.deltas import (
    CallDelta,
    Finish,
    OmittedDelta,
    ReasoningDelta,
    Reply,
    TextDelta,
    UsageDelta,
)
from holdfast.core.messages import Message, OmittedReasoning, Reasoning, Text, ToolCall, ToolReturn, Turn
from holdfast.core.usage import Usage
from holdfast.errors import AuthRejected, BadReply, ModelError, RateLimited, Refused, Rejected
from holdfast.llm import failures
from holdfast.llm.base import ModelRequest, NamedTool
from holdfast.llm.bridge.adapter import BridgedModel
from holdfast.llm.endpoint import Endpoint

from ..effort import examples
from .adapters import ADAPTERS, Adapter, as_if_not_installed, bridge_to, info, opened
from .conversations import DICE, calls_in, said_in, tool
from .fakes import gemini_rules
from .fakes.script import Failure, Script
from .fakes.server import FakeVendor
from .test_adapters import asks, reply_of, says, seen_before_failing, those_with
from .test_http import listening, pool
from .test_pairing import ROWS, asked_of

RESPONSES, GEMINI = [one for one in ADAPTERS if one.name in ("responses", "gemini")]
bridged = those_with(lambda one: not one.shows_payload)
both = those_with(lambda one: one in (RESPONSES, GEMINI))
LAST = b"data: [DONE]\n\n"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


async def sent(adapter: Adapter, asked: ModelRequest) -> dict[str, Any]:
    async with opened(adapter) as (vendor, model):
        vendor.will(says(TextDelta("Hi")))
        await reply_of(model, asked)
        return vendor.last.body


def continued(adapter: Adapter, *replies: Reply, model: str | None = None) -> ModelRequest:
    """Asks again after these replies, each with its calls answered."""
    turns: list[Turn] = [Turn("user", (Text("Hi"),))]
    for reply in replies:
        turns.append(Turn("assistant", reply.parts, model or info(adapter.name).handle))
        returned = tuple(ToolReturn(call.id, call.name, "success", "4") for call in reply.calls)
        turns.append(Turn("tool", returned) if returned else Turn("user", (Text("Go on"),)))
    return asks(adapter, *turns)


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)


# Starting


def test_nothing_of_the_library_is_loaded_before_a_model_is_asked() -> None:
    program = (
        "import sys, holdfast.llm.bridge.adapter as bridge\n"
        "from holdfast.llm.endpoint import Endpoint\n"
        "from holdfast.llm.offline.model import OFFLINE\n"
        "endpoint = Endpoint(provider_name='openai', provider_type='openai', base_url='http://127.0.0.1:9')\n"
        "bridge.BridgedModel(endpoint, OFFLINE, first_byte_s=1, total_s=1)\n"
        "print(*({'pydantic_ai', 'openai', 'httpx2', 'aiohttp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(("provider_type", "sdk"), [("bedrock", "boto3"), ("cohere", "cohere")])
async def test_a_missing_sdk_is_named_with_the_way_to_get_it(
    provider_type: str, sdk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_if_not_installed(sdk, monkeypatch)
    for loaded in ("holdfast.llm.bridge", "pydantic_ai.models", "pydantic_ai.providers"):
        monkeypatch.delitem(sys.modules, f"{loaded}.{provider_type}", raising=False)
    endpoint = Endpoint(provider_name=provider_type, provider_type=provider_type, base_url="http://127.0.0.1:9")
    model = BridgedModel(endpoint, info(provider_type), first_byte_s=1, total_s=1)
    with pytest.raises(Rejected, match=r"pip install 'holdfast\[vendors\]'"):
        await reply_of(model, asks(RESPONSES))
    await model.aclose()


async def test_a_type_of_provider_that_nobody_knows_is_rejected() -> None:
    endpoint = Endpoint(provider_name="novelty", provider_type="novelty", base_url="http://127.0.0.1:9")
    with pytest.raises(Rejected, match="novelty"):
        await reply_of(BridgedModel(endpoint, info("novelty"), first_byte_s=1, total_s=1), asks(RESPONSES))


async def test_google_cloud_is_told_project_and_region() -> None:
    options = {"project": "shells", "location": "europe-west4"}
    endpoint = Endpoint(
        provider_name="google_vertex", provider_type="google_vertex", base_url="http://127.0.0.1:9", options=options
    )
    model = BridgedModel(endpoint, info("google_vertex"), first_byte_s=5, total_s=5)
    asked = (await model._opened())._vendor.model
    assert isinstance(asked, GoogleModel)
    assert asked.client.vertexai
    assert (asked.client._api_client.project, asked.client._api_client.location) == ("shells", "europe-west4")
    await model.aclose()


def vertex_at(url: str, api_key: str | None = None, **options: str) -> BridgedModel:
    endpoint = Endpoint(
        provider_name="google_vertex", provider_type="google_vertex", base_url=url, api_key=api_key, options=options
    )
    return BridgedModel(endpoint, info("google_vertex", "gemini-3-offline"), first_byte_s=5, total_s=5)


async def test_google_cloud_answers_who_shows_a_key() -> None:
    vendor = FakeVendor(GEMINI.protocol())
    async with vendor.serving():
        model = vertex_at(vendor.url, "a-key", location="europe-west4")
        vendor.will(says(ReasoningDelta("Hm."), CallDelta(0, "c1", "print_tool", '{"message":"a"}')))
        reply = await reply_of(model, asks(GEMINI))
        await model.aclose()
    assert calls_in(reply) == [("print_tool", {"message": "a"})]
    assert vendor.last.headers["x-goog-api-key"] == "a-key"


async def test_a_server_without_credentials_for_google_cloud_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    model = vertex_at("http://127.0.0.1:9", project="shells", location="europe-west4")
    with pytest.raises(AuthRejected, match="google_vertex"):
        await reply_of(model, asks(GEMINI))
    await model.aclose()


@bridged
async def test_a_failed_request_is_not_repeated_behind_our_back(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(Script(failure=Failure("server")), Script(failure=Failure("overloaded")))
        for _ in range(2):
            with pytest.raises(ModelError):
                await reply_of(model, asks(adapter))
        assert len(vendor.exchanges) == 2


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"error":{"message":"no to %b"}}\n\n',
        b"data: no to %b\n\n",
        b'data: {"candidates": [{"content": "no to %b"}]}\n\n',  # which the library quotes
        b"no to %b",
    ],
)
async def test_the_key_is_never_repeated_even_if_it_looks_like_any_word(body: bytes) -> None:
    vendor, key = FakeVendor(GEMINI.protocol()), "correcthorsebattery"
    async with vendor.serving():
        target = Endpoint(provider_name="gemini", provider_type="google_ai", base_url=vendor.url, api_key=key)
        model = BridgedModel(target, info("gemini"), first_byte_s=60, total_s=60)
        vendor.will(Script(body=body % key.encode()))
        with pytest.raises(ModelError, match=r"no to \[key\]"):
            await reply_of(model, asks(GEMINI))
        await model.aclose()


@bridged
async def test_no_proxy_stands_between_us_and_this_machine(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with opened(adapter) as (vendor, model):
        vendor.will(says(TextDelta("Hi")))
        assert said_in(await reply_of(model, asks(adapter))) == "Hi"


@bridged
async def test_who_asks_is_said_once(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(says(TextDelta("Hi")))
        await reply_of(model, asks(adapter))
        assert ", " not in vendor.last.headers["user-agent"]


@bridged
async def test_replies_at_the_same_time_do_not_mix(adapter: Adapter) -> None:
    async with opened(adapter) as (_, model):
        words = [f"[[say:number {number}.]] [[usage:{number},50]]" for number in range(1, 6)]
        replies = await asyncio.gather(*(reply_of(model, asks(adapter, word)) for word in words))
    assert [said_in(reply) for reply in replies] == [f"number {number}." for number in range(1, 6)]
    assert [reply.usage.prompt_tokens for reply in replies if reply.usage] == [1, 2, 3, 4, 5]


class Forgetful:
    """A library that closes nothing of what it opened."""

    def __init__(self, model: Any, opened: AsyncExitStack) -> None:
        self._model = model
        self._opened = opened
        self.profile, self.system = model.profile, model.system

    @asynccontextmanager
    async def request_stream(self, *asked: Any) -> AsyncGenerator[Any]:
        yield await self._opened.enter_async_context(self._model.request_stream(*asked))


@those_with(lambda one: one.name == "responses")
async def test_a_vendor_that_hangs_up_after_its_last_word_was_heard_to_its_end(adapter: Adapter) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        asked = await reader.readexactly(int(headers.partition(b"content-length: ")[2].split()[0]))
        rendering = adapter.protocol().rendering(adapter.path, msgspec.json.decode(asked))
        said = [rendering.begin(), *map(rendering.delta, (TextDelta("Hi"), Finish("stop"))), rendering.end()]
        body = b"".join(event for events in said for event in events).removesuffix(LAST) + LAST
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body))
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with listening(answer) as url, pool() as http:
        model = adapter.open(url, info(adapter.name), http)
        assert isinstance(model, BridgedModel)
        assert said_in(await reply_of(model, asks(adapter))) == "Hi"
        await model.aclose()


@bridged
async def test_a_reply_that_is_left_is_hung_up_even_if_the_library_does_not(adapter: Adapter) -> None:
    async with AsyncExitStack() as never_closed, opened(adapter) as (vendor, model):
        assert isinstance(model, BridgedModel)
        bridge = await model._opened()
        forgetful: Any = Forgetful(bridge._vendor.model, never_closed)
        bridge._vendor = msgspec.structs.replace(bridge._vendor, model=forgetful)
        vendor.will(Script(deltas=(TextDelta("Well, "), TextDelta("well")), hangs="mid_stream"))
        async with aclosing(model.stream(asks(adapter))) as deltas:
            async for _ in deltas:
                break
        await asyncio.wait_for(vendor.last.gone.wait(), 30)


# Histories


@pytest.mark.slow
@bridged
def test_no_history_that_the_core_gives_is_refused(adapter: Adapter) -> None:
    """As in test_pairing, but over the wire, and through one connection: opening a model takes longer than asking."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        vendor, model = runner.run(stack.enter_async_context(opened(adapter)))

        @examples(100)
        @given(rows=ROWS, with_tools=st.booleans())
        def holds(rows: list[Message], with_tools: bool) -> None:
            asked = asked_of(adapter, rows, with_tools)
            vendor.will(says(TextDelta("Hi")))
            assert said_in(runner.run(reply_of(model, asked))) == "Hi"

        holds()
        runner.run(stack.aclose())


@bridged
async def test_names_that_vendors_refuse_are_sent_as_others_and_come_back_as_they_were(adapter: Adapter) -> None:
    dotted = tool("shells.count", where="string")
    earlier = ToolCall("call_1", dotted.name, '{"where":"beach"}')
    history = (
        Turn("user", (Text("Hi"),)),
        Turn("assistant", (earlier,)),
        Turn("tool", (ToolReturn("call_1", dotted.name, "success", "4"),)),
    )
    async with opened(adapter) as (vendor, model):
        asked = asks(adapter, *history, tools=(dotted,), tool_choice=NamedTool(dotted.name))
        vendor.will(says(TextDelta("")))
        await reply_of(model, asked)
        name = vendor.asked.tools[0].name
        vendor.will(says(CallDelta(0, "call_2", name, '{"where":"sea"}'), finish="tool_calls"))
        assert calls_in(await reply_of(model, asked)) == [(dotted.name, {"where": "sea"})]
        assert name != dotted.name


# OpenAI Responses


async def responses_after(*scripts: Script) -> tuple[list[Reply], list[dict[str, Any]]]:
    """The replies, and the input that the vendor got when it was asked again after them."""
    async with opened(RESPONSES) as (vendor, model):
        replies: list[Reply] = []
        for script in scripts:
            vendor.will(script)
            replies.append(await reply_of(model, continued(RESPONSES, *replies)))
        vendor.will(says(TextDelta("Done.")))
        await reply_of(model, continued(RESPONSES, *replies))
        return replies, vendor.last.body["input"]


async def test_nothing_is_stored_at_openai_and_reasoning_comes_encrypted() -> None:
    body = await sent(RESPONSES, asks(RESPONSES))
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["reasoning"]["summary"] == "auto"


async def test_an_organisation_that_openai_has_not_verified_is_answered_without_summaries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unverified = Script(failure=Failure("bad_request", "Only verified organisations may see reasoning summaries."))
    async with opened(RESPONSES) as (vendor, model):
        vendor.will(unverified, says(TextDelta("Hi")), says(TextDelta("Hi again")))
        replies = [await reply_of(model, asks(RESPONSES)) for _ in range(2)]
        asked = [exchange.body for exchange in vendor.exchanges]

    assert [part.text for reply in replies for part in reply.parts if isinstance(part, Text)] == ["Hi", "Hi again"]
    assert [body.get("reasoning", {}).get("summary") for body in asked] == ["auto", None, None]
    assert all(body["include"] == ["reasoning.encrypted_content"] for body in asked)
    assert [record.levelname for record in caplog.records if "summaries" in record.getMessage()] == ["WARNING"]


async def test_openai_is_asked_without_summaries_only_once() -> None:
    async with opened(RESPONSES) as (vendor, model):
        vendor.will(*[Script(failure=Failure("bad_request", "No reasoning summaries for you."))] * 2)
        with pytest.raises(Refused, match="No reasoning summaries for you"):
            await reply_of(model, asks(RESPONSES))
        assert len(vendor.exchanges) == 2


async def test_encrypted_reasoning_comes_back_as_it_was_with_its_id() -> None:
    (reply,), items = await responses_after(
        says(ReasoningDelta("Hm."), ReasoningDelta("", "secret"), CallDelta(0, "c1", "print_tool", "{}"))
    )
    assert isinstance(reply.parts[0], Reasoning)
    assert reply.parts[0].text == "Hm."
    assert [item.get("type", "message") for item in items] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert items[1]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert items[1]["id"].startswith("rs_")
    assert items[2]["id"].startswith("fc_")


async def test_the_summaries_of_one_thought_are_one_text_for_us_and_several_for_openai() -> None:
    thought = (ReasoningDelta("First."), ReasoningDelta("\n\n"), ReasoningDelta("Second."), ReasoningDelta("\n\n"))
    (reply,), items = await responses_after(says(*thought, ReasoningDelta("Third.", "secret"), TextDelta("So.")))
    assert [part.text for part in reply.parts if isinstance(part, Reasoning)] == ["First.\n\nSecond.\n\nThird."]
    assert [one["text"] for one in items[1]["summary"]] == ["First.", "Second.", "Third."]


async def test_reasoning_without_a_summary_is_kept_as_omitted() -> None:
    (reply,), items = await responses_after(says(OmittedDelta("secret"), TextDelta("So.")))
    assert [type(part) for part in reply.parts] == [OmittedReasoning, Text]
    assert items[1]["type"] == "reasoning"
    assert items[1]["summary"] == []


async def test_calls_go_back_to_the_reasoning_that_led_to_them() -> None:
    _, items = await responses_after(
        says(
            ReasoningDelta("One.", "s1"),
            CallDelta(0, "c1", "print_tool", '{"message":"a"}'),
            ReasoningDelta("Two.", "s2"),
            TextDelta("And"),
            CallDelta(1, "c2", "print_tool", '{"message":"b"}'),
            CallDelta(2, "c3", "print_tool", '{"message":"c"}'),
            finish="tool_calls",
        )
    )
    shown = [item.get("call_id") or item.get("type") or item["content"] for item in items]
    assert shown == ["Hi", "reasoning", "c1", "reasoning", "And", "c2", "c3", "c1", "c2", "c3"]


async def test_what_another_model_thought_is_not_sent_and_its_ids_are_not_either() -> None:
    async with opened(RESPONSES) as (vendor, model):
        vendor.will(says(ReasoningDelta("Hm.", "secret"), CallDelta(0, "c1", "print_tool", "{}")), says(TextDelta("")))
        reply = await reply_of(model, asks(RESPONSES))
        await reply_of(model, continued(RESPONSES, reply, model="other/model"))
        assert [item.get("type", "message") for item in vendor.last.body["input"]] == [
            "message",
            "function_call",
            "function_call_output",
        ]
        assert "id" not in vendor.last.body["input"][1]


async def test_a_call_whose_reasoning_was_lost_is_sent_without_its_id() -> None:
    async with opened(RESPONSES) as (vendor, model):
        vendor.will(says(ReasoningDelta("Hm.", "secret"), CallDelta(0, "c1", "print_tool", "{}")), says(TextDelta("")))
        reply = await reply_of(model, asks(RESPONSES))
        await reply_of(model, continued(RESPONSES, msgspec.structs.replace(reply, parts=reply.calls)))
        assert "id" not in vendor.last.body["input"][1]


@pytest.mark.parametrize("script", [says(ReasoningDelta("Hm.", "secret")), says(OmittedDelta("secret"))])
async def test_a_thought_that_led_to_nothing_is_not_sent_back(script: Script) -> None:
    """OpenAI would refuse it, and every request of the thread from then on."""
    (reply,), items = await responses_after(script)
    assert len(reply.parts) == 1
    assert [item["content"] for item in items] == ["Hi", "Go on"]


async def test_a_refusal_of_openai_is_told_in_its_words() -> None:
    response: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "offline", "output": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    body = sse(
        {"type": "response.created", "sequence_number": 0, "response": response | {"status": "in_progress"}},
        {"type": "response.refusal.delta", "sequence_number": 1, **place, "delta": "I will "},
        {"type": "response.refusal.delta", "sequence_number": 2, **place, "delta": "not."},
        {"type": "response.refusal.done", "sequence_number": 3, **place, "refusal": "I will not."},
        {"type": "response.completed", "sequence_number": 4, "response": response | {"status": "completed"}},
    )
    async with opened(RESPONSES) as (vendor, model):
        vendor.will(Script(body=body))
        _, error = await seen_before_failing(model, asks(RESPONSES))
    assert type(error) is Refused
    assert "I will not." in error.message


async def test_effort_replaces_temperature_for_models_that_reason() -> None:
    asked = asks(RESPONSES, temperature=0.7, settings={"reasoning": {"reasoning_effort": "high"}})
    body = await sent(RESPONSES, asked)
    assert body["reasoning"]["effort"] == "high"
    assert "temperature" not in body


async def test_how_much_openai_is_to_say_is_passed_on() -> None:
    assert (await sent(RESPONSES, asks(RESPONSES, settings={"verbosity": "low"})))["text"] == {"verbosity": "low"}
    assert "text" not in await sent(RESPONSES, asks(RESPONSES))


async def test_who_is_asked_for_json_is_told_so_in_the_prompt_too() -> None:
    """OpenAI: `Response input messages must contain the word 'json' in some form`."""
    body = await sent(RESPONSES, asks(RESPONSES, response_format={"type": "json_object"}))
    assert body["text"]["format"] == {"type": "json_object"}
    assert any("JSON" in str(message["content"]) for message in body["input"])


async def test_a_schema_may_come_without_a_name_around_it() -> None:
    for adapter in (RESPONSES, GEMINI):
        body = await sent(adapter, asks(adapter, response_format={"type": "json_schema", "json_schema": SCHEMA}))
        assert '"answer"' in msgspec.json.encode(body.get("text") or body["generationConfig"]).decode()


async def test_tools_are_strict_only_where_that_changes_nothing() -> None:
    loose = tool("look", where="string", how="string", optional=["how"])
    body = await sent(RESPONSES, asks(RESPONSES, tools=(DICE, loose), settings={"strict": True}))
    assert [one["strict"] for one in body["tools"]] == [True, False]
    assert body["tools"][1]["parameters"]["required"] == ["where"]
    body = await sent(RESPONSES, asks(RESPONSES, tools=(DICE,)))
    assert [one["strict"] for one in body["tools"]] == [False]


# Gemini


async def test_the_signature_of_a_call_comes_back_with_it() -> None:
    async with opened(GEMINI) as (vendor, model):
        vendor.will(
            says(
                ReasoningDelta("Hm."),
                CallDelta(0, "c1", "print_tool", '{"message":"a"}', "c2lnbmVkLTE="),
                CallDelta(1, "c2", "print_tool", '{"message":"b"}'),
            ),
            says(TextDelta("")),
        )
        reply = await reply_of(model, asks(GEMINI))
        assert [call.signature for call in reply.calls] == ["c2lnbmVkLTE=", None]
        await reply_of(model, continued(GEMINI, reply))
        called = [part for turn in vendor.asked.turns for part in turn.parts if isinstance(part, ToolCall)]
        assert [call.signature for call in called] == ["c2lnbmVkLTE=", None]


async def test_the_signature_of_a_text_comes_back_with_it() -> None:
    async with opened(GEMINI) as (vendor, model):
        vendor.will(says(TextDelta("So "), TextDelta("be it."), TextDelta("", "c2lnbmVkLTI=")), says(TextDelta("")))
        reply = await reply_of(model, asks(GEMINI))
        assert reply.parts == (Text("So be it.", "c2lnbmVkLTI="),)
        await reply_of(model, continued(GEMINI, reply))
        assert Text("So be it.", "c2lnbmVkLTI=") in vendor.asked.turns[1].parts


async def test_a_signature_of_nothing_comes_back_as_such() -> None:
    async with opened(GEMINI) as (vendor, model):
        vendor.will(says(ReasoningDelta("Hm."), OmittedDelta("c2lnbmVkLTM=")), says(TextDelta("")))
        reply = await reply_of(model, asks(GEMINI))
        assert OmittedReasoning("c2lnbmVkLTM=") in reply.parts
        await reply_of(model, continued(GEMINI, reply))
        assert OmittedReasoning("c2lnbmVkLTM=") in vendor.asked.turns[1].parts


@pytest.mark.parametrize(
    ("chunk", "kind", "why"),
    [
        ({"candidates": [{"finishReason": "SAFETY", "index": 0}]}, Refused, "SAFETY"),
        ({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, Refused, "PROHIBITED_CONTENT"),
        ({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]}, BadReply, "MALFORMED"),
        ({"candidates": [{"content": {"role": "model", "parts": [{"novelty": 1}]}}]}, BadReply, "understood"),
    ],
)
async def test_a_reply_that_gemini_breaks_off_says_why(chunk: dict[str, Any], kind: type[ModelError], why: str) -> None:
    async with opened(GEMINI) as (vendor, model):
        vendor.will(Script(body=sse({"responseId": "r1", "modelVersion": "offline", **chunk})))
        _, error = await seen_before_failing(model, asks(GEMINI))
    assert type(error) is kind
    assert why in error.message


async def test_gemini_says_in_the_body_how_long_to_wait() -> None:
    """It sends no header; the fake vendor would, so here the answer is judged without one."""
    status, said = GEMINI.protocol().refusal(Failure("rate_limit", retry_after=17))
    assert failures.from_response("gemini", status, {}, said).retry_after == 17
    begun = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Well"}]}}]}
    async with opened(GEMINI) as (vendor, model):
        vendor.will(Script(body=sse(begun, msgspec.json.decode(said))))
        seen, error = await seen_before_failing(model, asks(GEMINI))
    assert seen == "Well"
    assert type(error) is RateLimited
    assert error.retry_after == 17


async def test_what_gemini_is_to_think_is_said() -> None:
    thinking = {"include_thoughts": True, "thinking_budget": 1024}
    body = await sent(GEMINI, asks(GEMINI, settings={"thinking_config": thinking}))
    said = gemini_rules.read(body).generation_config.thinking_config
    assert (said.include_thoughts, said.thinking_budget) == (True, 1024)


@pytest.mark.parametrize(("name", "budget"), [("gemini-2.5-offline", -1), ("gemini-3-offline", None)])
async def test_a_gemini_that_may_decide_how_long_to_think_is_told_so_in_its_own_way(
    name: str, budget: int | None
) -> None:
    adapter = msgspec.structs.replace(GEMINI, open=bridge_to("google_ai", name=name, reasoning=True))
    thinking = {"include_thoughts": True, "thinking_budget": -1}
    body = await sent(adapter, asks(adapter, settings={"thinking_config": thinking}))
    said = gemini_rules.read(body).generation_config.thinking_config
    assert (said.include_thoughts, said.thinking_budget) == (True, budget)


@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
async def test_a_gemini_that_has_tools_or_a_shape_but_not_both_is_told_of_the_shape_in_words(kind: str) -> None:
    older = msgspec.structs.replace(GEMINI, open=bridge_to("google_ai", name="gemini-2.5-offline"))
    wanted = {"type": kind, "json_schema": {"name": "told", "schema": SCHEMA}}
    body = await sent(older, asks(older, response_format=wanted))
    assert "JSON" in body["systemInstruction"]["parts"][0]["text"]
    assert ('"answer"' in body["systemInstruction"]["parts"][0]["text"]) == (kind == "json_schema")
    assert "responseMimeType" not in body["generationConfig"]


async def test_a_failed_tool_is_marked_as_failed() -> None:
    failed = Turn("tool", (ToolReturn("c1", "print_tool", "error", "no ink"),))
    asked = asks(GEMINI, "Hi", Turn("assistant", (ToolCall("c1", "print_tool", "{}"),)), failed)
    async with opened(GEMINI) as (vendor, model):
        vendor.will(says(TextDelta("")))
        await reply_of(model, asked)
        assert failed in vendor.asked.turns


# What they are asked


@bridged
@pytest.mark.parametrize("choice", ["auto", "required", "none", NamedTool("print_tool")])
async def test_the_choice_of_tools_is_passed_on(adapter: Adapter, choice: Any) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(says(TextDelta("Hi")))
        await reply_of(model, asks(adapter, tool_choice=choice))
        understood = vendor.asked
    if choice == "none" and not understood.tools:
        return  # as good as said
    if adapter.name == "cohere" and isinstance(choice, NamedTool):
        assert [tool.name for tool in understood.tools] == [
            choice.name
        ]  # it has no word for one tool: it is shown no other
        choice = "required"
    assert understood.tool_choice == choice


@bridged
async def test_limits_and_wishes_are_passed_on(adapter: Adapter) -> None:
    asked = asks(adapter, max_output_tokens=77, parallel=False, user="agent-1")
    async with opened(adapter) as (vendor, model):
        vendor.will(says(TextDelta("Hi")))
        await reply_of(model, asked)
        understood = vendor.asked
        assert understood.max_output_tokens == 77
        assert understood.tools == asked.tools
        if adapter is RESPONSES:
            assert (understood.parallel_tool_calls, understood.user) == (False, "agent-1")


@both
@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        ({"type": "text"}, "You said: Hi"),
        ({"type": "json_object"}, '{"answer":"offline"}'),
        ({"type": "json_schema", "json_schema": {"name": "told", "schema": SCHEMA, "strict": True}}, None),
    ],
)
async def test_an_answer_can_be_given_a_shape(adapter: Adapter, wanted: dict[str, Any], answer: str | None) -> None:
    async with opened(adapter) as (_, model):
        reply = await reply_of(model, asks(adapter, "Hi", tools=(), response_format=wanted, system="Say it in JSON."))
    if answer is None:
        assert isinstance(msgspec.json.decode(said_in(reply))["answer"], str)
    else:
        assert said_in(reply) == answer


@those_with(lambda one: not one.shows_payload and one.reasoning_usage and not one.cache_writes)
async def test_figures_that_were_not_told_are_unknown(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(
            Script(deltas=(TextDelta("Hi"), UsageDelta(Usage(7, 2)), Finish("stop"))),
            Script(deltas=(TextDelta("Hi"), UsageDelta(Usage(7, 2, 0, reasoning_tokens=0)), Finish("stop"))),
        )
        assert (await reply_of(model, asks(adapter))).usage == Usage(7, 2)
        assert (await reply_of(model, asks(adapter))).usage == Usage(7, 2, 0, reasoning_tokens=0)
