"""What the ordinary records know of themselves."""

from __future__ import annotations

import pytest

from holdfast.core.records import RETRY_SAFE_TAG, AgentFile, Folder, Run, RunStatus, Thread, Tool


def test_the_default_thread_of_an_agent_is_no_conversation() -> None:
    default = Thread(id="agent-1", agent_id="agent-1")
    assert default.is_default and default.conversation_id is None


def test_a_conversation_is_known_by_its_own_id() -> None:
    conversation = Thread(id="conv-1", agent_id="agent-1")
    assert not conversation.is_default and conversation.conversation_id == "conv-1"


@pytest.mark.parametrize(
    ("status", "active"),
    [("created", True), ("running", True), ("completed", False), ("failed", False), ("cancelled", False)],
)
def test_a_run_is_active_until_it_has_ended(status: RunStatus, active: bool) -> None:
    assert Run(id="run-1", agent_id="agent-1", thread_id="conv-1", status=status).is_active is active


def test_a_run_belongs_to_a_conversation_unless_it_is_in_the_default_thread() -> None:
    inside = Run(id="run-1", agent_id="agent-1", thread_id="conv-1", status="running")
    outside = Run(id="run-1", agent_id="agent-1", thread_id="agent-1", status="running")
    assert (inside.conversation_id, outside.conversation_id) == ("conv-1", None)


def test_a_tool_is_retry_safe_when_its_owner_has_tagged_it_so() -> None:
    tool = Tool(id="tool-1", name="t", tool_type="custom", description="", json_schema={}, tags=(RETRY_SAFE_TAG,))
    other = Tool(id="tool-2", name="u", tool_type="custom", description="", json_schema={})
    assert tool.retry_safe and not other.retry_safe


def test_a_folder_is_an_archive_to_the_passages_of_its_files() -> None:
    folder = Folder(id="source-1", organization_id="org-1", name="shelf", chunk_size=300, embedding="openai/small")
    assert (folder.archive.id, folder.archive.embedding) == ("source-1", "openai/small")


def test_a_file_is_named_with_its_folder() -> None:
    file = AgentFile(
        id="attached-1",
        agent_id="agent-1",
        file_id="file-1",
        folder_id="source-1",
        folder_name="shelf",
        name="a.txt",
        status="completed",
        error=None,
        lines=1,
        is_open=False,
    )
    assert file.full_name == "shelf/a.txt"
