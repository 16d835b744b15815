from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast import errors
from holdfast.core.deltas import Finish, FinishReason, OmittedDelta, ReasoningDelta, TextDelta, UsageDelta
from holdfast.core.messages import OmittedReasoning, Reasoning, RedactedReasoning, Text, ToolCall, ToolReturn, Turn
from holdfast.core.usage import Usage
from holdfast.llm.anthropic.adapter import AnthropicModel
from holdfast.llm.http import Http
from tests.llm.claude import BOUND, claude, conversing, deltas_from, endpoint, events, folded, reply_from
from tests.llm.conversations import request, tool
from tests.llm.fakes.anthropic import AnthropicProtocol
from tests.llm.fakes.script import Failure, Script
from tests.llm.fakes.server import FakeVendor

START: dict[str, Any] = {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}
STOP: dict[str, Any] = {"type": "message_stop"}


def begun(block: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def piece(index: int = 0, /, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def ended(index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def stopped(reason: str | None, **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5, **usage}}


WORDS = (begun({"type": "text", "text": ""}), piece(type="text_delta", text="Hello"), ended())


async def replying(*said: dict[str, Any]) -> list[Any]:
    async with conversing() as (vendor, model):
        vendor.will(Script(body=events(*said)))
        return await deltas_from(model, request("Hi."))


async def test_thinking_is_kept_through_a_conversation_with_tools() -> None:
    async with conversing() as (vendor, model):
        asked = request("Call the roll_dice_tool with 16 sides.")
        first = await reply_from(model, asked)
        thought, call = first.parts
        assert isinstance(thought, Reasoning) and thought.signature
        assert isinstance(call, ToolCall)
        answered = Turn("tool", (ToolReturn(call.id, call.name, "success", "11"),))
        second = await reply_from(
            model, msgspec.structs.replace(asked, turns=(*asked.turns, Turn("assistant", first.parts), answered))
        )
        sent = vendor.last.body
    assert sent["thinking"]["type"] == "enabled"
    assert sent["messages"][1]["content"][0] == {
        "type": "thinking",
        "thinking": thought.text,
        "signature": thought.signature,
    }
    assert second.finish == "stop"
    assert "11" in "".join(part.text for part in second.parts if isinstance(part, Text))


async def test_altered_thinking_is_refused_by_the_fake_as_by_the_vendor() -> None:
    async with conversing() as (_, model):
        asked = request("Call the roll_dice_tool with 16 sides.")
        first = await reply_from(model, asked)
        thought, call = first.parts
        assert isinstance(thought, Reasoning) and isinstance(call, ToolCall)
        forged = Turn("assistant", (Reasoning("Something else.", thought.signature), call))
        answered = Turn("tool", (ToolReturn(call.id, call.name, "success", "11"),))
        with pytest.raises(errors.Refused, match="Invalid `signature`"):
            await reply_from(model, msgspec.structs.replace(asked, turns=(*asked.turns, forged, answered)))


async def test_hidden_and_redacted_thinking_comes_back_as_it_went() -> None:
    async with conversing(BOUND) as (vendor, model):
        asked = request("[[reasoning:redacted]] [[call:print_tool|{}]]")
        first = await reply_from(model, asked)
        call = first.calls[0]
        answered = Turn("tool", (ToolReturn(call.id, call.name, "success", "ok"),))
        hidden = Turn("assistant", (OmittedReasoning("sealed"), *first.parts))
        await reply_from(model, msgspec.structs.replace(asked, turns=(*asked.turns, hidden, answered)))
        sent = vendor.last.body["messages"][1]["content"]
    assert isinstance(first.parts[0], RedactedReasoning)
    assert sent[:2] == [
        {"type": "thinking", "thinking": "", "signature": "sealed"},
        {"type": "redacted_thinking", "data": first.parts[0].data},
    ]


async def test_thinking_that_is_not_shown_is_a_signature_alone() -> None:
    hidden = begun({"type": "thinking", "thinking": "", "signature": ""})
    said = await replying(
        START, hidden, piece(type="signature_delta", signature="sea"), piece(type="signature_delta", signature="led"),
        ended(), stopped("end_turn"), STOP,
    )  # fmt: skip
    assert said[0] == OmittedDelta("sealed")


async def test_two_blocks_of_thinking_keep_their_own_signatures() -> None:
    def block(index: int, text: str, signature: str) -> list[dict[str, Any]]:
        thought = piece(index, type="thinking_delta", thinking=text)
        signed = piece(index, type="signature_delta", signature=signature)
        return [begun({"type": "thinking", "thinking": "", "signature": ""}, index), thought, signed, ended(index)]

    said = await replying(START, *block(0, "one", "1"), *block(1, "two", "2"), stopped("end_turn"), STOP)
    assert folded(said).parts == (Reasoning("one", "1"), Reasoning("two", "2"))


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("a_reason_of_tomorrow", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
    ],
)
async def test_every_reason_to_stop_has_a_finish(reason: str, finish: FinishReason) -> None:
    said = await replying(START, *WORDS, stopped(reason), STOP)
    assert said == [TextDelta("Hello"), UsageDelta(Usage(7, 5)), Finish(finish)]


async def test_a_refusal_is_an_error_with_the_vendors_reason_and_its_usage() -> None:
    refusal = {"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "It could do harm."}}
    body = events(START, *WORDS, {"type": "message_delta", "delta": refusal, "usage": {"output_tokens": 5}}, STOP)
    said: list[Any] = []
    async with conversing() as (vendor, model):
        vendor.will(Script(body=body))
        with pytest.raises(errors.Refused, match="anthropic declined to answer: It could do harm\\."):
            async for delta in model.stream(request("Hi.")):
                said.append(delta)
    assert said == [TextDelta("Hello"), UsageDelta(Usage(7, 5))]


async def test_usage_adds_what_was_cached_to_the_prompt_and_the_last_figures_count() -> None:
    cached = {
        "input_tokens": 10,
        "cache_read_input_tokens": 200,
        "cache_creation_input_tokens": 3000,
        "output_tokens": 1,
    }
    details = {"output_tokens_details": {"thinking_tokens": 40}}
    said = await replying(
        {"type": "message_start", "message": {"usage": cached}},
        *WORDS,
        stopped("end_turn", output_tokens=50, **details),
        STOP,
    )
    assert said[-2] == UsageDelta(Usage(3210, 50, 200, 3000, 40))
    assert sum(isinstance(delta, UsageDelta) for delta in said) == 1


@pytest.mark.parametrize("rest", [(), (stopped(None),), (STOP,)], ids=["nothing", "no reason", "only the end"])
async def test_a_reply_without_a_reason_to_stop_has_no_finish(rest: tuple[dict[str, Any], ...]) -> None:
    assert folded(await replying(START, *WORDS, *rest)).finish is None


async def test_a_reply_that_was_cut_off_has_cost_what_was_counted_by_then() -> None:
    assert (await replying(START, *WORDS))[-1] == UsageDelta(Usage(7, 1))


async def test_blocks_that_nobody_ended_end_with_the_message() -> None:
    said = await replying(
        START,
        begun({"type": "thinking", "thinking": "Hm.", "signature": "sealed"}),
        begun({"type": "tool_use", "id": "c1", "name": "note", "input": {"what": "x"}}, 1),
        stopped("tool_use"), STOP,
    )  # fmt: skip
    thought, call = folded(said).parts
    assert thought == Reasoning("Hm.", "sealed")
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"what": "x"}


async def test_what_is_null_was_not_said() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("text", "thinking", "signature", "partial_json", "stop_reason"))
    said = await replying(
        {"type": "message_start", "message": {"usage": None}},
        *(begun({"type": "thinking", "thinking": None, "signature": None}), piece(**nothing | {"type": "novelty"})),
        *(piece(**nothing | {"type": "thinking_delta", "thinking": "Hm."}), ended()),
        *(begun({"type": "text", "text": None}), piece(**nothing | {"type": "text_delta"})),
        *(piece(**nothing | {"type": "text_delta", "text": "Hello"}) | {"index": None}, ended() | {"index": None}),
        *(stopped("end_turn"), STOP),
    )
    assert folded(said).parts == (Reasoning("Hm."), Text("Hello"))


