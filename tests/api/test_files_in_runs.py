"""Files in the middle of a run: its next step sees what it opens, and a search ends when the run is cancelled."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest

from tests.scenario import eventually
from tests.served import ServedClient, served

pytestmark = pytest.mark.slow


async def an_agent_with(client: ServedClient, name: str, content: bytes) -> str:
    folder = await client.folders.create(name="docs")
    file = await client.folders.files.upload(folder.id, file=(name, content))
    while file.processing_status not in ("completed", "error"):
        await asyncio.sleep(0.01)  # nobody tells when it is ingested
        file = await client.folders.files.retrieve(file.id, folder_id=folder.id)
    agent = await client.agent()
    await client.agents.folders.attach(folder.id, agent_id=agent.id)
    await client.agents.files.close_all(agent.id)
    return agent.id


def searching() -> bool:
    children = psutil.Process(os.getpid()).children(recursive=True)
    return any("grep_child" in " ".join(child.cmdline()) for child in children if child.is_running())


async def test_what_a_run_opens_is_in_the_system_message_of_its_next_step(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent_id = await an_agent_with(client, "a.txt", b"nothing\nswordfish\n")
        asked = '{"file_requests": [{"file_name": "docs/a.txt", "offset": 1, "length": 1}]}'
        await client.say(agent_id, f"call open_files with {asked}")
        [system] = [
            message
            for message in await client.ask("GET", f"/v1/agents/{agent_id}/messages", order="asc")
            if message["message_type"] == "system_message"
        ]
        assert "[Viewing lines 2 to 2 (out of 2 lines)]\n2: swordfish" in system["content"]


async def test_a_cancel_ends_a_search_that_would_take_for_ever(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent_id = await an_agent_with(client, "a.txt", b"a" * 40 + b"!\n")
        run = await client.agents.messages.create_async(agent_id, input='call grep_files with {"pattern": "(a+)+$"}')
        await eventually(searching)
        began = time.monotonic()
        await client.agents.messages.cancel(agent_id, run_ids=[run.id])
        while run.status not in ("cancelled", "completed", "failed"):
            run = await client.runs.retrieve(run.id)
        assert run.status == "cancelled"
        assert not searching()
        assert time.monotonic() - began < 10
