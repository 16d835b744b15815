"""The programs of the how-to pages run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import ServerProcess

DOCS = Path(__file__).parents[2] / "docs"
PRINTED = {
    "events-and-statistics.md": ["hello", "end_turn", "True 0"],
    "sleeptime.md": ["ada-sleeptime", "1"],
    "identities.md": ["True", "Ada"],
    "groups.md": ["['You said: What is to be done?', 'You said: ada: You said: What is to be done?']"],
}


@pytest.mark.parametrize("page", PRINTED)
def test_the_program_of_a_page_runs_as_it_stands(server: ServerProcess, page: str) -> None:
    program = "".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))
    there = program.replace("http://127.0.0.1:8283", server.url)
    assert there != program
    ran = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.splitlines()) == (0, PRINTED[page]), ran.stderr
