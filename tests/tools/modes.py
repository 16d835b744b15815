"""Sandboxes with every layer of isolation, and without those that some machines lack."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.tools.base import Job, Outcome
from holdfast.tools.sandbox.contract import IsolationLayers
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox

MODES = {
    "bubblewrap": IsolationLayers(),
    "bubblewrap only": IsolationLayers(namespaces=False),
    "namespaces": IsolationLayers(bubblewrap=False),
    "namespaces only": IsolationLayers(bubblewrap=False, landlock=False),
    "process": IsolationLayers(bubblewrap=False, namespaces=False),
}


@asynccontextmanager
async def opened(mode: str, **options: Any) -> AsyncGenerator[ForkServerSandbox]:
    sandbox = ForkServerSandbox(layers=MODES[mode], **options)
    try:
        isolation = await sandbox.warm()
        assert isolation.startswith("bubblewrap" if mode.startswith("bubblewrap") else "process"), isolation
        yield sandbox
    finally:
        await sandbox.aclose()


def job(source: str, timeout_s: float = 40, **arguments: Any) -> Job:
    name = source.rpartition("def ")[2].partition("(")[0]
    return Job(call_id="call-1", tool_name=name, source_code=source, arguments=arguments, timeout_s=timeout_s)


def text_of(outcome: Outcome) -> str:
    assert isinstance(outcome.content, str)
    return outcome.content