async def test_a_block_that_begins_where_another_is_open_ends_it() -> None:
    call: dict[str, Any] = {"type": "tool_use", "name": "note"}
    first, second = call | {"id": "a", "input": {"x": 1}}, call | {"id": "b", "input": {"x": 2}}
    reply = folded(await replying(START, begun(first), begun(second), ended(), stopped("tool_use"), STOP))
    assert [json.loads(made.arguments) for made in reply.calls] == [{"x": 1}, {"x": 2}]


async def test_a_vendor_that_keeps_the_line_open_after_its_last_word_is_not_waited_for() -> None:
    said = [event + b"\n\n" for event in events(START, *WORDS, stopped("end_turn"), STOP).split(b"\n\n") if event]

    class NeverEnding(AnthropicProtocol):
        def rendering(self, path: str, body: dict[str, object]) -> Any:
            rendering = super().rendering(path, body)
            rendering.begin = lambda: said
            return rendering

    async with conversing(protocol=NeverEnding()) as (vendor, model):
        vendor.will(Script(hangs="mid_stream"))
        assert folded(await deltas_from(model, request("Hi."))).finish == "stop"
        await vendor.last.gone.wait()


async def test_what_comes_after_the_last_word_is_not_read_and_neither_is_an_empty_event() -> None:
    async with conversing() as (vendor, model):
        body = b"data:\n\n" + events(START, *WORDS, stopped("end_turn"), STOP) + b"data: nonsense\n\n"
        vendor.will(Script(body=body))
        assert folded(await deltas_from(model, request("Hi."))).finish == "stop"


