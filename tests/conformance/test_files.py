"""Folders through a socket: the program of the documentation, and an agent that searches its files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from letta_client import APIStatusError, AsyncLetta

from tests.serving import ServerProcess

from .conftest import MakeAgent
from .modes import send

PAGE = Path(__file__).parents[2] / "docs" / "files.md"


def test_the_program_of_the_page_on_files_runs_as_it_stands(server: ServerProcess) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    there = program.replace("http://127.0.0.1:8283", server.url)
    assert there != program
    ran = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True, check=False)
    expected = (
        "handbook/office.md True [Viewing file start (out of 3 lines)]\n1: # Hours\n2: \n3: The office closes at six.\n"
    )
    assert (ran.returncode, ran.stdout) == (0, expected), ran.stderr


async def test_a_large_file_that_is_refused_at_once_is_refused_in_words(client: AsyncLetta) -> None:
    """The answer is given while the file is still coming in."""
    folder = await client.folders.create(name="refusals")
    with pytest.raises(APIStatusError) as refused:
        await client.folders.files.upload(folder.id, file=("a.exe", b"x" * 20_000_000, "application/x-msdownload"))
    assert (refused.value.status_code, "a.exe" in str(refused.value.body)) == (415, True)
    with pytest.raises(APIStatusError) as refused:
        await client.folders.files.upload(folder.id, file=("a.txt", b"x" * 60_000_000))
    assert (refused.value.status_code, "HOLDFAST_MAX_FILE_BYTES" in str(refused.value.body)) == (413, True)
    await client.folders.delete(folder.id)


async def test_an_agent_opens_a_file_and_its_next_step_sees_it(client: AsyncLetta, make_agent: MakeAgent) -> None:
    folder = await client.folders.create(name="secrets")
    file = await client.folders.files.upload(folder.id, file=("a.txt", b"nothing\nswordfish\n"))
    while file.processing_status not in ("completed", "error"):
        file = await client.folders.files.retrieve(file.id, folder_id=folder.id)
    agent = await make_agent()
    await client.agents.folders.attach(folder.id, agent_id=agent)
    await client.agents.files.close_all(agent)
    told = await send(client, "blocking", agent, 'call grep_files with {"pattern": "sword"}')
    assert "> 2: swordfish" in told.text
    request = '{"file_requests": [{"file_name": "secrets/a.txt", "offset": 1, "length": 1}]}'
    told = await send(client, "blocking", agent, f"call open_files with {request}")
    assert "* Opened secrets/a.txt (lines 2-2)" in told.text
    [page] = [seen async for seen in client.agents.files.list(agent)]
    assert (page.is_open, page.start_line, page.end_line) == (True, 2, 2)
    await client.folders.delete(folder.id)
