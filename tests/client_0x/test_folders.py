"""Folders, by their present name and by the retired one."""

from __future__ import annotations

import time
from typing import Any

from tests.client_0x.conftest import LIMIT_S, MakeAgent
from tests.client_0x.refusals import refused

TOOLS = {"open_files", "grep_files", "semantic_search_files"}


def completed(list_files: Any, **options: Any) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        [file] = list_files(**options)
        if file.processing_status in ("completed", "error"):
            return file
        time.sleep(0.02)
    raise AssertionError("it was not ingested")


def test_a_source_is_made_filled_attached_and_deleted(client: Any, make_agent: MakeAgent) -> None:
    source = client.sources.create(name="old papers", description="of ours")
    assert client.sources.retrieve(source_id=source.id).name == "old papers"
    assert client.sources.modify(source_id=source.id, description="changed").description == "changed"
    assert source.id in [found.id for found in client.sources.list()]
    assert client.sources.count() >= 1
    assert client.sources.retrieve_by_name(source_name="old papers") == source.id
    client.sources.files.upload(source_id=source.id, file=("a.txt", b"tigers\nbears\n"))
    file = completed(client.sources.files.list, source_id=source.id, include_content=True)
    assert (file.file_name, file.processing_status, file.content) == ("a.txt", "completed", "tigers\nbears\n")
    assert [passage.text for passage in client.sources.passages.list(source_id=source.id)] == ["tigers\nbears"]
    agent = make_agent()
    attached = client.agents.sources.attach(agent_id=agent.id, source_id=source.id)
    assert {tool.name for tool in attached.tools} >= TOOLS
    assert [found.id for found in client.agents.sources.list(agent_id=agent.id)] == [source.id]
    detached = client.agents.sources.detach(agent_id=agent.id, source_id=source.id)
    assert not TOOLS & {tool.name for tool in detached.tools}
    client.sources.files.delete(source_id=source.id, file_id=file.id)
    assert client.sources.files.list(source_id=source.id) == []
    client.sources.delete(source_id=source.id)
    with refused(404):
        client.sources.retrieve(source_id=source.id)


def test_a_folder_is_filled_and_its_files_opened_and_closed(client: Any, make_agent: MakeAgent) -> None:
    folder = client.folders.create(name="papers")
    client.folders.files.upload(folder_id=folder.id, file=("a.txt", b"tigers\n"))
    file = completed(client.folders.files.list, folder_id=folder.id)
    agent = make_agent()
    assert {tool.name for tool in client.agents.folders.attach(agent_id=agent.id, folder_id=folder.id).tools} >= TOOLS
    client.agents.files.list(agent_id=agent.id)  # it throws the answer away
    client.agents.files.close(agent_id=agent.id, file_id=file.id)
    assert client.agents.files.open(agent_id=agent.id, file_id=file.id) == []
    assert client.agents.files.close_all(agent_id=agent.id) == ["papers/a.txt"]
    assert [found.id for found in client.agents.folders.list(agent_id=agent.id)] == [folder.id]
    assert not TOOLS & {
        tool.name for tool in client.agents.folders.detach(agent_id=agent.id, folder_id=folder.id).tools
    }
    client.folders.delete(folder_id=folder.id)


def test_what_cannot_be_read_is_refused(client: Any) -> None:
    folder = client.folders.create(name="refusals")
    with refused(415):
        client.folders.files.upload(folder_id=folder.id, file=("a.exe", b"MZ", "application/x-msdownload"))
    with refused(409):
        client.folders.create(name="refusals")
    client.folders.delete(folder_id=folder.id)
