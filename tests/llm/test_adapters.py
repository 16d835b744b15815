"""What every adapter does, whatever its vendor's protocol. What is peculiar to one is in its own test file."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, Literal, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.deltas import (
    CallDelta,
    Delta,
    Finish,
    FinishReason,
    ReasoningDelta,
    RedactedDelta,
    Reply,
    ReplyFolder,
    TextDelta,
    UsageDelta,
)
from holdfast.core.messages import (
    AnyPart,
    Image,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)
from holdfast.core.usage import Usage
from holdfast.errors import BadReply, ModelError, ModelTimedOut, ModelUnavailable
from holdfast.llm.base import Model, ModelRequest, ToolSchema
from holdfast.llm.http import Http

from ..effort import examples
from .adapters import ADAPTERS, Adapter, info, opened
from .conversations import DICE, PRINT, calls_in, request, said_in
from .fakes.script import ERRORS, Failure, FailureKind, Script
from .fakes.server import Exchange, FakeVendor

Hang = Literal["before_headers", "before_content", "mid_stream"]
HANGS: tuple[Hang, ...] = ("before_headers", "before_content", "mid_stream")
PICTURE = Image("image/png", "iVBORw0KGgo=")
SECRET_KEY = "sk-proj-abcdefghij0123456789"
USAGE = UsageDelta(Usage(12, 3))
AT_ONCE_S = 0.02


def those_with(able: Callable[[Adapter], bool]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("adapter", [one for one in ADAPTERS if able(one)], ids=lambda one: one.name)


every_adapter = those_with(lambda _: True)


def says(*deltas: Delta, finish: FinishReason = "stop", **more: Any) -> Script:
    return Script(deltas=(*deltas, USAGE, Finish(finish)), **more)


def calls(*calls: ToolCall) -> list[Delta]:
    """Each with its arguments in two pieces."""
    return [
        delta
        for index, call in enumerate(calls)
        for delta in (
            CallDelta(index, call.id, call.name, call.arguments[:3]),
            *([CallDelta(index, arguments=call.arguments[3:])] if call.arguments[3:] else []),
        )
    ]


def asks(adapter: Adapter, *turns: Turn | str, **more: Any) -> ModelRequest:
    wanted: dict[str, Any] = {"handle": info(adapter.name).handle, "tools": (DICE, PRINT), **more}
    return request(*(turns or ("Hi",)), **wanted)


async def reply_of(model: Model, asked: ModelRequest) -> Reply:
    folder = ReplyFolder()
    async with aclosing(model.stream(asked)) as deltas:
        async for delta in deltas:
            folder.add(delta)
    return folder.reply()


async def exchange(adapter: Adapter, script: Script, asked: ModelRequest | None = None) -> Reply:
    async with opened(adapter) as (vendor, model):
        vendor.will(script)
        return await reply_of(model, asked or asks(adapter))


async def seen_before_failing(model: Model, asked: ModelRequest) -> tuple[str, ModelError]:
    seen = ""
    try:
        async for delta in model.stream(asked):
            seen += delta.text if isinstance(delta, TextDelta) else ""
    except ModelError as error:
        return seen, error
    pytest.fail("the model did not fail")


# What is said


@every_adapter
async def test_text_comes_as_it_was_said(adapter: Adapter) -> None:
    reply = await exchange(adapter, says(TextDelta("Hel"), TextDelta("lo 🐚, "), TextDelta("\n“you”")))
    assert reply.parts == (Text("Hello 🐚, \n“you”"),)
    assert reply.finish == "stop"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (12, 3)


@those_with(lambda one: one.reasoning)
async def test_reasoning_stays_apart_from_the_answer(adapter: Adapter) -> None:
    script = says(ReasoningDelta("Let me "), ReasoningDelta("see."), TextDelta("Yes."))
    reply = await exchange(adapter, script)
    thought = "".join(part.text for part in reply.parts if isinstance(part, Reasoning))
    assert thought == "Let me see."
    assert said_in(reply) == "Yes."
    assert isinstance(reply.parts[0], Reasoning)


@those_with(lambda one: one.signatures)
async def test_signed_reasoning_is_sent_back_with_its_signature(adapter: Adapter) -> None:
    called = ToolCall("call_1", "roll_dice_tool", '{"num_sides":6}')
    async with opened(adapter) as (vendor, model):
        vendor.will(says(ReasoningDelta("Hm."), ReasoningDelta("", "c2lnbmVk"), *calls(called), finish="tool_calls"))
        reply = await reply_of(model, asks(adapter))
        assert Reasoning("Hm.", "c2lnbmVk") in reply.parts
        await reply_of(model, _continued(adapter, reply))
        assert Reasoning("Hm.", "c2lnbmVk") in _assistant_parts(vendor)


@those_with(lambda one: one.redaction)
async def test_redacted_reasoning_is_sent_back_as_it_came(adapter: Adapter) -> None:
    called = ToolCall("call_1", "roll_dice_tool", '{"num_sides":6}')
    async with opened(adapter) as (vendor, model):
        vendor.will(says(RedactedDelta("c2VjcmV0"), *calls(called), finish="tool_calls"))
        reply = await reply_of(model, asks(adapter))
        assert RedactedReasoning("c2VjcmV0") in reply.parts
        await reply_of(model, _continued(adapter, reply))
        assert RedactedReasoning("c2VjcmV0") in _assistant_parts(vendor)


def _continued(adapter: Adapter, reply: Reply) -> ModelRequest:
    returned = tuple(ToolReturn(call.id, call.name, "success", "4") for call in reply.calls)
    return asks(adapter, "Hi", Turn("assistant", reply.parts, info(adapter.name).handle), Turn("tool", returned))


def _assistant_parts(vendor: FakeVendor) -> list[AnyPart]:
    return [part for turn in vendor.asked.turns if turn.role == "assistant" for part in turn.parts]


@every_adapter
async def test_an_empty_reply_passes_as_such(adapter: Adapter) -> None:
    reply = await exchange(adapter, says())
    assert reply.parts == ()
    assert reply.finish == "stop"


@every_adapter
async def test_a_reply_that_reached_its_limit_says_so(adapter: Adapter) -> None:
    reply = await exchange(adapter, says(TextDelta("and then"), finish="length"))
    assert reply.finish == "length"
    assert said_in(reply) == "and then"


@every_adapter
async def test_a_reply_without_an_end_never_looks_finished(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(Script(deltas=(TextDelta("and"),)))
        folder = ReplyFolder()
        with suppress(ModelUnavailable):
            async for delta in model.stream(asks(adapter)):
                folder.add(delta)
        assert folder.reply().finish is None


@every_adapter
@pytest.mark.parametrize("tools", [(), (DICE,)], ids=["without tools", "with a tool"])
async def test_nothing_is_sent_as_null(adapter: Adapter, tools: tuple[ToolSchema, ...]) -> None:
    """Strict providers refuse `"tools": null`, which a request without tools, such as that for a summary, might have.
    One null is OpenAI's own: the content of a message that only calls tools."""
    called, again = (ToolCall(f"call_{number}", "roll_dice_tool", '{"num_sides":6}') for number in (1, 2))
    history = (
        Turn("user", (Text("Roll."),)),
        Turn("assistant", (Text("So be it."), called), info(adapter.name).handle),
        Turn("tool", (ToolReturn(called.id, called.name, "success", "4"),)),
        Turn("assistant", (again,), info(adapter.name).handle),
        Turn("tool", (ToolReturn(again.id, again.name, "success", "4"),)),
    )
    async with opened(adapter) as (vendor, model):
        for turns in ((), history):
            vendor.will(says(TextDelta("Yes.")))
            await reply_of(model, asks(adapter, *turns, tools=tools))
            sent = vendor.last.body
            for message in sent.get("messages", ()):
                if message.get("tool_calls") and message.get("content") is None:
                    message.pop("content", None)
            assert list(_nulls(sent)) == []


