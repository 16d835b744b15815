"""What is peculiar to Mistral, Cohere and Bedrock, beyond what all adapters do (test_adapters, test_bridge)."""

from __future__ import annotations

import asyncio
import hmac
import re
import sys
from contextlib import AsyncExitStack
from hashlib import sha256
from traceback import walk_stack
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from holdfast.core.deltas import CallDelta, Finish, ReasoningDelta, RedactedDelta, Reply, TextDelta, UsageDelta
from holdfast.core.messages import Image, Reasoning, Text, ToolCall, ToolReturn, Turn
from holdfast.core.usage import Usage
from holdfast.errors import AuthRejected, BadReply, ContextTooLong, ModelError, ModelUnavailable, Refused
from holdfast.llm.base import CONTINUE
from holdfast.llm.bridge.adapter import BridgedModel
from holdfast.llm.bridge.bedrock import FrameReader, SignedTap
from holdfast.llm.endpoint import Endpoint

from .adapters import ADAPTERS, Adapter, bridge_to, info, opened
from .conversations import calls_in, said_in
from .fakes.bedrock import BedrockProtocol, frame
from .fakes.script import Script
from .fakes.server import Exchange, FakeVendor
from .test_adapters import asks, reply_of, says, seen_before_failing, those_with

MISTRAL, COHERE, BEDROCK = [one for one in ADAPTERS if one.name in ("mistral", "cohere", "bedrock")]
PICTURE = Image("image/png", "iVBORw0KGgo=")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


async def read(adapter: Adapter, body: bytes) -> Reply:
    async with opened(adapter) as (vendor, model):
        vendor.will(Script(body=body))
        return await reply_of(model, asks(adapter))


async def failing(adapter: Adapter, body: bytes) -> ModelError:
    async with opened(adapter) as (vendor, model):
        vendor.will(Script(body=body))
        _, error = await seen_before_failing(model, asks(adapter))
        return error


async def sent(adapter: Adapter, *turns: Turn | str, **more: Any) -> dict[str, Any]:
    async with opened(adapter) as (vendor, model):
        vendor.will(says(TextDelta("Hi")))
        await reply_of(model, asks(adapter, *turns, **more))
        return vendor.last.body


def chunks(*deltas: dict[str, Any], finish: str = "stop") -> bytes:
    """Mistral's, the last of which ends the reply."""
    said = [(delta, None) for delta in deltas[:-1]] + [(delta, finish) for delta in deltas[-1:]]
    events = [
        {"id": "1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in said
    ]
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events) + b"data: [DONE]\n\n"


def fragment(name: str, arguments: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]}


# Mistral


async def test_mistral_says_thoughts_and_text_in_one_list() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}, {"type": "text", "text": " Well."}]}
    body = chunks({"content": [thought]}, {"content": [{"type": "text", "text": "Yes"}]}, {"content": "."})
    reply = await read(MISTRAL, body)
    assert reply.parts == (Reasoning("Hm. Well."), Text("Yes."))


async def test_calls_that_come_one_by_one_are_all_kept() -> None:
    said = [fragment("print_tool", f'{{"message":"{word}"}}', id=f"call0000{word}") for word in "abc"]
    reply = await read(MISTRAL, chunks(*said, finish="tool_calls"))
    assert calls_in(reply) == [("print_tool", {"message": word}) for word in "abc"]


async def test_a_call_in_pieces_is_one_call() -> None:
    pieces = [fragment("print_tool", '{"mess', id="call00001"), fragment("", 'age":', id="call00001")]
    reply = await read(MISTRAL, chunks(*pieces, fragment("", '"a"}'), finish="tool_calls"))
    assert calls_in(reply) == [("print_tool", {"message": "a"})]
    assert reply.calls[0].id == "call00001"


