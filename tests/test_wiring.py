"""How a server starts: what it does before it listens, and what it leaves for afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.engine.worker import Worker
from tests.served import served


async def test_interrupted_runs_do_not_keep_a_server_from_listening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, recover = asyncio.Event(), asyncio.Event(), Worker.recover

    async def held_up(self: Worker) -> int:
        begun.set()
        await go_on.wait()
        return await recover(self)

    monkeypatch.setattr(Worker, "recover", held_up)
    async with served(tmp_path) as client:
        await asyncio.wait_for(begun.wait(), 30)  # at once, not only after the first period
        assert (await client.http.get("/v1/health/")).status_code == 200
        go_on.set()