def _nulls(value: Any, place: str = "") -> Iterator[str]:
    """Where they are."""
    if value is None:
        yield place
    if isinstance(value, dict):
        for key, each in cast("dict[str, Any]", value).items():
            yield from _nulls(each, f"{place}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[Any]", value)):
            yield from _nulls(each, f"{place}[{number}]")


# Calls


@every_adapter
async def test_a_call_has_its_id_its_name_and_its_arguments(adapter: Adapter) -> None:
    called = ToolCall("call_7", "roll_dice_tool", '{"num_sides":16}')
    reply = await exchange(adapter, says(*calls(called), finish="tool_calls"))
    assert calls_in(reply) == [("roll_dice_tool", {"num_sides": 16})]
    assert [call.id for call in reply.calls] == ["call_7"]
    assert reply.finish == "tool_calls"


@every_adapter
async def test_four_parallel_calls_stay_apart(adapter: Adapter) -> None:
    made = [ToolCall(f"call_{side}", "roll_dice_tool", f'{{"num_sides":{side}}}') for side in (4, 6, 8, 20)]
    reply = await exchange(adapter, says(TextDelta("Rolling."), *calls(*made), finish="tool_calls"))
    assert calls_in(reply) == [("roll_dice_tool", {"num_sides": side}) for side in (4, 6, 8, 20)]
    assert [call.id for call in reply.calls] == [call.id for call in made]
    assert said_in(reply) == "Rolling."


