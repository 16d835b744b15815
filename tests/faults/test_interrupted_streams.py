"""A stream that ends before its run says so. A client must never take half an answer for a whole one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from . import fleet
from .link import links_to
from .listening import Listener, attaching, sending
from .paid_model import REPLY, PaidModel

LEASE_S = 1.0
SLOW = "Hi [[no_reasoning]] [[tokens:150]] [[delay:0.03]]"

pytestmark = pytest.mark.timeout(180)


def check_error_event(listener: Listener) -> None:
    """The last event is an error, and there is no stop reason."""
    assert "stop_reason" not in listener.kinds
    assert listener.names == ["error"], listener.events[-3:]
    assert listener.kinds[-1] == "error_message"


async def check_rest(url: str, listener: Listener) -> None:
    """The run is finished, and its stream can be read again from where it broke."""
    run = await fleet.wait_for_end(url, listener.run_id)
    assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
    whole, rest = attaching(url, listener.run_id, 0), attaching(url, listener.run_id, listener.last_seq_id)
    await whole.read()
    await rest.read()
    assert whole.kinds.count("stop_reason") == rest.kinds.count("stop_reason") == 1
    assert rest.events[-1] == "[DONE]"
    told = [e for e in rest.events if e == "[DONE]" or e["message_type"] != "ping"]
    assert told == [e for e in whole.events if e == "[DONE]" or (e.get("seq_id") or 0) > listener.last_seq_id]


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
async def test_a_stream_that_sigterm_cuts_short_ends_with_an_error_event(
    tmp_path: Path, any_database: str | None, background: bool
) -> None:
    async with fleet.running(tmp_path, any_database, HOLDFAST_DRAIN_S="0.2") as servers:
        server = servers.servers[0]
        listener = sending(server.url, await fleet.make_agent(server.url), SLOW, background=background)
        reading = asyncio.create_task(listener.read())
        await listener.begun.wait()
        await asyncio.to_thread(server.stop)
        await reading
        check_error_event(listener)
        await asyncio.to_thread(server.start)
        if background:
            await check_rest(server.url, listener)
        else:
            assert (await fleet.wait_for_end(server.url, listener.run_id))["status"] == "completed"


async def test_a_stream_whose_server_lost_the_lease_ends_with_an_error_event(tmp_path: Path, postgres_url: str) -> None:
    async with fleet.running(tmp_path, postgres_url, 2, HOLDFAST_LEASE_TTL_S=str(LEASE_S)) as servers:
        stopped, other = servers.servers
        listener = sending(stopped.url, await fleet.make_agent(stopped.url), SLOW, background=True)
        reading = asyncio.create_task(listener.read())
        await listener.begun.wait()
        stopped.pause()
        run = await fleet.wait_for_end(other.url, listener.run_id)
        stopped.resume()
        await reading
        assert run["status"] == "completed"
        check_error_event(listener)
        await check_rest(other.url, listener)
        await servers.read_database(idle=True)


async def test_a_reader_of_pieces_of_which_nothing_was_stored_is_told_that_they_are_void(
    tmp_path: Path, postgres_url: str
) -> None:
    """They were shown while the database did not answer, by a server that was killed then."""
    model = PaidModel()
    model.may_answer.clear()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(model.listening())
        links = await stack.enter_async_context(links_to(postgres_url, 2))
        own = [link.environment | model.environment for link in links]
        settings = {"HOLDFAST_LEASE_TTL_S": str(4 * LEASE_S)}  # in which the pieces have to be shown
        servers = await stack.enter_async_context(fleet.running(tmp_path, postgres_url, 2, own, **settings))
        killed, other = servers.servers
        agent_id = await fleet.make_agent(other.url, model=model.handle)
        listener = sending(killed.url, agent_id, "Hi", background=True)
        reading = asyncio.create_task(listener.read())
        await asyncio.wait_for(model.asking.wait(), 60)
        await fleet.poll(listener.is_accepted)
        async with links[0].silent():
            model.may_answer.set()
            await fleet.poll(listener.has_content)
            await asyncio.to_thread(killed.kill)
        await reading
        model.let_go.set()
        rest = attaching(other.url, listener.run_id, listener.last_seq_id)
        await rest.read()
        await servers.read_database(idle=True)
    seen = {event["id"] for event in listener.events if event["message_type"] == "assistant_message"}
    void = [event["event_data"]["abandoned_message_ids"] for event in rest.events if "event_data" in event]
    assert rest.kinds[-2:] == ["stop_reason", "usage_statistics"]
    assert "".join(rest.text()) == REPLY
    assert seen, "nothing was shown"
    assert seen <= {message_id for each in void for message_id in each}
