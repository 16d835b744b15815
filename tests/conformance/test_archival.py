"""Archival memory as a program uses it: a real server, the unmodified client, an agent that remembers by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import ServerProcess

pytestmark = pytest.mark.slow

TOOLS = ["archival_memory_insert", "archival_memory_search"]


def test_what_an_agent_stored_outlives_a_crash_and_is_shared(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        client = server.client()
        agent = client.agents.create(model="holdfast/offline", name="Ann", tools=TOOLS, include_base_tools=False)
        said = '[[call:archival_memory_insert {"content": "Bob likes tea", "tags": ["drinks"]}@1]]'
        answer = client.agents.messages.create(agent.id, input=said)
        [returned] = [one for one in answer.messages if one.message_type == "tool_return_message"]
        assert (returned.status, returned.tool_return) == ("success", "None")
        server.kill()
        server.start()
        [passage] = client.agents.passages.list(agent.id)
        assert (passage.text, passage.tags) == ("Bob likes tea", ["drinks"])
        other = client.agents.create(model="holdfast/offline", name="Cat", tools=TOOLS, include_base_tools=False)
        assert passage.archive_id is not None
        client.agents.archives.attach(passage.archive_id, agent_id=other.id)
        search = '[[call:archival_memory_search {"query": "what does Bob like?", "tags": ["drinks"]}@1]]'
        answer = client.agents.messages.create(other.id, input=search)
        [returned] = [one for one in answer.messages if one.message_type == "tool_return_message"]
        assert f"'id': '{passage.id}'" in str(returned.tool_return)
        assert [hit.passage.id for hit in client.passages.search(query="tea")] == [passage.id]
        assert {item.agent_id for item in client.messages.search(query="Bob like?")} == {other.id}
