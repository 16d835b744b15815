"""Letta Code as PyPI has it under the name `letta`, the newest: it asks for routes that 0.16.8 did not have, too."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.programs.letta_code import FROM_PYPI, LettaCode, call
from tests.serving import ServerProcess


@pytest.fixture
def letta(programs: Path, server: ServerProcess, tmp_path: Path) -> Generator[LettaCode]:
    with LettaCode([str(programs / FROM_PYPI)], server.url, tmp_path) as letta:
        yield letta


def test_the_newest_answers_runs_its_tools_and_finds_its_agent_again(letta: LettaCode, server: ServerProcess) -> None:
    first = letta.run("Hello there [[no_reasoning]]", "-m", "holdfast/offline")
    assert first.result == "You said: Hello there"
    command = "echo tea at four > note.txt; tr a-z A-Z < note.txt"
    second = letta.run("Work [[no_reasoning]] " + call("exec_command", 1, cmd=command, description="shout"))
    assert (letta.project / "note.txt").read_text() == "tea at four\n"
    assert "TEA AT FOUR" in second.result
    assert second.agent_id == first.agent_id
    with server.client() as client:
        (agent,) = client.agents.list()
        assert (agent.id, agent.model) == (first.agent_id, "holdfast/offline")
        assert {run.status for run in client.runs.list(agent_id=agent.id)} == {"completed"}