async def test_a_reason_to_stop_is_enough_even_if_the_last_event_is_lost() -> None:
    reply = folded(await replying(START, *WORDS, stopped("end_turn")))
    assert (reply.finish, reply.usage) == ("stop", Usage(7, 5))


@pytest.mark.parametrize(
    ("given", "pieces", "arguments"),
    [
        ({}, [], "{}"),
        ({}, [""], "{}"),
        ({}, ['{"a', '": 1}'], '{"a": 1}'),
        ({"a": 1}, [], '{"a":1}'),
        (None, [], "{}"),
        ({}, [None, "{}"], "{}"),
    ],
)
async def test_the_input_of_a_call_is_whole_however_it_comes(
    given: dict[str, Any] | None, pieces: list[str | None], arguments: str
) -> None:
    call = begun({"type": "tool_use", "id": "toolu_1", "name": "print_tool", "input": given})
    fragments = [piece(type="input_json_delta", partial_json=text) for text in pieces]
    reply = folded(await replying(START, call, *fragments, ended(), stopped("tool_use"), STOP))
    assert reply.calls == (ToolCall("toolu_1", "print_tool", arguments),)


async def test_parallel_calls_are_numbered_by_themselves_and_not_by_their_blocks() -> None:
    call: dict[str, Any] = {"type": "tool_use", "name": "print_tool", "input": {}}
    reply = folded(
        await replying(
            START, *WORDS, begun(call | {"id": "a"}, 1), ended(1), begun(call | {"id": "b"}, 2), ended(2),
            stopped("tool_use"), STOP,
        )
    )  # fmt: skip
    assert [part.id for part in reply.calls] == ["a", "b"]


async def test_blocks_of_the_vendors_own_tools_and_of_unknown_kinds_are_passed_over() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "shells"}}
    found: dict[str, Any] = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    novel = {"type": "novel_block", "text": {"not": "text"}, "data": 7, "name": None}
    said = await replying(
        START,
        *(begun(search), piece(type="input_json_delta", partial_json='{"query": "noise"}'), ended()),
        *(begun(found, 1), ended(1)),
        *(begun(novel, 2), piece(2, type="novel_delta", novelty={"a": 1}), ended(2)),
        *(begun({"type": "text", "text": ""}, 3), piece(3, type="text_delta", text="Hello"), ended(3)),
        *(stopped("end_turn"), STOP),
    )
    assert said == [TextDelta("Hello"), UsageDelta(Usage(7, 5)), Finish("stop")]


async def test_a_tool_with_a_name_that_the_vendor_refuses_can_be_called() -> None:
    dotted = tool("files.read", path="string")
    async with conversing() as (vendor, model):
        asked = request("Hi.", tools=(dotted,))
        name = model.payload(asked)["tools"][0]["name"]
        call = begun({"type": "tool_use", "id": "toolu_1", "name": name, "input": {}})
        vendor.will(Script(body=events(START, call, ended(), stopped("tool_use"), STOP)))
        reply = await reply_from(model, asked)
    assert "." not in name
    assert reply.calls[0].name == "files.read"


async def test_a_call_id_known_from_earlier_is_replaced() -> None:
    call = begun({"type": "tool_use", "id": "call_0", "name": "print_tool", "input": {}})
    async with conversing() as (vendor, model):
        vendor.will(Script(body=events(START, call, ended(), stopped("tool_use"), STOP)))
        earlier = Turn("assistant", (ToolCall("call_0", "print_tool", "{}"),))
        answered = Turn("tool", (ToolReturn("call_0", "print_tool", "success", "ok"),))
        reply = await reply_from(model, request("Hi.", earlier, answered))
    assert reply.calls[0].id != "call_0"