async def test_mistral_gets_ids_of_nine_letters_that_still_belong_together() -> None:
    called = (ToolCall("call_1", "print_tool", "{}"), ToolCall("abcDEF123", "print_tool", "{}"))
    returned = tuple(ToolReturn(call.id, "print_tool", "success", "ok") for call in called)
    body = await sent(MISTRAL, "Hi", Turn("assistant", called), Turn("tool", returned))
    first, second = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or ()]
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", first)
    assert second == "abcDEF123"
    assert [one["tool_call_id"] for one in body["messages"] if one["role"] == "tool"] == [first, second]


async def test_mistral_is_offered_no_tools_when_it_is_to_call_none() -> None:
    assert "tools" in await sent(MISTRAL, "Hi")
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & (await sent(MISTRAL, "Hi", tool_choice="none")).keys()


async def test_mistral_is_asked_for_json_by_the_prompt_alone() -> None:
    assert "response_format" not in await sent(MISTRAL, "Hi", response_format={"type": "json_object"})


async def test_who_speaks_after_whom_is_as_mistral_wants_it() -> None:
    """Images that a tool returned are shown by a user; a reply of nothing but thoughts has no place."""
    called = Turn("assistant", (ToolCall("abcDEF123", "print_tool", "{}"),))
    shown = Turn("tool", (ToolReturn("abcDEF123", "print_tool", "success", (Text("Here:"), PICTURE)),))
    body = await sent(MISTRAL, "Hi", called, shown, "And?", Turn("assistant", (Reasoning("Hm."),)), "So?")
    assert [one["role"] for one in body["messages"]] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert [one.get("text") for one in body["messages"][-1]["content"]][-2:] == ["And?", "So?"]
    last = await sent(MISTRAL, "Hi", Turn("assistant", (Text("Well,"),)))
    assert last["messages"][-1] == {"role": "user", "content": CONTINUE}


async def test_thoughts_in_tags_are_no_text_of_mistral() -> None:
    reply = await read(MISTRAL, chunks({"content": "<think>Hm."}, {"content": "</think>\n\nYes."}))
    assert reply.parts == (Reasoning("Hm."), Text("Yes."))


# Cohere


def cohere(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)


async def test_the_plan_for_the_tools_is_a_thought() -> None:
    def plan(text: str) -> dict[str, Any]:
        return {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": text}}}

    call = {"id": "c1", "type": "function", "function": {"name": "print_tool", "arguments": ""}}
    body = cohere(
        {"type": "message-start", "id": "1", "delta": {"message": {"role": "assistant"}}},
        plan("I will "),
        plan("print."),
        {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}},
        {"type": "tool-call-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}},
    )
    reply = await read(COHERE, body)
    assert reply.parts == (Reasoning("I will print."), ToolCall("c1", "print_tool", "{}"))


async def test_cohere_is_told_of_images_that_it_cannot_be_shown() -> None:
    called = Turn("assistant", (ToolCall("c1", "print_tool", "{}"),))
    returned = Turn("tool", (ToolReturn("c1", "print_tool", "success", (Text("Here:"), PICTURE)),))
    body = await sent(COHERE, Turn("user", (Text("What is it?"), PICTURE)), called, returned)
    shown = msgspec.json.encode(body["messages"]).decode()
    assert shown.count("[Image omitted]") == 2
    assert PICTURE.data not in shown


async def test_a_reply_that_cohere_gives_up_is_a_failure_and_no_answer() -> None:
    ended = {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "out of memory"}}
    error = await failing(COHERE, cohere({"type": "message-start", "id": "1"}, ended))
    assert type(error) is ModelUnavailable
    assert "out of memory" in error.message


# Bedrock


def bedrock_at(url: str, *, name: str = "anthropic.claude-3", **options: str) -> BridgedModel:
    endpoint = Endpoint(
        provider_name="bedrock",
        provider_type="bedrock",
        base_url=url,
        api_key="a-secret-that-signs",
        options={"region": "eu-west-1", "access_key": "AKIAMINE", **options},
    )
    return BridgedModel(endpoint, info("bedrock", name), first_byte_s=10, total_s=30)