@every_adapter
async def test_text_between_calls_is_kept(adapter: Adapter) -> None:
    script = says(
        TextDelta("First. "),
        CallDelta(0, "call_1", "print_tool", '{"message":"a"}'),
        TextDelta("Second. "),
        CallDelta(1, "call_2", "print_tool", '{"message":"b"}'),
        finish="tool_calls",
    )
    reply = await exchange(adapter, script)
    assert said_in(reply) == "First. Second. "
    assert calls_in(reply) == [("print_tool", {"message": "a"}), ("print_tool", {"message": "b"})]


@every_adapter
async def test_a_call_may_have_no_arguments(adapter: Adapter) -> None:
    reply = await exchange(adapter, says(CallDelta(0, "call_1", "print_tool"), finish="tool_calls"))
    assert [(call.name, call.arguments) for call in reply.calls] in ([("print_tool", "")], [("print_tool", "{}")])


@those_with(lambda one: one.raw_arguments)
async def test_malformed_arguments_are_passed_on_as_they_are(adapter: Adapter) -> None:
    called = ToolCall("call_1", "print_tool", '{"message": "half')
    reply = await exchange(adapter, says(*calls(called), finish="tool_calls"))
    assert reply.calls[0].arguments == '{"message": "half'


@every_adapter
async def test_the_name_of_a_call_can_be_stored(adapter: Adapter) -> None:
    reply = await exchange(adapter, says(CallDelta(0, "call000c1", "no\0tool", "{}"), finish="tool_calls"))
    assert [call.name for call in reply.calls] == ["notool"]


@every_adapter
async def test_a_repeated_call_id_is_replaced(adapter: Adapter) -> None:
    old = ToolCall("call_1", "print_tool", '{"message":"a"}')
    asked = asks(
        adapter, "Hi", Turn("assistant", (old,)), Turn("tool", (ToolReturn("call_1", "print_tool", "success", "ok"),))
    )
    again = [ToolCall(name, "print_tool", '{"message":"b"}') for name in ("call_1", "call_2", "call_2")]
    reply = await exchange(adapter, says(*calls(*again), finish="tool_calls"), asked)
    made = [call.id for call in reply.calls]
    assert len({"call_1", *made}) == 4
    assert made[1] == "call_2"
    assert all(0 < len(call_id) <= 40 for call_id in made)


# Usage


@those_with(lambda one: one.omits_usage)
async def test_usage_that_was_not_told_is_not_invented(adapter: Adapter) -> None:
    reply = await exchange(adapter, Script(deltas=(TextDelta("Hi"), Finish("stop"))))
    assert reply.usage is None


@every_adapter
async def test_usage_of_nothing_is_zero_and_not_unknown(adapter: Adapter) -> None:
    reply = await exchange(adapter, Script(deltas=(TextDelta("Hi"), UsageDelta(Usage(0, 0)), Finish("stop"))))
    assert reply.usage is not None
    assert reply.usage.total_tokens == 0


