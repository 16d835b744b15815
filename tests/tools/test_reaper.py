"""The process between the fork server and a tool, where there is no pid namespace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The parent ends before its child becomes a reaper, as when a server is killed while it makes a spare child.
ORPHAN = """
import os, sys, time
from holdfast.tools.sandbox import reaper
from holdfast.tools.sandbox.contract import Limits
fork_server = os.getpid()
if os.fork() == 0:
    while os.getppid() == fork_server:
        time.sleep(0.001)
    config = reaper.ReaperConfig(
        fork_server=fork_server,
        scratch=sys.argv[1],
        user=None,
        limits=Limits(),
        confines_signals=False,
        limit_pipe=2,
        cgroup=None,
    )
    print(reaper.run_call(config, lambda: time.sleep(60)), flush=True)
os._exit(0)
"""


def test_a_reaper_whose_fork_server_is_gone_ends_at_once_and_leaves_no_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "call")]
    # Standard output ends with the last process that has it.
    ended = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert ended.stdout == "-9\n", ended.stderr
    assert not (tmp_path / "call").exists()
