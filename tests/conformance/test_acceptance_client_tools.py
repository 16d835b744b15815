"""Tools that only the client can run: they pause the agent as an approval does, and the client brings the return."""

from __future__ import annotations

from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.conformance.answers import answer, approve, asked_ids, deny, returned
from tests.conformance.checks import check_next_message_works, check_told_is_stored, history, read_agent, rows
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, Mode, in_modes, send
from tests.conformance.vendors import with_every_vendor

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ASK = "Call read_screen with window 'main'"


def client_tool(name: str = "read_screen") -> Json:
    properties = {"window": {"type": "string", "description": "Which window."}}
    return {
        "name": name,
        "description": "Reads what is on the user's screen.",
        "parameters": {"type": "object", "properties": properties, "required": ["window"]},
    }


@in_modes("BTGA", adapters="BT")
async def test_a24_a_client_tool_pauses_and_goes_on_with_the_clients_return(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    paused = await send(client, mode, agent, ASK, client_tools=[client_tool()])
    assert paused.stop_reason == "requires_approval"
    assert paused.last["tool_calls"][0]["name"] == "read_screen"
    (call,) = asked_ids(paused.last)
    told = await send(client, mode, agent, answer([returned(call, "a login form")]), client_tools=[client_tool()])

    assert told.messages[0]["tool_return"] == "a login form"
    assert told.text == "read_screen returned a login form."
    assert told.stop_reason == "end_turn"
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)


@in_modes("BT")
async def test_a24_a_client_tool_takes_the_place_of_the_servers_for_one_request(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")
    mine = client_tool("print_tool") | {
        "parameters": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    }

    paused = await send(client, mode, agent, "Call print_tool with 'x'", client_tools=[mine])
    assert paused.stop_reason == "requires_approval"
    told = await send(client, mode, agent, answer([returned(call, "mine") for call in asked_ids(paused.last)]))
    assert told.text == "print_tool returned mine."

    plain = await send(client, mode, agent, "Call print_tool with 'theirs'")
    assert plain.only("tool_return_message")["tool_return"] == "theirs"
    await check_next_message_works(client, agent)


@in_modes("BT", adapters="T")
async def test_a24_a_return_may_hold_an_image(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make_agent()
    paused = await send(client, mode, agent, ASK, client_tools=[client_tool()])
    (call,) = asked_ids(paused.last)
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    parts = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]

    told = await send(client, mode, agent, answer([returned(call, parts)]))

    back = told.messages[0]
    assert back["tool_return"] == "see [Image omitted]"
    text, image = back["tool_returns"][0]["tool_return"]
    assert text["text"] == "see"
    assert image["source"]["data"] == PIXEL
    assert image["source"]["media_type"] == "image/png"
    assert told.stop_reason == "end_turn"
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)


@with_every_vendor
async def test_a24_a_failed_return_keeps_its_status(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    paused = await send(client, "blocking", agent, ASK, client_tools=[client_tool()])
    parts = [{"type": "text", "text": "no screen"}]

    told = await send(
        client, "blocking", agent, answer([returned(call, parts, "error") for call in asked_ids(paused.last)])
    )

    assert told.messages[0]["status"] == "error"
    assert told.messages[0]["tool_returns"][0]["status"] == "error"
    stored = [each for each in await history(client, agent) if each["message_type"] == "tool_return_message"]
    assert stored[0]["status"] == "error"
    assert "failed" in told.text
    await check_next_message_works(client, agent)


async def test_a24_approving_a_client_tool_is_refused_with_what_to_send_instead(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    paused = await send(client, "blocking", agent, ASK, client_tools=[client_tool()])
    calls = asked_ids(paused.last)

    refused = await send(client, "blocking", agent, approve(*calls))

    assert refused.status == 400
    assert "must be answered with a tool return" in refused.error_text
    assert (await read_agent(client, agent))["pending_approval"]["id"] == paused.last["id"]
    denied = await send(client, "blocking", agent, deny(*calls, reason="no screen today"))
    assert "no screen today" in denied.text
    await check_next_message_works(client, agent)


@pytest.mark.parametrize("text", ["x" * 200_000])
async def test_a24_a_huge_return_is_cut_before_it_is_stored(
    client: AsyncLetta, make_agent: MakeAgent, text: str
) -> None:
    agent = await make_agent()
    paused = await send(client, "blocking", agent, ASK, client_tools=[client_tool()])

    told = await send(client, "blocking", agent, answer([returned(call, text) for call in asked_ids(paused.last)]))

    back: Any = told.messages[0]["tool_return"]
    assert len(back) < 120_000
    assert "truncated" in back[-200:]
    assert (await rows(client, agent))[-1] == "assistant_message"
    await check_next_message_works(client, agent)
