"""Sandboxes with every wall, and with the walls that a poorer machine lacks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.tools.base import Job, Outcome
from holdfast.tools.sandbox.contract import Walls
from holdfast.tools.sandbox.forkserver import ForkServerSandbox

MODES = {
    "bubblewrap": Walls(),
    "bubblewrap only": Walls(namespaces=False),
    "namespaces": Walls(bubblewrap=False),
    "namespaces only": Walls(bubblewrap=False, landlock=False),
    "process": Walls(bubblewrap=False, namespaces=False),
}


@asynccontextmanager
async def opened(mode: str, **options: Any) -> AsyncGenerator[ForkServerSandbox]:
    sandbox = ForkServerSandbox(walls=MODES[mode], **options)
    try:
        standing = await sandbox.warm()
        assert standing.startswith("bubblewrap" if mode.startswith("bubblewrap") else "process"), standing
        yield sandbox
    finally:
        await sandbox.aclose()


def job(source: str, timeout_s: float = 40, **arguments: Any) -> Job:
    name = source.rpartition("def ")[2].partition("(")[0]
    return Job(call_id="call-1", tool_name=name, source_code=source, arguments=arguments, timeout_s=timeout_s)


def text_of(outcome: Outcome) -> str:
    assert isinstance(outcome.content, str)
    return outcome.content
