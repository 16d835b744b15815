"""The SDK of letta-code, from npm, which bots are built on: one question, an agent without a model, and a session."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.programs.letta_code import LIMIT_S, surroundings
from tests.serving import ServerProcess

SCRIPT = Path(__file__).with_name("sessions.mjs")


def test_a_question_is_answered_and_a_session_goes_on(programs: Path, server: ServerProcess, tmp_path: Path) -> None:
    # Modules are looked for beside the script.
    script = shutil.copy(SCRIPT, programs / "letta-code")
    done = subprocess.run(
        ["node", str(script)],
        cwd=tmp_path,
        env=surroundings(tmp_path, server.url),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked, one, two = (json.loads(line) for line in done.stdout.splitlines())
    assert asked["asked"]["success"] and "Hello there" in asked["asked"]["result"]
    assert [told["answered"]["result"] for told in (one, two)] == ["You said: One", "You said: Two"]
    with server.client() as client:
        agent = client.agents.retrieve(one["agentId"], include=["agent.blocks"])
    assert agent.model == "holdfast/offline"
    assert "I am brief." in [block.value for block in agent.blocks]