async def test_a_request_is_signed_with_the_providers_own_key_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASERVER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-servers")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "the-servers-token")
    monkeypatch.setenv("AWS_PROFILE", "the-servers-profile")
    vendor = FakeVendor(BedrockProtocol())
    async with vendor.serving():
        model = bedrock_at(vendor.url, session_token="a-session")
        vendor.will(says(TextDelta("Hi")))
        assert said_in(await reply_of(model, asks(BEDROCK))) == "Hi"
        await model.aclose()
    headers = vendor.last.headers
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIAMINE/")
    assert "/eu-west-1/bedrock/aws4_request" in headers["authorization"]
    assert headers["x-amz-security-token"] == "a-session"
    assert "a-secret-that-signs" not in str(headers)


async def test_a_provider_without_a_key_does_not_get_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASERVER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-servers")
    with pytest.raises(AuthRejected):
        await reply_of(bedrock_at("http://127.0.0.1:9", access_key=""), asks(BEDROCK))


async def test_a_model_that_the_library_knows_to_be_elsewhere_is_refused() -> None:
    with pytest.raises(Refused, match="Converse"):
        await reply_of(bedrock_at("http://127.0.0.1:9", name="openai.gpt-4o"), asks(BEDROCK))


async def test_what_the_sdk_itself_refuses_is_a_refusal() -> None:
    """Before anything is sent. The library lets it pass as it is."""
    error = None
    async with opened(BEDROCK) as (vendor, model):
        _, error = await seen_before_failing(model, asks(BEDROCK, max_output_tokens="many"))
        assert vendor.exchanges == []
    assert type(error) is Refused
    assert "maxTokens" in error.message


async def test_a_profile_is_named_by_its_whole_address() -> None:
    name = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
    vendor = FakeVendor(BedrockProtocol())
    async with vendor.serving():
        model = bedrock_at(vendor.url, name=name)
        vendor.will(says(TextDelta("Hi")))
        await reply_of(model, asks(BEDROCK))
        await model.aclose()
    assert vendor.asked.handle == f"bedrock/{name}"
    said = vendor.last.headers["authorization"]
    assert said.rpartition("Signature=")[2] == _signature(vendor.last, "a-secret-that-signs")


