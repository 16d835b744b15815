"""ai-memory-sdk from PyPI: a sleeptime agent for every user, which writes its blocks; messages in archival memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.conformance.vendors import VendorProcess
from tests.programs import ai_memory
from tests.serving import ServerProcess
from tests.surroundings import calm

LIMIT_S = 90
MODEL = "openai/gpt-4.1"  # which the program names


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    """Beside the fake of OpenAI, which has the offline model for a brain."""
    with (
        VendorProcess("chat") as vendor,
        ServerProcess(
            tmp_path / "data",
            OPENAI_BASE_URL=f"{vendor.url}/v1",
            OPENAI_API_KEY="sk-offline",
            HOLDFAST_MODELS=f"{MODEL}=128000",
        ) as server,
    ):
        yield server


def test_what_a_user_says_is_learned_and_found(programs: Path, server: ServerProcess) -> None:
    done = subprocess.run(
        [sys.executable, ai_memory.__file__],
        env=calm(os.environ) | {"PYTHONPATH": str(programs / "ai-memory-sdk"), "HOLDFAST_URL": server.url},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told, deleted = done.stdout.splitlines()
    printed = json.loads(told)
    assert printed["found_id"] == printed["agent_id"]
    assert printed["human"] == "Ada.\nLikes tea."
    assert "Ada.\nLikes tea.</human>" in printed["prompt"]
    assert printed["summary"] == ""
    assert [text.startswith("I like tea") for text in printed["found"]] == [True]
    assert (printed["policies"], printed["labels"]) == ("Be kind.", ["policies"])
    assert deleted.startswith("Deleted agent")
    check_stored(server, printed["agent_id"], printed["run_id"])


def check_stored(server: ServerProcess, agent_id: str, run_id: str) -> None:
    with server.client() as client:
        (agent,) = client.agents.list(include=["agent.tags", "agent.blocks"])
        assert (agent.id, agent.agent_type) == (agent_id, "sleeptime_agent")
        assert set(agent.tags) == {"ada", "ai-memory-sdk"}
        assert {block.label: block.value for block in agent.blocks} == {"human": "Ada.\nLikes tea.", "summary": ""}
        assert client.runs.retrieve(run_id).status == "completed"
        passages = client.agents.passages.list(agent_id)
        assert [set(passage.tags or []) for passage in passages] == [{"ai-memory-sdk"}, {"user", "ai-memory-sdk"}]
        assert list(client.blocks.list(label="policies")) == []
