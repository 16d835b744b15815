"""What users of a vendor meet, with every adapter: hanging up, memory, images, thoughts that are signed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.conformance.answers import asked_ids, deny
from tests.conformance.checks import check_next_message_works, check_told_is_stored, rows
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import MODES, Json, Mode, Turn, begin, eventually, send
from tests.conformance.proofs import proofs
from tests.conformance.vendors import Site, Standing, VendorProcess, with_every_adapter

pytestmark = with_every_adapter

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


# --- hanging up ---


async def asked_once_more(fake: VendorProcess, before: Standing) -> None:
    async def look() -> bool | None:
        standing = fake.standing()
        return True if standing.asked > before.asked and standing.open else None

    await eventually(look, "the vendor was never asked")


MOMENTS = {
    "before it has answered": ("BT", "Think hard [[stall]]"),
    "while it thinks": ("T", "[[reasoning:50]] [[stall_after:5]]"),
    "amid its words": ("TG", "[[no_reasoning]] [[tokens:50]] [[stall_after:5]]"),
    "while it talks": ("B", "[[no_reasoning]] [[tokens:2000]] [[delay:0.01]]"),
    "amid a call": ("T", "Call print_tool with message 'far too long to be finished' [[stall_after:5]]"),
}


@pytest.mark.parametrize(
    ("moment", "mode"), [(moment, MODES[letter]) for moment, (letters, _) in MOMENTS.items() for letter in letters]
)
async def test_a_cancel_hangs_up_on_the_vendor(
    client: AsyncLetta, make_agent: MakeAgent, fake: VendorProcess, moment: str, mode: Mode
) -> None:
    agent = await make_agent("print_tool")
    before = fake.standing()
    turn = begin(client, mode, agent, MOMENTS[moment][1])
    run_id = await turn.run_id()
    await asked_once_more(fake, before)
    await heard_something(turn, silent=moment == "before it has answered")

    assert await client.agents.messages.cancel(agent_id=agent) == {run_id: "cancelled"}

    after = fake.check_none_open()
    assert (after.asked, after.left) == (before.asked + 1, before.left + 1)
    assert (await turn.outcome()).stop_reason == "cancelled"
    await check_next_message_works(client, agent)


async def heard_something(turn: Turn, *, silent: bool) -> None:
    if turn.mode in ("token", "background") and not silent:
        await turn.until(lambda event: event["message_type"] != "ping")


async def test_a_cancel_of_many_runs_at_once_hangs_up_on_all_of_them(
    client: AsyncLetta, make_agent: MakeAgent, fake: VendorProcess
) -> None:
    agent = await make_agent()
    threads = [agent, *[(await client.conversations.create(agent_id=agent)).id for _ in range(4)]]
    before = fake.standing()
    turns = [begin(client, "token", thread, "[[tokens:50]] [[stall_after:9]]") for thread in threads]
    for turn in turns:
        await turn.until(lambda event: event["message_type"] == "assistant_message")
    assert fake.standing().open == 5

    await client.agents.messages.cancel(agent_id=agent)

    assert fake.check_none_open().left == before.left + 5
    assert [(await turn.outcome()).stop_reason for turn in turns] == ["cancelled"] * 5


async def test_who_stops_reading_does_not_hang_up_on_the_vendor(
    client: AsyncLetta, make_agent: MakeAgent, fake: VendorProcess
) -> None:
    agent = await make_agent()
    before = fake.standing()
    messages: Any = client.agents.messages
    said = [{"role": "user", "content": "[[no_reasoning]] [[tokens:40]] [[delay:0.01]]"}]
    stream = await messages.stream(agent_id=agent, messages=said, stream_tokens=True)
    async for event in stream:
        if event.message_type == "assistant_message":
            break
    await stream.close()

    async def look() -> bool | None:
        return True if (await rows(client, agent))[-1] == "assistant_message" else None

    await eventually(look, "the reply was not stored")
    assert fake.check_none_open().left == before.left
    await check_next_message_works(client, agent)


# --- tools and memory ---


async def test_an_agent_remembers_with_its_memory_tools(
    client: AsyncLetta, make_agent: MakeAgent, fake: VendorProcess
) -> None:
    agent = await make_agent(
        include_base_tools=True, memory_blocks=[{"label": "human", "value": "Name: Chad"}], parallel=False
    )
    edit = '[[call:memory_replace {"label": "human", "old_string": "Chad", "new_string": "Ada Lovelace"}]]'

    told = await send(client, "token", agent, f"Remember my name. {edit}")

    assert told.only("tool_return_message")["status"] == "success"
    assert told.stop_reason == "end_turn"
    block = await client.agents.blocks.retrieve(agent_id=agent, block_label="human")
    assert block.value == "Name: Ada Lovelace"
    assert "Ada Lovelace" in fake.last_request(), "the model sees what it has just learned"
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)


async def test_calls_made_at_once_get_their_own_returns(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("print_tool", "broken_tool")
    calls = [f'[[call:print_tool {{"message": "{word}"}}]]' for word in ("one", "two")]
    said = f'{calls[0]} [[call:broken_tool {{"message": "three"}}]] {calls[1]}'

    told = await send(client, "token", agent, said)

    returns = told.only("tool_return_message")["tool_returns"]
    made = [call["tool_call_id"] for call in told.only("tool_call_message")["tool_calls"]]
    assert [back["tool_call_id"] for back in returns] == made
    assert [back["status"] for back in returns] == ["success", "error", "success"]
    assert told.stop_reason == "end_turn"
    assert "print_tool returned one." in told.text
    assert "print_tool returned two." in told.text
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)


async def test_a_call_with_no_arguments_and_one_with_nested_ones(client: AsyncLetta, make_agent: MakeAgent) -> None:
    """What a client's tool takes travels through the vendor unharmed, down to the kinds of its values."""
    agent = await make_agent()
    plain: Json = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    inner = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": ["number", "null"]}}}
    deep = {
        "name": "draw",
        "description": "Draws.",
        "parameters": {
            "type": "object",
            "properties": {"points": {"type": "array", "items": inner}, "fill": {"type": "boolean"}},
            "required": ["points"],
        },
    }
    arguments = '{"points": [{"x": 1, "y": null}, {"x": 2, "y": 0.5}], "fill": true}'

    paused = await send(
        client, "token", agent, f"[[call:look {{}}]] [[call:draw {arguments}]]", client_tools=[plain, deep]
    )

    look, draw = paused.last["tool_calls"]
    assert (look["name"], draw["name"]) == ("look", "draw")
    assert json.loads(look["arguments"]) == {}
    assert json.loads(draw["arguments"]) == json.loads(arguments)
    denied = await send(client, "token", agent, deny(*asked_ids(paused.last), reason="no canvas"))
    assert "no canvas" in denied.text
    await check_next_message_works(client, agent)