def _signature(sent: Exchange, secret: str) -> str:
    """As the vendor makes it from what arrived: whatever was changed on the way shows."""
    said = sent.headers["authorization"]
    scope = said.partition("/")[2].partition(",")[0]
    names = said.partition("SignedHeaders=")[2].partition(",")[0]
    told = [f"{name}:{' '.join(sent.headers[name].split())}\n" for name in names.split(";")]
    parts = (sent.method, quote(sent.path, safe="/-_.~"), "", "".join(told), names, sha256(sent.raw).hexdigest())
    asked = sha256("\n".join(parts).encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for step in scope.split("/"):
        key = hmac.digest(key, step.encode(), "sha256")
    text = "\n".join(("AWS4-HMAC-SHA256", sent.headers["x-amz-date"], scope, asked))
    return hmac.digest(key, text.encode(), "sha256").hex()


async def test_many_replies_are_waited_for_at_once() -> None:
    """Each keeps a thread waiting, and the library's usual number of threads is forty."""
    silent = Script(deltas=(TextDelta("Well"),), hangs="mid_stream")
    async with opened(BEDROCK) as (vendor, model), AsyncExitStack() as stack:
        vendor.will(*[silent] * 45, says(TextDelta("Hi")))
        for _ in range(45):
            reading = asyncio.create_task(reply_of(model, asks(BEDROCK)))
            stack.callback(reading.cancel)
            await asyncio.wait_for((await vendor.arrivals.get()).answered.wait(), 60)
        assert said_in(await asyncio.wait_for(reply_of(model, asks(BEDROCK)), 60)) == "Hi"


async def test_a_reply_that_was_given_up_keeps_no_thread() -> None:
    async with opened(BEDROCK) as (vendor, model):
        vendor.will(*[Script(deltas=(TextDelta("Well"),), hangs="mid_stream")] * 3)
        reading = [asyncio.create_task(reply_of(model, asks(BEDROCK))) for _ in range(3)]
        await _until_threads_wait(3)
        for one in reading:
            one.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await _until_threads_wait(0)


async def _until_threads_wait(wanted: int) -> None:
    """A thread cannot be listened to."""
    async with asyncio.timeout(30):
        while _threads_that_wait() != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _threads_that_wait() -> int:
    code = SignedTap.wait_for.__code__
    stacks = (walk_stack(top) for top in sys._current_frames().values())
    return sum(any(one.f_code is code for one, _ in stack) for stack in stacks)


async def test_what_was_thought_under_cover_comes_back_as_it_was() -> None:
    async with opened(BEDROCK) as (vendor, model):
        vendor.will(
            says(ReasoningDelta("Hm.", "c2lnbmVk"), RedactedDelta("c2VjcmV0"), CallDelta(0, "c1", "print_tool", "{}")),
            says(TextDelta("")),
        )
        reply = await reply_of(model, asks(BEDROCK))
        turn = Turn("assistant", reply.parts, info("bedrock").handle)
        returned = Turn("tool", (ToolReturn("c1", "print_tool", "success", "4"),))
        await reply_of(model, asks(BEDROCK, "Hi", turn, returned))
        assert vendor.asked.turns[1].parts == reply.parts


async def test_claude_is_told_to_think_only_when_that_is_wanted() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2048}
    body = await sent(BEDROCK, settings={"thinking": thinking}, temperature=0.5, tools=(), max_output_tokens=5000)
    assert body["additionalModelRequestFields"] == {"thinking": thinking}
    assert "temperature" not in body["inferenceConfig"]
    assert "additionalModelRequestFields" not in await sent(BEDROCK)


THINKING = {"type": "enabled", "budget_tokens": 2048}
CALLED = Turn("assistant", (ToolCall("c1", "print_tool", "{}"),), info("bedrock").handle)
RETURNED = Turn("tool", (ToolReturn("c1", "print_tool", "success", "4"),))


async def test_newer_claudes_at_bedrock_decide_themselves_how_much_to_think() -> None:
    wants: dict[str, Any] = {"settings": {"thinking": THINKING}, "max_output_tokens": 5000}
    for name, thinking in (
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", THINKING),
        ("us.anthropic.claude-opus-4-7-v1:0", {"type": "adaptive"}),
    ):
        called = msgspec.structs.replace(BEDROCK, open=bridge_to("bedrock", name=name))
        async with opened(called) as (vendor, model):
            vendor.will(says(TextDelta("Hi")))
            await reply_of(model, asks(BEDROCK, **wants))
            assert vendor.last.body["additionalModelRequestFields"] == {"thinking": thinking}


async def test_at_bedrock_too_thinking_fits_into_the_limit_or_is_left_out() -> None:
    for limit, budget in ((5000, 2048), (2000, 1999), (1000, None)):
        body = await sent(BEDROCK, settings={"thinking": THINKING}, max_output_tokens=limit)
        assert body["inferenceConfig"]["maxTokens"] == limit
        assert body.get("additionalModelRequestFields", {}).get("thinking", {}).get("budget_tokens") == budget


async def test_newer_claudes_get_no_temperature_at_bedrock() -> None:
    for name, temperature in (("anthropic.claude-opus-4-7-v1:0", None), ("amazon.nova-pro-v1:0", 0.5)):
        called = msgspec.structs.replace(BEDROCK, open=bridge_to("bedrock", name=name))
        async with opened(called) as (vendor, model):
            vendor.will(says(TextDelta("Hi")))
            await reply_of(model, asks(BEDROCK, temperature=0.5, max_output_tokens=99))
            assert vendor.last.body["inferenceConfig"].get("temperature") == temperature


