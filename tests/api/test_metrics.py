"""`/metrics`: who may read it, what form it has, and what it never says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..exposition import parsed
from .application import client_of
from .resources import Served, serving

KEY = {"authorization": "Bearer s3cret-api-key"}


async def test_a_monitor_can_read_it_and_sees_what_a_message_did(served: Served) -> None:
    agent = await served.create(name="scout")
    await served.ok("POST", f"/v1/agents/{agent['id']}/messages", {"input": "Hello!"})
    answer = await served.http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(answer.text)
    assert found['holdfast_runs_started_total{process="0"}'] == 1
    assert found['holdfast_runs_ended_total{process="0",status="completed",stop_reason="end_turn"}'] == 1
    assert found['holdfast_database_up{process="0"}'] == 1
    assert agent["id"] not in answer.text
    assert "run-" not in answer.text


async def test_only_postgresql_has_a_pool_and_signals(served: Served, database_url: str) -> None:
    found = parsed((await served.http.get("/metrics")).text)
    pooled = {name for name in found if "connections" in name or "signals" in name}
    assert bool(pooled) is database_url.startswith("postgres")
    if pooled:
        assert found['holdfast_database_connections{process="0",state="most"}'] == 20


async def test_the_number_of_the_process_is_on_every_sample(sqlite_url: str, tmp_path: Path) -> None:
    async with serving(sqlite_url, tmp_path, process=3) as served:
        found = parsed((await served.http.get("/metrics")).text)
    assert found
    assert all('process="3"' in name for name in found)


async def test_with_a_key_only_its_holder_reads_them_and_no_key_is_in_them(sqlite_url: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"api_key": "s3cret-api-key", "secrets_key": "s3cret-read", "encryption_key": "s3cret-seal"}
    async with serving(sqlite_url, tmp_path, **keys) as served:
        assert (await served.http.get("/metrics")).status_code == 401
        answer = await served.http.get("/metrics", headers=KEY)
    assert answer.status_code == 200
    assert parsed(answer.text)
    assert "s3cret" not in answer.text
    assert str(tmp_path) not in answer.text


async def test_they_can_be_opened_to_everybody(sqlite_url: str, tmp_path: Path) -> None:
    async with serving(sqlite_url, tmp_path, api_key="s3cret-api-key", metrics="open") as served:
        assert (await served.http.get("/metrics")).status_code == 200
        assert (await served.http.get("/v1/agents/")).status_code == 401


@pytest.mark.parametrize("key", [None, "s3cret-api-key"])
async def test_they_can_be_switched_off(key: str | None) -> None:
    async with client_of(api_key=key, metrics="off", headers=KEY) as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 404
    assert "HOLDFAST_METRICS" in answer.json()["detail"]
