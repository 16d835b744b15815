"""The server under measurement: a real process with its own data directory, and what the kernel says of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

_CPU_CLOCK = 2  # of another process: how the kernel encodes what clock_getcpuclockid(3) gives
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The last: a server that compiles itself at every start has more memory, and its tools cost more, than one of a user.
_LEFT_OUT = ("HOLDFAST_", "LETTA_", "PYTHONDONTWRITEBYTECODE")


class Server:
    def __init__(self, data_dir: Path, **environment: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._data_dir = data_dir
        self.program = Path(sys.executable).with_name("holdfast")  # or another checkout's, to compare with
        self._environment = environment
        self.started_in_s = 0.0

    def __enter__(self) -> Self:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
        began = time.perf_counter()
        with (self._data_dir / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(self.program), "serve", "--port", str(self.port)],
                env=clean | {"HOLDFAST_DATA_DIR": str(self._data_dir)} | self._environment,
                stdout=log,
                stderr=log,
            )
        while time.perf_counter() - began < 30:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/health/", timeout=1):
                    self.started_in_s = time.perf_counter() - began
                    return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.005)
        raise RuntimeError((self._data_dir / "server.log").read_text())

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def cpu_s(self) -> float:
        """User and system time of the server itself. Tools run in processes of their own and count separately."""
        return time.clock_gettime((~self._process.pid << 3) | _CPU_CLOCK)

    def family_cpu_s(self) -> float:
        """User and system time of the server and all its children, those included that have ended. In hundredths of a
        second: take it over many turns."""
        return sum(_cpu_ticks(pid) for pid in _family(self._process.pid)) / _TICKS_PER_S

    def memory_mb(self) -> float:
        """Resident memory of the server and its children; a page that several of them share is counted once."""
        return sum(_pss_kb(pid) for pid in _family(self._process.pid)) / 1024


def _family(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    family = {root}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return family


def _cpu_ticks(pid: int) -> int:
    """Its own, and of children it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return sum(int(fields[number]) for number in (11, 12, 13, 14))  # utime, stime, cutime, cstime


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
