"""What is peculiar to the chat completions API: its words, its dialects, and the liberties that servers take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.core.deltas import CallDelta, Reply, TextDelta
from holdfast.core.messages import AnyPart, Image, Reasoning, RedactedReasoning, Text, ToolCall, ToolReturn, Turn
from holdfast.core.usage import Usage
from holdfast.errors import AuthRejected, BadReply, ModelError, ModelUnavailable, Overloaded, Refused
from holdfast.llm.base import Abilities, ModelInfo, NamedTool
from holdfast.llm.chat.adapter import ChatModel
from holdfast.llm.chat.payload import IMAGE_OF, IMAGES_FOLLOW
from holdfast.llm.chat.reply import CallFragment, ChatCalls, Function, ThinkTags
from holdfast.llm.endpoint import DEFAULT_AZURE_VERSION, OFFICIAL, Endpoint
from holdfast.llm.http import Http
from holdfast.llm.tool_calls import CallIds

from .adapters import info
from .conversations import DICE, request, said_in, tool
from .fakes.chat import ChatProtocol
from .fakes.script import Script
from .fakes.server import FakeVendor
from .test_adapters import reply_of, says, seen_before_failing

PICTURE = Image("image/png", "iVBORw0KGgo=", "low")
SEARCH = tool("search", optional=["limit"], text="string", limit="integer")


def endpoint(provider_type: str, url: str = "http://127.0.0.1:9", **more: Any) -> Endpoint:
    given: dict[str, Any] = {"api_key": "sk-offline-1", **more}
    return Endpoint(provider_name=provider_type, provider_type=provider_type, base_url=url, **given)


def model(provider_type: str = "openai", name: str = "offline", *, reasoning: bool = False) -> ChatModel:
    known = msgspec.structs.replace(info(provider_type, name), abilities=Abilities(reasoning=reasoning))
    return ChatModel(endpoint(provider_type, OFFICIAL.get(provider_type, "http://127.0.0.1:9")), Http(), known)


def payload(provider_type: str = "openai", name: str = "offline", *, reasoning: bool = False, **more: Any) -> Any:
    wanted: dict[str, Any] = {"tools": (DICE,), **more}
    asked = request(*wanted.pop("turns", ("Hi",)), **wanted)
    return model(provider_type, name, reasoning=reasoning).payload(asked)


async def exchange(script: Script, provider_type: str = "openai", **more: Any) -> tuple[Reply, FakeVendor]:
    vendor, http = FakeVendor(ChatProtocol()), Http()
    async with vendor.serving():
        vendor.will(script)
        opened = ChatModel(endpoint(provider_type, f"{vendor.url}/v1"), http, info(provider_type))
        try:
            return await reply_of(opened, request("Hi", tools=more.pop("tools", (DICE,)), **more)), vendor
        finally:
            await http.aclose()


async def read(*chunks: dict[str, Any] | str, provider_type: str = "openai", **more: Any) -> Reply:
    """What becomes of these events; a text stands for itself."""
    events = [chunk if isinstance(chunk, str) else msgspec.json.encode(chunk).decode() for chunk in chunks]
    body = "".join(f"data: {event}\n\n" for event in events).encode()
    return (await exchange(Script(body=body), provider_type, **more))[0]


async def failing(*chunks: dict[str, Any] | str, provider_type: str = "openai") -> ModelError:
    with pytest.raises(ModelError) as caught:
        await read(*chunks, provider_type=provider_type)
    return caught.value


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def fragment(name: str | None, arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return {"type": "function", "function": function, **more}


def made(reply: Reply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.calls]


CONTENTS: list[tuple[list[dict[str, Any]], tuple[AnyPart, ...]]] = [
    ([{"type": "text", "text": "So "}, {"type": "text", "text": "be it."}], (Text("So be it."),)),
    (
        [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Yes."}],
        (Reasoning("Hm."), Text("Yes.")),
    ),
    ([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}], (Reasoning("Hm."), Text("Yes."))),
    ([{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "Yes."}], (Text("Yes."),)),
    ([{"type": "thinking", "thinking": [{"type": "reference"}]}, {"type": "novelty", "of": {}}], ()),
]


@pytest.mark.parametrize(("content", "parts"), CONTENTS)
@pytest.mark.parametrize("provider_type", ["openai", "vllm"])
async def test_content_may_be_a_list_of_texts_and_thoughts(
    content: list[dict[str, Any]], parts: tuple[AnyPart, ...], provider_type: str
) -> None:
    reply = await read(delta(content=content), delta("stop", content=""), "[DONE]", provider_type=provider_type)
    assert reply.parts == parts
    assert reply.finish == "stop"


# The request


async def test_a_request_goes_to_the_path_with_the_key_and_asks_for_a_stream_with_usage() -> None:
    _, vendor = await exchange(says(TextDelta("Hi")))
    sent = vendor.last
    assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
    assert sent.headers["authorization"] == "Bearer sk-offline-1"
    assert sent.headers["content-type"] == "application/json"
    assert (sent.body["stream"], sent.body["stream_options"]) == (True, {"include_usage": True})


async def test_azure_gets_its_own_path_and_header() -> None:
    vendor, http = FakeVendor(ChatProtocol()), Http()
    async with vendor.serving():
        vendor.will(says(TextDelta("Hi")), says(TextDelta("Hi")))
        for options in ({}, {"api_version": "2024-10-21"}):
            target = endpoint("azure", vendor.url, options=options)
            await reply_of(ChatModel(target, http, info("azure", "my-gpt")), request("Hi"))
        await http.aclose()
    first, second = vendor.exchanges
    assert first.path == f"/openai/deployments/my-gpt/chat/completions?api-version={DEFAULT_AZURE_VERSION}"
    assert second.path.endswith("?api-version=2024-10-21")
    assert first.headers["api-key"] == "sk-offline-1"
    assert "authorization" not in first.headers


async def test_headers_of_the_endpoint_are_sent_and_a_server_without_a_key_is_shown_none() -> None:
    vendor, http = FakeVendor(ChatProtocol()), Http()
    async with vendor.serving():
        vendor.will(says(TextDelta("Hi")))
        target = endpoint("openrouter", f"{vendor.url}/v1", api_key=None, headers={"x-title": "Holdfast"})
        await reply_of(ChatModel(target, http, info("openrouter")), request("Hi"))
        await http.aclose()
    assert vendor.last.headers["x-title"] == "Holdfast"
    assert "authorization" not in vendor.last.headers


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (NamedTool("roll_dice_tool"), {"type": "function", "function": {"name": "roll_dice_tool"}}),
    ],
)
def test_the_tool_choice_is_said_in_the_vendors_words(choice: Any, sent: Any) -> None:
    assert payload(tool_choice=choice)["tool_choice"] == sent


@pytest.mark.parametrize("provider_type", ["zai", "moonshot"])
def test_a_vendor_that_cannot_force_a_tool_is_left_to_choose(provider_type: str) -> None:
    assert payload(provider_type, tool_choice="required")["tool_choice"] == "auto"
    assert payload(provider_type, tool_choice="none")["tool_choice"] == "none"


@pytest.mark.parametrize("provider_type", ["lmstudio_openai", "ollama", "unheard_of"])
def test_servers_that_take_only_words_are_told_to_call_the_one_tool_there_is(provider_type: str) -> None:
    """LM Studio: `Invalid tool_choice type: 'object'. Supported string values: none, auto, required`."""
    assert payload(provider_type, tool_choice=NamedTool("roll_dice_tool"))["tool_choice"] == "required"


def test_a_model_that_would_refuse_a_demand_while_it_thinks_is_told_not_to() -> None:
    """DeepSeek: `Thinking mode does not support this tool_choice`."""
    on = {"thinking": {"type": "enabled"}}
    for choice in ("required", NamedTool("roll_dice_tool")):
        assert payload("deepseek", tool_choice=choice, settings=on)["thinking"] == {"type": "disabled"}
    assert payload("deepseek", settings=on)["thinking"] == {"type": "enabled"}
    assert "thinking" not in payload("deepseek", tool_choice="required", tools=())


@pytest.mark.parametrize("parallel", [True, False])
def test_the_parallel_flag_is_sent_where_it_is_understood(parallel: bool) -> None:
    assert payload(parallel=parallel)["parallel_tool_calls"] is parallel
    assert payload("vllm", parallel=parallel)["parallel_tool_calls"] is parallel
    assert "parallel_tool_calls" not in payload("ollama", parallel=parallel)
    assert "parallel_tool_calls" not in payload("openai", "o3-mini", parallel=parallel)
    assert "parallel_tool_calls" not in payload(tools=())


@pytest.mark.parametrize(
    ("provider_type", "name"),
    [("openai", "max_completion_tokens"), ("azure", "max_completion_tokens"), ("groq", "max_completion_tokens")]
    + [(one, "max_tokens") for one in ("ollama", "vllm", "sglang", "openrouter", "deepseek", "together", "unheard_of")],
)
def test_the_limit_of_tokens_has_the_name_that_the_vendor_knows(provider_type: str, name: str) -> None:
    sent = payload(provider_type, max_output_tokens=99)
    assert sent[name] == 99
    assert not {"max_tokens", "max_completion_tokens"} - {name} & sent.keys()


def test_a_model_that_reasons_gets_its_effort_and_no_temperature() -> None:
    wishes: dict[str, Any] = {"temperature": 0.5, "settings": {"reasoning": {"reasoning_effort": "low"}}}
    for name in ("o3", "o4-mini", "gpt-5", "gpt-5-mini"):
        sent = payload(name=name, **wishes)
        assert sent["reasoning_effort"] == "low"
        assert "temperature" not in sent
        assert sent["messages"][0]["role"] == "developer"
    assert payload("azure", "deployed", reasoning=True, **wishes)["messages"][0]["role"] == "system"


@pytest.mark.parametrize("provider_type", ["openai", "azure"])
@pytest.mark.parametrize("name", ["gpt-5.4", "gpt-5.5-mini", "gpt-5.10", "gpt-5.6-terra", "gpt-6"])
def test_a_model_that_openai_lets_think_only_without_tools_is_told_not_to_think_with_them(
    provider_type: str, name: str
) -> None:
    high: dict[str, Any] = {"reasoning": {"reasoning_effort": "high"}}
    assert payload(provider_type, name)["reasoning_effort"] == "none"
    assert payload(provider_type, name, settings=high)["reasoning_effort"] == "none"
    assert payload(provider_type, name, settings=high, reasoning=True, tools=())["reasoning_effort"] == "high"
    assert payload("openrouter", f"openai/{name}", settings=high, reasoning=True)["reasoning"] == {"effort": "high"}


def test_older_models_think_with_tools() -> None:
    for name in ("gpt-5", "gpt-5-mini-2025-08-07", "gpt-5.1", "gpt-5.2", "gpt-5.4-chat-latest"):
        assert payload(name=name).get("reasoning_effort") is None


def test_a_model_that_does_not_reason_is_not_told_how_much_to() -> None:
    wishes: dict[str, Any] = {"temperature": 0.5, "settings": {"reasoning": {"reasoning_effort": "low"}}}
    for name in ("gpt-4o", "gpt-5-chat-latest", "olmo-2"):
        sent = payload(name=name, **wishes)
        assert sent["temperature"] == 0.5
        assert "reasoning_effort" not in sent
        assert sent["messages"][0]["role"] == "system"


def test_other_vendors_hear_of_reasoning_in_their_own_words() -> None:
    low: dict[str, Any] = {"reasoning": {"reasoning_effort": "low"}}
    assert payload("openrouter", "openai/gpt-5", settings=low)["reasoning"] == {"effort": "low"}
    assert payload("groq", "openai/gpt-oss-120b", settings=low)["reasoning_effort"] == "low"
    assert "reasoning_effort" not in payload("deepseek", reasoning=True, settings=low)
    off = {"thinking": {"type": "disabled", "budget_tokens": 5, "clear_thinking": False}}
    assert payload("zai", settings=off)["thinking"] == {"type": "disabled", "clear_thinking": False}
    assert "thinking" not in payload("openai", settings=off)


def test_verbosity_and_the_user_are_told_to_those_who_know_the_words() -> None:
    said: dict[str, Any] = {"settings": {"verbosity": "low"}, "user": "agent-1"}
    assert payload(**said)["verbosity"] == "low"
    assert payload(**said)["user"] == "agent-1"
    assert not {"verbosity", "user"} & payload("ollama", **said).keys()


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}},
            {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}},
        ),
        (
            {"type": "json_schema", "json_schema": SCHEMA},
            {"type": "json_schema", "json_schema": {"name": "response", "schema": SCHEMA}},
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
            {"type": "json_schema", "json_schema": {"name": "response", "schema": SCHEMA}},
        ),
    ],
)
def test_a_response_format_is_sent_as_the_vendor_wants_it(wanted: Any, sent: Any) -> None:
    assert payload(response_format=wanted).get("response_format") == sent


def test_a_vendor_without_schemas_is_asked_for_json() -> None:
    for described in (SCHEMA, {"name": "it", "schema": SCHEMA}):
        wanted = {"type": "json_schema", "json_schema": described}
        sent = payload("deepseek", response_format=wanted)
        assert sent["response_format"] == {"type": "json_object"}
        assert msgspec.json.encode(SCHEMA).decode() in sent["messages"][0]["content"]
        assert "JSON" not in payload(response_format=wanted)["messages"][0]["content"]


def test_who_is_asked_for_json_is_told_so_in_the_prompt_too() -> None:
    """OpenAI: `'messages' must contain the word 'json' in some form`; DeepSeek would write blanks to the limit."""
    for provider_type in ("openai", "deepseek", "ollama"):
        sent = payload(provider_type, response_format={"type": "json_object"})
        assert "JSON" in sent["messages"][0]["content"]


def test_only_schemas_that_can_be_strict_are_called_strict() -> None:
    dice, search = payload(tools=(DICE, SEARCH), settings={"strict": True})["tools"]
    assert dice["function"]["strict"] is True
    assert dice["function"]["parameters"]["additionalProperties"] is False
    assert "strict" not in search["function"]
    assert search["function"]["parameters"] == SEARCH.parameters


def test_strictness_needs_a_vendor_that_knows_it_and_someone_who_wants_it() -> None:
    assert "strict" not in payload()["tools"][0]["function"]
    assert "strict" not in payload(settings={"strict": False})["tools"][0]["function"]
    assert "strict" not in payload("ollama", settings={"strict": True})["tools"][0]["function"]
    able = msgspec.structs.replace(info("openai"), abilities=Abilities(strict_tools=True))
    sent = ChatModel(endpoint("openai"), Http(), able).payload(request("Hi", tools=(DICE,)))
    assert sent["tools"][0]["function"]["strict"] is True


async def test_a_strict_schema_is_accepted() -> None:
    reply, _ = await exchange(says(TextDelta("Hi")), settings={"strict": True}, tools=(DICE, SEARCH))
    assert said_in(reply) == "Hi"


# The history


def test_images_of_a_tool_are_shown_by_the_user_after_all_returns() -> None:
    turns = (
        "Hi",
        Turn("assistant", (ToolCall("c1", "a", "{}"), ToolCall("c2", "a", "{}"))),
        Turn(
            "tool",
            (
                ToolReturn("c1", "a", "success", (Text("Here:"), PICTURE)),
                ToolReturn("c2", "a", "success", "nothing"),
            ),
        ),
    )
    shown = [
        {"type": "text", "text": f"{IMAGE_OF}c1:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}},
    ]
    assert payload(turns=turns)["messages"][3:] == [
        {"role": "tool", "tool_call_id": "c1", "content": f"Here:\n{IMAGES_FOLLOW}"},
        {"role": "tool", "tool_call_id": "c2", "content": "nothing"},
        {"role": "user", "content": shown},
    ]
    # What the user says next is part of the same message: some servers insist that roles take turns.
    assert payload(turns=(*turns, "And?"))["messages"][5:] == [
        {"role": "user", "content": [*shown, {"type": "text", "text": "And?"}]}
    ]


def test_a_failed_return_in_several_parts_says_so() -> None:
    """One that is a text alone is in an envelope, which tells."""
    turns = (
        "Hi",
        Turn("assistant", (ToolCall("c1", "a", "{}"), ToolCall("c2", "a", "{}"))),
        Turn(
            "tool",
            (ToolReturn("c1", "a", "error", (Text("It broke."),)), ToolReturn("c2", "a", "success", (Text("Fine."),))),
        ),
    )
    assert [said["content"] for said in payload(turns=turns)["messages"][3:]] == ["Error: It broke.", "Fine."]


def test_a_model_without_eyes_is_told_that_there_was_an_image() -> None:
    blind = msgspec.structs.replace(info("openai"), abilities=Abilities(images=False))
    turns = (
        Turn("user", (Text("Look:"), PICTURE)),
        Turn("assistant", (ToolCall("c1", "a", "{}"),)),
        Turn("tool", (ToolReturn("c1", "a", "success", (PICTURE,)),)),
    )
    sent = ChatModel(endpoint("openai"), Http(), blind).payload(request(*turns))
    assert b"image_url" not in msgspec.json.encode(sent)
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent["messages"][3]["content"] == "[Image omitted]"


def _thoughtful(*thoughts: Reasoning | RedactedReasoning, call: bool = True) -> tuple[Turn | str, ...]:
    if not call:
        return ("Hi", Turn("assistant", (*thoughts, Text("Yes"))), "And?")
    returned = Turn("tool", (ToolReturn("c1", "a", "success", "ok"),))
    return ("Hi", Turn("assistant", (*thoughts, Text("Yes"), ToolCall("c1", "a", "{}"))), returned)


def test_reasoning_is_sent_back_only_to_those_who_want_it() -> None:
    turns = _thoughtful(Reasoning("Hm."))
    assert payload("deepseek", turns=turns)["messages"][2]["reasoning_content"] == "Hm."
    assert payload("openrouter", turns=turns)["messages"][2]["reasoning"] == "Hm."
    for provider_type in ("openai", "ollama", "groq"):
        assert payload(provider_type, turns=turns)["messages"][2].keys() == {"role", "content", "tool_calls"}


def test_a_vendor_that_insists_on_reasoning_gets_it_with_every_reply() -> None:
    """DeepSeek refuses a history with tools in which any reply lacks it; Moonshot takes an empty one for none."""
    for call in (True, False):
        for thought in ("Hm.", ""):
            turns = _thoughtful(*([Reasoning(thought)] if thought else []), call=call)
            assert payload("deepseek", turns=turns)["messages"][2]["reasoning_content"] == thought
            assert payload("moonshot", turns=turns)["messages"][2]["reasoning_content"] == (thought or " ")


async def test_the_details_of_openrouters_reasoning_come_back_as_they_were() -> None:
    signed = {"type": "reasoning.text", "signature": "sig", "format": "anthropic-claude-v1", "index": 0}
    secret = {"type": "reasoning.encrypted", "data": "c2VjcmV0", "id": "rs_1", "format": "openai-responses-v1"}
    reply = await read(
        delta(reasoning="Hm", reasoning_details=[{"type": "reasoning.text", "text": "Hm", "index": 0}]),
        delta(reasoning="m.", reasoning_details=[{"type": "reasoning.text", "text": "m.", "index": 0}]),
        delta(reasoning_details=[{**signed, "text": None}]),
        delta(reasoning="In short.", reasoning_details=[secret]),
        delta(content="Yes"),
        delta("stop"),
        "[DONE]",
        provider_type="openrouter",
    )
    thoughts = [part for part in reply.parts if isinstance(part, Reasoning | RedactedReasoning)]
    assert [part.text for part in thoughts if isinstance(part, Reasoning)] == ["Hmm.", "In short."]
    assert said_in(reply) == "Yes"
    sent = payload("openrouter", turns=_thoughtful(*thoughts))["messages"][2]
    assert sent["reasoning_details"] == [{**signed, "text": "Hmm."}, secret]
    foreign = _thoughtful(Reasoning("Hm.", "sig"), RedactedReasoning("c2VjcmV0"))
    assert payload("openrouter", turns=foreign)["messages"][2]["reasoning_details"] == [
        {"type": "reasoning.text", "signature": "sig", "text": "Hm."},
        {"type": "reasoning.encrypted", "data": "c2VjcmV0"},
    ]


def test_arguments_that_no_template_could_read_are_wrapped() -> None:
    said = ['{"a": 1}', '{ "a" : 1 }', "", '{"half', "[1]"]
    turns = [Turn("assistant", tuple(ToolCall(f"c{n}", "a", text) for n, text in enumerate(said)))]
    sent = [call["function"]["arguments"] for call in payload(turns=turns)["messages"][1]["tool_calls"]]
    assert sent[:3] == ['{"a": 1}', '{ "a" : 1 }', "{}"]
    assert [msgspec.json.decode(text) for text in sent[3:]] == [
        {"unreadable_arguments": '{"half'},
        {"unreadable_arguments": "[1]"},
    ]


async def test_a_tool_whose_name_no_vendor_takes_is_called_by_its_own_name_here() -> None:
    dotted = tool("files.read", path="string")
    assert payload(tools=(dotted,), tool_choice=NamedTool("files.read"))["tools"][0]["function"]["name"] != "files.read"
    reply, vendor = await exchange(Script(), tools=(dotted,), tool_choice=NamedTool("files.read"))
    assert reply.finish is None  # the script says nothing; the next one knows the name
    (sent,) = [one.name for one in vendor.asked.tools]
    answer = await read(delta("tool_calls", tool_calls=[fragment(sent, "{}", index=0, id="c1")]), tools=(dotted,))
    assert made(answer) == [("files.read", "{}")]


# The reply: liberties that servers take with calls


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        pytest.param(
            [
                [fragment("a", "", index=0, id="c1")],
                [fragment(None, '{"x"', index=0)],
                [fragment(None, ":1}", index=0)],
            ],
            [("a", '{"x":1}')],
            id="as OpenAI does it",
        ),
        pytest.param(
            [[fragment("a", '{"x":1}', id="c1")], [fragment("b", "{}", id="c2")]],
            [("a", '{"x":1}'), ("b", "{}")],
            id="no index",
        ),
        pytest.param(
            [[fragment("a", '{"x"', id="c1")], [fragment(None, ":1}")]], [("a", '{"x":1}')], id="no index, in pieces"
        ),
        pytest.param(
            [[fragment("a", "{}", index=0, id="c1"), fragment("a", '{"x":2}', index=0, id="c2")]],
            [("a", "{}"), ("a", '{"x":2}')],
            id="one index for all, new ids",
        ),
        pytest.param(
            [[fragment("a", "{}", index=0, id="c1")], [fragment("b", "{}", index=0, id="c2")]],
            [("a", "{}"), ("b", "{}")],
            id="one index for all, in chunks of their own",
        ),
        pytest.param(
            [[fragment("a", '{"x"', index=0, id="c1")], [fragment("a", ":1}", index=0, id="c1")]],
            [("a", '{"x":1}')],
            id="id and name again with every piece",
        ),
        pytest.param(
            [[fragment("a", '{"x"', index=0, id="")], [fragment("a", ":1}", index=0, id="")]],
            [("a", '{"x":1}')],
            id="name again, empty id",
        ),
        pytest.param(
            [[fragment("a", "{}", index=0, id=""), fragment("a", "{}", index=0, id="")]],
            [("a", "{}"), ("a", "{}")],
            id="whole calls in one chunk, without ids",
        ),
        pytest.param(
            [[fragment("a", '{"x":1}', index=0)], [fragment("a", '{"x":2}', index=0)]],
            [("a", '{"x":1}'), ("a", '{"x":2}')],
            id="whole calls in two chunks, without ids",
        ),
        pytest.param([[fragment("a", {"x": 1}, index=0)]], [("a", '{"x":1}')], id="arguments as an object"),
        pytest.param([[fragment("a", None, index=0, id="c1")]], [("a", "")], id="no arguments"),
        pytest.param(
            [[fragment(None, '{"x"', index=0, id="c1")], [fragment("a", ":1}", index=0)]],
            [("a", '{"x":1}')],
            id="the name comes late",
        ),
        pytest.param(
            [
                [fragment("a", "", index=1, id="c1")],
                [fragment("b", "", index=2, id="c2")],
                [fragment(None, "{}", index=1)],
            ],
            [("a", "{}"), ("b", "")],
            id="counted from one, in turns",
        ),
    ],
)
async def test_calls_are_told_apart_however_they_are_numbered(
    fragments: Sequence[list[dict[str, Any]]], expected: list[tuple[str, str]]
) -> None:
    reply = await read(*(delta(tool_calls=one) for one in fragments), delta("tool_calls"), "[DONE]")
    assert made(reply) == expected
    assert len({call.id for call in reply.calls}) == len(expected)
    assert all(call.id for call in reply.calls)


def test_a_long_call_that_is_named_with_every_fragment_takes_no_longer_than_its_length() -> None:
    """Read anew with every fragment, it would take longer than any test may."""
    calls, number = ChatCalls(CallIds(request("Hi")), {}), 300_000
    calls.read([CallFragment(0, None, Function("a", '{"x": "'))])
    read = [delta for _ in range(number) for delta in calls.read([CallFragment(0, None, Function("a", "word "))])]
    for rest in ('"}', "\n", ""):
        read += calls.read([CallFragment(0, None, Function(None, rest))])
    assert {delta.index for delta in read if isinstance(delta, CallDelta)} == {0}
    [again] = calls.read([CallFragment(0, None, Function("a", "{}"))])
    assert isinstance(again, CallDelta) and again.index == 1


async def test_the_retired_function_call_is_a_call() -> None:
    reply = await read(
        delta(function_call={"name": "a", "arguments": '{"x"'}),
        delta(function_call={"arguments": ":1}"}),
        delta("function_call"),
    )
    assert made(reply) == [("a", '{"x":1}')]
    assert reply.finish == "tool_calls"


async def test_a_reply_with_calls_that_ends_with_stop_ended_with_calls() -> None:
    reply = await read(delta("stop", tool_calls=[fragment("a", "{}", index=0, id="c1")]), "[DONE]")
    assert reply.finish == "tool_calls"


# The reply: text and reasoning


async def test_a_refusal_is_shown_as_text() -> None:
    reply = await read(delta(refusal="I would "), delta(refusal="rather not."), delta("stop"), "[DONE]")
    assert said_in(reply) == "I would rather not."


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_found_under_either_name(field: str) -> None:
    reply = await read(delta(**{field: "Hm."}), delta(content="Yes"), delta("stop"), "[DONE]")
    assert reply.parts == (Reasoning("Hm."), Text("Yes"))


async def test_reasoning_told_under_both_names_is_told_once() -> None:
    reply = await read(delta(reasoning="Hm.", reasoning_content="Hm."), delta("stop"), "[DONE]")
    assert reply.parts == (Reasoning("Hm."),)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("<think>Hm. <b></think>\n\nYes", (Reasoning("Hm. <b>"), Text("Yes"))),
        ("\n<think>Hm.</think>Yes </think> no", (Reasoning("Hm."), Text("Yes </think> no"))),
        ("<thing> is a tag", (Text("<thing> is a tag"),)),
        ("Well: <think>Hm.</think>", (Text("Well: <think>Hm.</think>"),)),
        ("<think>cut </thi", (Reasoning("cut </thi"),)),
        ("<thi", (Text("<thi"),)),
        ("<think></think>Yes", (Text("Yes"),)),
    ],
)
async def test_think_tags_at_the_beginning_are_reasoning(said: str, parts: tuple[Any, ...], size: int) -> None:
    pieces = [said[start : start + size] for start in range(0, len(said), size)]
    local = await read(*(delta(content=piece) for piece in pieces), delta("stop"), "[DONE]", provider_type="ollama")
    assert local.parts == parts
    vendor = await read(*(delta(content=piece) for piece in pieces), delta("stop"), "[DONE]", provider_type="xai")
    assert vendor.parts == (Text(said),)


def test_a_model_that_says_nothing_but_blanks_is_heard_before_it_ends() -> None:
    tags = ThinkTags()
    heard = [delta for _ in range(2_000) for delta in tags.split("\n")]
    assert "".join(delta.text for delta in heard if isinstance(delta, TextDelta)) == "\n" * 2_000


@pytest.mark.parametrize("provider_type", ["groq", "cerebras", "openai"])
async def test_think_tags_are_found_wherever_a_server_may_leave_them(provider_type: str) -> None:
    """Groq does unless there are tools; and under OpenAI's name, at another address, may be any server of one's own."""
    said = [delta(content="<think>Hm.</think>Yes"), delta("stop"), "[DONE]"]
    assert (await read(*said, provider_type=provider_type)).parts == (Reasoning("Hm."), Text("Yes"))


def test_only_openai_itself_is_instructed_as_a_developer() -> None:
    """Templates of other models pass over a role that they do not know, and with it over the whole prompt."""
    thoughtful = msgspec.structs.replace(info("openai", "qwen3-8b"), abilities=Abilities(reasoning=True))
    for url, role in ((OFFICIAL["openai"], "developer"), ("http://127.0.0.1:9/v1", "system")):
        sent = ChatModel(endpoint("openai", url), Http(), thoughtful).payload(request("Hi"))
        assert sent["messages"][0]["role"] == role


# The reply: usage and end

TOLD = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


USAGES: list[tuple[list[dict[str, Any]], Usage | None]] = [
    ([delta("stop") | {"usage": TOLD}], Usage(10, 5)),
    ([delta("stop"), {"choices": [], "usage": TOLD}], Usage(10, 5)),
    ([delta(content="a") | {"usage": {"prompt_tokens": 10}}, delta("stop") | {"usage": TOLD}], Usage(10, 5)),
    ([delta("stop") | {"x_groq": {"usage": TOLD}}], Usage(10, 5)),
    ([delta("stop") | {"usage": TOLD | {"prompt_tokens_details": {"cached_tokens": 8}}}], Usage(10, 5, 8)),
    ([delta("stop") | {"usage": TOLD | {"prompt_tokens_details": None}}], Usage(10, 5)),
    ([delta("stop") | {"usage": TOLD | {"prompt_cache_hit_tokens": 8}}], Usage(10, 5, 8)),
    (
        [delta("stop") | {"usage": TOLD | {"completion_tokens_details": {"reasoning_tokens": 4}}}],
        Usage(10, 5, reasoning_tokens=4),
    ),
    (
        [delta("stop") | {"usage": TOLD | {"total_tokens": 19, "completion_tokens_details": {"reasoning_tokens": 4}}}],
        Usage(10, 9, reasoning_tokens=4),
    ),
    ([delta("stop") | {"usage": TOLD | {"cached_tokens": 8}}], Usage(10, 5, 8)),
    ([delta("stop") | {"usage": TOLD | {"reasoning_tokens": 4}}], Usage(10, 5, reasoning_tokens=4)),
    ([delta("stop") | {"usage": None}], None),
]


@pytest.mark.parametrize(("chunks", "expected"), USAGES)
async def test_usage_is_found_wherever_it_is_told(chunks: list[dict[str, Any]], expected: Usage | None) -> None:
    assert (await read(*chunks, "[DONE]")).usage == expected


@pytest.mark.parametrize(
    ("said", "finish"), [("stop", "stop"), ("eos", "stop"), ("length", "length"), ("tool_calls", "tool_calls")]
)
async def test_every_finish_reason_is_understood(said: str, finish: str) -> None:
    assert (await read(delta(said, content="a"), "[DONE]")).finish == finish


async def test_a_finish_reason_counts_even_if_the_stream_ends_without_done() -> None:
    assert (await read(delta(content="a"), delta("stop"))).finish == "stop"


async def test_done_without_a_finish_reason_ends_the_reply_of_servers_known_for_it() -> None:
    assert (await read(delta(content="a"), "[DONE]", provider_type="xai")).finish is None
    assert (await read(delta(content="a"), "[DONE]", provider_type="vllm")).finish == "stop"
    assert (await read(delta(content="a"), provider_type="vllm")).finish is None
    call = delta(tool_calls=[fragment("a", "{}", index=0, id="c1")])
    assert (await read(call, "[DONE]", provider_type="vllm")).finish == "tool_calls"


async def test_a_filter_refuses_the_request_unless_something_was_said() -> None:
    assert type(await failing(delta("content_filter"))) is Refused
    cut_call = delta("content_filter", tool_calls=[fragment("a", '{"x"', index=0, id="c1")])
    assert type(await failing(delta(content="a"), cut_call)) is Refused
    reply = await read(delta(content="So far"), delta("content_filter"), "[DONE]")
    assert (said_in(reply), reply.finish) == ("So far", "stop")


@pytest.mark.parametrize(
    ("said", "error"),
    [("error", ModelUnavailable), ("abort", ModelUnavailable), ("insufficient_system_resource", Overloaded)],
)
async def test_a_finish_reason_may_tell_of_a_failure(said: str, error: type[ModelError]) -> None:
    assert type(await failing(delta(content="a"), delta(said), "[DONE]")) is error


ERROR_EVENTS: list[tuple[dict[str, Any], type[ModelError]]] = [
    ({"error": {"message": "no", "type": "server_error", "code": None}}, ModelUnavailable),
    (
        {"error": {"message": "no", "code": 502}, "choices": [{"delta": {}, "finish_reason": "error"}]},
        ModelUnavailable,
    ),
    ({"error": {"message": "no", "code": 401}}, AuthRejected),
    ({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}, Refused),
    ({"error": "out of memory"}, ModelUnavailable),
]


@pytest.mark.parametrize(("event", "error"), ERROR_EVENTS)
async def test_an_error_in_the_place_of_an_event_is_raised(event: dict[str, Any], error: type[ModelError]) -> None:
    assert type(await failing(delta(content="a"), event)) is error


async def test_the_key_is_never_repeated_even_if_it_looks_like_any_word() -> None:
    vendor, http = FakeVendor(ChatProtocol()), Http()
    async with vendor.serving():
        for script in (
            Script(body=b'data: {"error":{"message":"no to correcthorsebattery"}}\n\n'),
            Script(body=b"data: correcthorsebattery\n\n"),
            Script(body=b"no to correcthorsebattery"),
        ):
            vendor.will(script)
            target = endpoint("openai", f"{vendor.url}/v1", api_key="correcthorsebattery")
            _, error = await seen_before_failing(ChatModel(target, http, info("openai")), request("Hi"))
            assert "correcthorsebattery" not in error.message
            assert "[key]" in error.message
        await http.aclose()


async def test_an_error_under_a_status_that_says_otherwise_is_an_error() -> None:
    script = Script(body=b'{"error":{"message":"no","type":"invalid_request_error","code":"invalid_api_key"}}')
    with pytest.raises(AuthRejected):
        await exchange(script)


@pytest.mark.parametrize("event", ["[1, 2]", '{"choices": 3}', '{"half', "nonsense"])
async def test_an_event_that_cannot_be_read_is_a_bad_reply(event: str) -> None:
    assert type(await failing(delta(content="a"), event)) is BadReply


@pytest.mark.parametrize("event", ["{}", "", '{"choices":null}', '{"choices":[]}', '{"choices":[{"delta":null}]}'])
async def test_an_event_that_says_nothing_is_passed_over(event: str) -> None:
    assert (await read(delta(content="a"), event, delta("stop"), "[DONE]")).parts == (Text("a"),)


async def test_what_comes_after_the_last_word_is_not_read() -> None:
    reply = await read(delta(content="a"), delta("stop"), "[DONE]", "nonsense", delta(content="b"))
    assert (reply.parts, reply.finish) == ((Text("a"),), "stop")


async def test_a_server_that_keeps_the_line_open_after_its_last_word_is_not_waited_for() -> None:
    vendor, http = FakeVendor(_NeverEnding()), Http()
    async with vendor.serving():
        vendor.will(Script(hangs="mid_stream"))
        opened = ChatModel(endpoint("openai", f"{vendor.url}/v1"), http, info("openai"))
        reply = await reply_of(opened, request("Hi"))
        assert (said_in(reply), reply.finish) == ("a", "stop")
        await vendor.last.gone.wait()
        await http.aclose()


class _NeverEnding(ChatProtocol):
    def rendering(self, path: str, body: dict[str, object]) -> Any:
        rendering = super().rendering(path, body)
        events = [delta(content="a"), delta("stop")]
        said = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
        rendering.begin = lambda: [*said, b"data: [DONE]\n\ndata: {}\n\n"]
        return rendering


def test_an_unknown_provider_gets_the_fewest_words() -> None:
    known: ModelInfo = info("unheard_of")
    sent = ChatModel(endpoint("unheard_of"), Http(), known).payload(request("Hi", tools=()))
    assert sent.keys() == {"model", "messages", "stream", "stream_options"}