@pytest.mark.parametrize(
    ("named", "typed"),
    [(b"event: error\n", {"type": "error"}), (b"event: error\n", {}), (b"", {"type": "error"})],
    ids=["by both", "by the event", "by the data"],
)
async def test_an_error_is_seen_however_little_marks_it(named: bytes, typed: dict[str, Any]) -> None:
    said = msgspec.json.encode(typed | {"error": {"type": "rate_limit_error", "message": "slow down"}})
    async with conversing() as (vendor, model):
        vendor.will(Script(body=events(START) + named + b"data: " + said + b"\n\n"))
        with pytest.raises(errors.RateLimited, match="slow down"):
            await deltas_from(model, request("Hi."))


async def test_an_error_in_the_stream_is_told_apart_by_its_type() -> None:
    async with conversing() as (vendor, model):
        vendor.will(Script(deltas=(TextDelta("Hel"),), failure=Failure("overloaded", "Overloaded"), fails_after=1))
        with pytest.raises(errors.Overloaded, match="Overloaded"):
            await deltas_from(model, request("Hi."))


@pytest.mark.parametrize(
    "broken",
    [
        b"event: content_block_delta\ndata: {not json\n\n",
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":"x"}\n\n',
        b'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"tool_use"}}\n\n',
    ],
    ids=["not JSON", "wrong type", "a call without a name"],
)
async def test_an_event_that_cannot_be_understood_is_a_bad_reply(broken: bytes) -> None:
    async with conversing() as (vendor, model):
        vendor.will(Script(body=events(START) + broken))
        with pytest.raises(errors.BadReply):
            await deltas_from(model, request("Hi."))


async def test_the_key_is_never_repeated_even_if_it_looks_like_any_word() -> None:
    vendor, http, key = FakeVendor(AnthropicProtocol()), Http(), "correcthorsebattery"
    async with vendor.serving():
        target = msgspec.structs.replace(endpoint(vendor.url), api_key=key)
        for body in (
            b'event: error\ndata: {"type":"error","error":{"message":"no to %b"}}\n\n',
            b'data: {"type":"error","error":{"message":"no to %b"}}\n\n',
            b"data: no to %b\n\n",
            b"no to %b",
        ):
            vendor.will(Script(body=body % key.encode()))
            with pytest.raises(errors.ModelError, match=r"no to \[key\]"):
                await deltas_from(AnthropicModel(target, http, claude()), request("Hi."))
        await http.aclose()


async def test_the_vendor_is_shown_its_key_its_version_and_the_payload_as_previewed() -> None:
    asked = request("Hi.", user="agent-1")
    async with conversing() as (vendor, model):
        await deltas_from(model, asked)
        sent = vendor.last
    assert sent.path == "/v1/messages"
    assert (sent.headers["x-api-key"], sent.headers["anthropic-version"]) == ("sk-ant-x", "2023-06-01")
    assert sent.headers["anthropic-beta"] == "interleaved-thinking-2025-05-14"
    assert sent.body == json.loads(json.dumps(model.payload(asked)))
    assert sent.body["metadata"] == {"user_id": "agent-1"}


async def test_a_server_that_keeps_the_line_open_after_its_last_word_is_not_waited_for() -> None:
    vendor, http = FakeVendor(_NeverEnding()), Http()
    async with vendor.serving():
        vendor.will(Script(hangs="mid_stream"))
        reply = folded(await deltas_from(AnthropicModel(endpoint(vendor.url), http, claude()), request("Hi.")))
        assert (reply.parts, reply.finish) == ((Text("Hello"),), "stop")
        await vendor.last.gone.wait()
        await http.aclose()


class _NeverEnding(AnthropicProtocol):
    def rendering(self, path: str, body: dict[str, object]) -> Any:
        rendering = super().rendering(path, body)
        rendering.begin = lambda: [events(START, *WORDS, stopped("end_turn"), STOP)]
        return rendering


async def test_pieces_come_out_as_they_come_in() -> None:
    deltas = (ReasoningDelta("Hm"), TextDelta("a"), TextDelta("b"), UsageDelta(Usage(1, 2)), Finish("stop"))
    async with conversing() as (vendor, model):
        vendor.will(Script(deltas=deltas, piece_bytes=1, noise=True))
        said = await deltas_from(model, request("Hi."))
    assert [delta for delta in said if isinstance(delta, TextDelta)] == [TextDelta("a"), TextDelta("b")]
    assert folded(said).finish == "stop"
