"""The program of the page about agent files runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.serving import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "agent-files.md"


def test_the_program_of_the_page_runs_as_it_stands(server: ServerProcess, tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    there = program.replace("http://127.0.0.1:8283", server.url)
    assert there != program
    ran = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "ranger Ada 4\n"), ran.stderr
    assert (tmp_path / "scout.af").read_text().startswith('{\n  "agents": [')
