"""A stream that ends before its run says so. A client must never take half an answer for a whole one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from . import fleet
from .listening import Listener, attaching, sending

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