@every_adapter
async def test_cached_tokens_are_part_of_the_prompt(adapter: Adapter) -> None:
    reply = await exchange(adapter, Script(deltas=(TextDelta("Hi"), UsageDelta(Usage(100, 3, 80)), Finish("stop"))))
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (100, 3)
    assert reply.usage.cached_input_tokens == 80


@those_with(lambda one: one.cache_writes)
async def test_tokens_written_to_the_cache_are_part_of_the_prompt(adapter: Adapter) -> None:
    usage = Usage(100, 3, 20, 70)
    reply = await exchange(adapter, Script(deltas=(TextDelta("Hi"), UsageDelta(usage), Finish("stop"))))
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 100
    assert (reply.usage.cached_input_tokens, reply.usage.cache_write_tokens) == (20, 70)


@those_with(lambda one: one.reasoning_usage)
async def test_tokens_of_reasoning_are_part_of_the_completion(adapter: Adapter) -> None:
    usage = UsageDelta(Usage(10, 50, reasoning_tokens=40))
    reply = await exchange(adapter, Script(deltas=(TextDelta("Hi"), usage, Finish("stop"))))
    assert reply.usage is not None
    assert (reply.usage.completion_tokens, reply.usage.reasoning_tokens) == (50, 40)


# What is sent


@those_with(lambda one: one.shows_payload)
async def test_what_payload_shows_is_what_is_sent(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        asked = asks(adapter, *_every_kind_of_turn(adapter), max_output_tokens=500)
        await reply_of(model, asked)
        assert vendor.last.body == msgspec.json.decode(msgspec.json.encode(model.payload(asked)))


@every_adapter
async def test_a_history_of_every_kind_of_part_is_accepted(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        reply = await reply_of(model, asks(adapter, *_every_kind_of_turn(adapter), "And now?"))
        assert said_in(reply) == "You said: And now?"
        understood = vendor.asked
        assert understood.system == "Be kind."
        assert [tool.name for tool in understood.tools] == ["roll_dice_tool", "print_tool"]
        called = [part.name for turn in understood.turns for part in turn.parts if isinstance(part, ToolCall)]
        assert called == ["roll_dice_tool", "print_tool", "print_tool"]


def _every_kind_of_turn(adapter: Adapter) -> list[Turn]:
    own, other = info(adapter.name).handle, "other/model"
    return [
        Turn("user", (Text("Look at this."), PICTURE, Text("Well?"))),
        Turn("assistant", (Reasoning("Hm."), Text("I see.")), own),
        Turn("user", (Text("Roll."),)),
        Turn(
            "assistant",
            (
                Reasoning("A die, then.", "c2lnbmVk"),
                RedactedReasoning("c2VjcmV0"),
                OmittedReasoning(),
                Text("Rolling."),
                ToolCall("call_1", "roll_dice_tool", '{"num_sides":6}'),
                ToolCall("an_id_from_another_vendor|" + "0" * 60, "print_tool", '{"message": "half'),
            ),
            own,
        ),
        Turn(
            "tool",
            (
                ToolReturn("call_1", "roll_dice_tool", "success", "4"),
                ToolReturn("an_id_from_another_vendor|" + "0" * 60, "print_tool", "error", "no"),
            ),
        ),
        Turn("assistant", (ToolCall("call_3", "print_tool", ""),), other),
        Turn("tool", (ToolReturn("call_3", "print_tool", "success", (Text("Here:"), PICTURE)),)),
        Turn("assistant", (Text("A four."),), own),
    ]


@every_adapter
@pytest.mark.parametrize("depth", [900, 100_000])
async def test_arguments_of_brackets_without_end_do_not_fail_every_later_request(adapter: Adapter, depth: int) -> None:
    for said in ("[" * depth, "[" * depth + "]" * depth):
        turns = (
            Turn("user", (Text("Print."),)),
            Turn("assistant", (ToolCall("call_1", "print_tool", f'{{"message": {said}}}'),), info(adapter.name).handle),
            Turn("tool", (ToolReturn("call_1", "print_tool", "error", "no"),)),
        )
        async with opened(adapter) as (vendor, model):
            vendor.will(says(TextDelta("I see.")))
            assert said_in(await reply_of(model, asks(adapter, *turns))) == "I see."
            assert b"unreadable_arguments" in msgspec.json.encode(vendor.last.body)


@those_with(lambda one: one.images)
async def test_an_image_reaches_the_vendor(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(says(TextDelta("A shell.")))
        await reply_of(model, asks(adapter, Turn("user", (Text("What is it?"), PICTURE))))
        (turn,) = vendor.asked.turns
        assert [(part.media_type, part.data) for part in turn.parts if isinstance(part, Image)] == [
            (PICTURE.media_type, PICTURE.data)
        ]
        assert Text("What is it?") in turn.parts


@those_with(lambda one: one.images)
async def test_an_image_that_a_tool_returned_reaches_the_vendor(adapter: Adapter) -> None:
    called = (ToolCall("call_1", "print_tool", "{}"), ToolCall("call_2", "print_tool", "{}"))
    returned = (
        ToolReturn("call_1", "print_tool", "success", (Text("Here:"), PICTURE)),
        ToolReturn("call_2", "print_tool", "success", "nothing to see"),
    )
    async with opened(adapter) as (vendor, model):
        reply = await reply_of(
            model, asks(adapter, "[[say:A shell.]]", Turn("assistant", called), Turn("tool", returned))
        )
        assert said_in(reply) == "A shell."
        first, second = [part for turn in vendor.asked.turns for part in turn.parts if isinstance(part, ToolReturn)]
        assert not isinstance(first.content, str)
        assert [type(part) for part in first.content] == [Text, Image]
        assert "nothing to see" in str(second.content)


@every_adapter
async def test_a_whole_turn_with_a_tool_goes_through(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        asked = asks(adapter, "Please call roll_dice_tool with 16 sides")
        reply = await reply_of(model, asked)
        assert calls_in(reply) == [("roll_dice_tool", {"num_sides": 16})]
        turns = (
            *asked.turns,
            Turn("assistant", reply.parts, asked.handle),
            Turn("tool", (ToolReturn(reply.calls[0].id, "roll_dice_tool", "success", "11"),)),
        )
        told = await reply_of(model, msgspec.structs.replace(asked, turns=turns))
        assert said_in(told) == "roll_dice_tool returned 11."
        assert told.finish == "stop"
        assert vendor.connections_made == 1


@every_adapter
async def test_requests_in_a_row_share_one_connection(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(*(says(TextDelta("Hi")) for _ in range(3)))
        for _ in range(3):
            await reply_of(model, asks(adapter))
        assert vendor.connections_made == 1


# Failures

KINDS = pytest.mark.parametrize("kind", list(ERRORS))


@every_adapter
@KINDS
async def test_a_refusal_by_status_becomes_the_right_error(adapter: Adapter, kind: FailureKind) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(Script(failure=Failure(kind, f"It says no to {SECRET_KEY}, that is all", retry_after=7)))
        seen, error = await seen_before_failing(model, asks(adapter))
        assert type(error) is ERRORS[kind]
        assert error.retry_after == 7
        assert "It says no to" in error.message
        assert SECRET_KEY not in error.message
        assert seen == ""


@those_with(lambda one: one.in_stream_errors)
@KINDS
async def test_a_failure_within_the_stream_becomes_the_right_error(adapter: Adapter, kind: FailureKind) -> None:
    async with opened(adapter) as (vendor, model):
        failure = Failure(kind, f"It says no to {SECRET_KEY}, that is all")
        vendor.will(Script(deltas=(TextDelta("Well, "),), failure=failure, fails_after=1))
        seen, error = await seen_before_failing(model, asks(adapter))
        assert type(error) is ERRORS[kind]
        assert "It says no to" in error.message
        assert SECRET_KEY not in error.message
        assert seen == "Well, "


@pytest.mark.slow
@every_adapter
@pytest.mark.parametrize("hangs", HANGS)
async def test_a_vendor_that_falls_silent_is_given_up(adapter: Adapter, hangs: Hang) -> None:
    expected = "Well, " if hangs == "mid_stream" else ""
    await exchange(adapter, says(TextDelta("Yes?")))  # what is loaded on first use is loaded by now
    for first_byte_s in (0.4, 4.0, 12.0):  # a machine may be too slow for the question and the first words to get over
        async with opened(adapter, first_byte_s=first_byte_s, total_s=3 * first_byte_s) as (vendor, model):
            vendor.will(Script(deltas=(TextDelta("Well, "),), hangs=hangs))
            seen, error = await seen_before_failing(model, asks(adapter))
            assert type(error) is ModelTimedOut
            if vendor.exchanges and seen == expected:
                await asyncio.wait_for(vendor.last.gone.wait(), 30)
                return
    pytest.fail("the vendor was never asked, or its first words never came")


@every_adapter
@pytest.mark.parametrize("after", [0, 1])
async def test_a_lost_connection_is_told_as_such(adapter: Adapter, after: int) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(Script(deltas=(TextDelta("Well, "), TextDelta("no")), cut_after=after))
        seen, error = await seen_before_failing(model, asks(adapter))
        assert type(error) is ModelUnavailable
        assert seen == ("Well, " if after else "")


@every_adapter
async def test_a_vendor_that_is_not_there_is_unavailable(adapter: Adapter) -> None:
    vendor, http = FakeVendor(adapter.protocol()), Http()
    async with vendor.serving():
        pass
    _, error = await seen_before_failing(adapter.open(vendor.url, info(adapter.name), http), asks(adapter))
    await http.aclose()
    assert type(error) is ModelUnavailable


@every_adapter
@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>Sign in, please</body></html>",
        b'data: {"half": \n\n',
        b"\xff\xfe\n\n",
        b'data: {"deep": ' + b"[" * 100_000 + b"\n\n",
        b"[" * 50_000,
    ],
    ids=["html", "half", "no text", "deep", "nothing but deep"],
)
async def test_a_body_that_makes_no_sense_is_a_bad_reply(adapter: Adapter, body: bytes) -> None:
    async with opened(adapter) as (vendor, model):
        vendor.will(Script(body=body))
        _, error = await seen_before_failing(model, asks(adapter))
        assert type(error) is BadReply


# How the bytes come


def _long_reply() -> tuple[Script, Reply]:
    folder = ReplyFolder()
    script = says(
        TextDelta("Größe 🐚🐚 „so“ "),
        TextDelta("\u2028 and\r\n more\n\n"),
        *calls(ToolCall("call_1", "print_tool", '{"message":"ж🦀\\n"}')),
        finish="tool_calls",
    )
    for delta in script.deltas:
        folder.add(delta)
    return script, folder.reply()


# Broken characters are of JSON over server-sent events; Amazon frames its own.
in_events = those_with(lambda one: one.name != "bedrock")


def altered(adapter: Adapter, old: bytes, new: bytes) -> Adapter:
    """Whose vendor says something else where it would say `old` for the first time in an event."""

    def protocol() -> Any:
        known: Any = adapter.protocol()
        plainly = known.rendering

        def rendering(path: str, body: dict[str, object]) -> Any:
            made = plainly(path, body)
            plain = made.delta

            def broken(delta: Delta) -> list[bytes]:
                return [event.replace(old, new, 1) for event in plain(delta)]

            made.delta = broken
            return made

        known.rendering = rendering
        return known

    return msgspec.structs.replace(adapter, protocol=protocol)


@in_events
@pytest.mark.parametrize(
    ("broken", "shown"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"\uDE00", "\ufffd"),
        (rb"\ud83d\ud83d\ude00", "\ufffd😀"),
        (rb"\\ud83d", r"\ud83d"),
        (b"\xf0\x9f", "\ufffd"),
        (rb"\u0000", "\0"),
    ],
)
async def test_half_a_character_is_not_worth_a_reply(adapter: Adapter, broken: bytes, shown: str) -> None:
    reply = await exchange(altered(adapter, b"BROKEN", broken), says(TextDelta("Hi BROKEN"), TextDelta(" you")))
    assert said_in(reply) == f"Hi {shown} you"


@in_events
@pytest.mark.parametrize("depth", [900, 100_000])
async def test_an_event_nested_too_deeply_is_a_bad_reply_or_is_read(adapter: Adapter, depth: int) -> None:
    deep = b'{"deep":' + b"[" * depth + b"]" * depth + b","
    try:
        reply = await exchange(altered(adapter, b"{", deep), says(TextDelta("Hi")))
    except BadReply:
        return
    assert said_in(reply) == "Hi"


@pytest.mark.slow
@every_adapter
@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_a_reply_cut_into_equal_pieces_is_the_same_reply(adapter: Adapter, size: int) -> None:
    script, expected = _long_reply()
    reply = await exchange(adapter, msgspec.structs.replace(script, piece_bytes=size))
    assert reply.parts[0] == expected.parts[0]
    assert calls_in(reply) == calls_in(expected)
    assert reply.finish == "tool_calls"


@pytest.mark.slow
@every_adapter
@examples(20)
@given(
    texts=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=6),
)
def test_a_reply_cut_anywhere_is_the_same_reply(adapter: Adapter, texts: list[str], sizes: list[int]) -> None:
    script = says(*(TextDelta(text) for text in texts), piece_bytes=tuple(sizes))
    reply = asyncio.run(exchange(adapter, script))
    assert said_in(reply) == "".join(texts)
    assert reply.finish == "stop"


@every_adapter
async def test_comments_and_unknown_events_are_passed_over(adapter: Adapter) -> None:
    reply = await exchange(adapter, says(TextDelta("Hel"), TextDelta("lo"), noise=True))
    assert reply.parts == (Text("Hello"),)
    assert reply.finish == "stop"


# Leaving


@every_adapter
@pytest.mark.parametrize("hangs", HANGS)
async def test_cancelling_the_reader_closes_the_socket_at_once(adapter: Adapter, hangs: Hang) -> None:
    assert await _soonest(lambda: _seconds_until_gone(adapter, hangs)) < AT_ONCE_S


async def _soonest(leave: Callable[[], Awaitable[float]]) -> float:
    """Of a few tries, up to the first that was soon enough: a machine may stand still for longer than is allowed."""
    soonest = math.inf
    for _ in range(12):
        soonest = min(soonest, await leave())
        if soonest < AT_ONCE_S:
            break
    return soonest


async def _seconds_until_gone(adapter: Adapter, hangs: Hang) -> float:
    async with opened(adapter) as (vendor, model):
        vendor.will(Script(deltas=(TextDelta("Well, "),), hangs=hangs))
        first = asyncio.Event()
        reading = asyncio.create_task(_read(model.stream(asks(adapter)), first))
        opened_by = await _in_state(vendor, hangs, first)
        cancelled_at = time.perf_counter()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        return await _gone_after(opened_by, cancelled_at)


async def _read(deltas: AsyncGenerator[Delta], first: asyncio.Event) -> None:
    async with aclosing(deltas):
        async for _ in deltas:
            first.set()


async def _in_state(vendor: FakeVendor, hangs: Hang, first: asyncio.Event) -> Exchange:
    arrived = await asyncio.wait_for(vendor.arrivals.get(), 30)
    if hangs != "before_headers":
        await asyncio.wait_for(arrived.answered.wait(), 30)
    if hangs == "mid_stream":
        await asyncio.wait_for(first.wait(), 30)
    return arrived


async def _gone_after(one: Exchange, since: float) -> float:
    await asyncio.wait_for(one.gone.wait(), 30)
    assert one.gone_at is not None
    return one.gone_at - since


@every_adapter
async def test_leaving_a_reply_early_closes_the_socket_at_once(adapter: Adapter) -> None:
    async with opened(adapter) as (vendor, model):

        async def leave() -> float:
            vendor.will(Script(deltas=(TextDelta("Well, "), TextDelta("well")), hangs="mid_stream"))
            deltas = model.stream(asks(adapter))
            async for _ in deltas:
                break
            left_at = time.perf_counter()
            await deltas.aclose()
            return await _gone_after(vendor.last, left_at)

        assert await _soonest(leave) < AT_ONCE_S
        assert vendor.open_replies == 0