async def test_claude_does_not_think_at_bedrock_where_it_would_be_refused() -> None:
    async def thinks(*turns: Turn | str, **more: Any) -> bool:
        body = await sent(BEDROCK, *turns, settings={"thinking": THINKING}, max_output_tokens=5000, **more)
        return "additionalModelRequestFields" in body

    assert await thinks("Hi")
    assert not await thinks("Hi", tool_choice="required"), "a tool is demanded"
    assert not await thinks("Hi", CALLED, RETURNED), "it was demanded a moment ago"
    assert await thinks("Hi", CALLED, RETURNED, Turn("assistant", (Text("So."),)), "Go on"), "that turn is over"


async def test_figures_of_the_cache_that_were_not_told_are_unknown() -> None:
    async with opened(BEDROCK) as (vendor, model):
        vendor.will(
            Script(deltas=(TextDelta("Hi"), UsageDelta(Usage(7, 2)), Finish("stop"))),
            Script(deltas=(TextDelta("Hi"), UsageDelta(Usage(7, 2, 0, 0)), Finish("stop"))),
        )
        assert (await reply_of(model, asks(BEDROCK))).usage == Usage(7, 2)
        assert (await reply_of(model, asks(BEDROCK))).usage == Usage(7, 2, 0, 0)


@pytest.mark.parametrize("broken_at", [3, 9, 40, -1])
async def test_a_frame_whose_sum_is_wrong_is_a_bad_reply(broken_at: int) -> None:
    body = bytearray(frame("messageStart", {"role": "assistant"}))
    body[broken_at] ^= 1
    assert type(await failing(BEDROCK, bytes(body))) is BadReply


async def test_an_error_without_a_name_of_its_own_is_known_by_its_code() -> None:
    headers = {":message-type": "error", ":error-code": "ValidationException", ":error-message": "Input is too long"}
    assert type(await failing(BEDROCK, frame("", {}, headers))) is ContextTooLong
    headers[":error-message"] = "Malformed"
    assert type(await failing(BEDROCK, frame("", {}, headers))) is Refused


def test_frames_are_found_wherever_they_are_cut() -> None:
    frames = [frame("messageStart", {"role": "assistant"}), frame("messageStop", {"stopReason": "end_turn"})]
    for cut in range(1, len(b"".join(frames))):
        reader, said = FrameReader(), b"".join(frames)
        found = [*reader.feed(said[:cut]), *reader.feed(said[cut:])]
        assert [one.raw for one in found] == frames
        assert [one.headers[":event-type"] for one in found] == ["messageStart", "messageStop"]
        assert not reader.is_amid_a_frame


# All three


@those_with(lambda one: one in (MISTRAL, COHERE))
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"type": "json_object"}, "single JSON object"),
        ({"type": "json_schema", "json_schema": {"name": "told", "schema": SCHEMA}}, '"required":["answer"]'),
    ],
)
async def test_a_shape_that_the_library_cannot_ask_for_is_asked_for_in_words(
    adapter: Adapter, wanted: dict[str, Any], words: str
) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(says(TextDelta("{}")))
        await reply_of(model, asks(adapter, response_format=wanted))
        assert vendor.asked.system.startswith("Be kind.")
        assert words in vendor.asked.system


async def test_bedrock_is_asked_for_a_shape_in_its_own_words() -> None:
    schema = SCHEMA | {"additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "told", "schema": schema, "strict": True}}
    async with opened(BEDROCK) as (vendor, model):
        vendor.will(says(TextDelta("{}")))
        await reply_of(model, asks(BEDROCK, tools=(), response_format=wanted))
        understood = vendor.asked
        assert understood.response_format is not None
        assert understood.response_format["json_schema"]["schema"]["required"] == ["answer"]
        vendor.will(says(TextDelta("{}")))
        await reply_of(model, asks(BEDROCK, response_format={"type": "json_object"}))
        assert "single JSON object" in vendor.asked.system
