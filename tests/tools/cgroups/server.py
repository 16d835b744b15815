"""A server's sandbox in a process of its own. Says where the cgroup of all calls is once there is one, then waits."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from holdfast.tools.sandbox import fork_server_client
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox
from tests.tools.modes import MODES, job


async def main() -> None:
    sandbox = ForkServerSandbox(layers=MODES["namespaces"])
    assert "cgroups" in await sandbox.warm()
    assert sandbox._cgroup is not None
    await sandbox.run(job("def f():\n    return 'done'\n"))
    print(sandbox._cgroup.config.path, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1]:
        Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(fork_server_client, "_START_S", 300.0)  # an emulated processor is slow
        asyncio.run(main())