# --- what is shown ---


@pytest.mark.parametrize("mode", ["blocking", "token"])
async def test_an_image_reaches_the_model(
    client: AsyncLetta, make_agent: MakeAgent, fake: VendorProcess, mode: Mode
) -> None:
    agent = await make_agent("print_tool")
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "text", "text": "Call print_tool with 'seen'"}, {"type": "image", "source": source}]

    told = await send(client, mode, agent, [{"role": "user", "content": content}])

    assert told.stop_reason == "end_turn"
    assert told.only("tool_return_message")["tool_return"] == "seen"
    assert PIXEL in shown_to(fake)
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)
    assert PIXEL in shown_to(fake), "it stays in the conversation"


def shown_to(fake: VendorProcess) -> str:
    """Vendors take both alphabets of base64."""
    return fake.last_request().replace("-", "+").replace("_", "/")


# --- what the model thought ---


async def test_what_the_model_thought_comes_back_to_it_as_it_was(
    client: AsyncLetta, make_agent: MakeAgent, fake: VendorProcess, site: Site
) -> None:
    """The fakes refuse a proof that is missing where it must be, and one that is not with what it was given to."""
    agent = await make_agent("print_tool", "roll_dice")

    first = await send(client, "token", agent, "Call print_tool with 'one', then call roll_dice with 6 sides")
    within = proofs(fake, site)
    second = await send(client, "blocking", agent, "Call print_tool with 'two' and roll_dice with 20 sides")

    assert first.types.count("tool_return_message") == 2
    assert first.types.count("reasoning_message") == 3
    assert len(within) >= 2, fake.last_request()
    assert set(within) <= set(proofs(fake, site)), "also in the next turn"
    assert second.stop_reason == "end_turn"
    await check_told_is_stored(client, agent, second)
    await check_next_message_works(client, agent)
