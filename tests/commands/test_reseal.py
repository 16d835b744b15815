from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.cli import main
from tests.served import served


def restart_with(monkeypatch: pytest.MonkeyPatch, key: str, old_key: str) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEY", key)
    monkeypatch.setenv("HOLDFAST_OLD_ENCRYPTION_KEY", old_key)


async def make_agent(directory: Path, key: str) -> str:
    async with served(directory, encryption_key=key) as client:
        return (await client.agent(secrets={"CODE": "open sesame"})).id


async def secret_read_with(directory: Path, agent_id: str, key: str) -> str:
    async with served(directory, encryption_key=key, secrets_key="mine") as client:
        client.http.headers["authorization"] = "Bearer mine"
        agent = await client.ask("GET", f"/v1/agents/{agent_id}", include="agent.secrets")
        return agent["secrets"][0]["value"]


def test_a_key_is_replaced_by_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent_id = asyncio.run(make_agent(tmp_path, "old"))
    restart_with(monkeypatch, "new", "old")
    assert main(["reseal", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "Sealed with the newest key: 1.\n"
    assert asyncio.run(secret_read_with(tmp_path, agent_id, "new")) == "open sesame"


def test_a_key_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(make_agent(tmp_path, "old"))
    restart_with(monkeypatch, "new", "not the old one")
    assert main(["reseal", "--data-dir", str(tmp_path)]) == 1
    assert "left as they are: 1. Do not throw a key away yet." in capsys.readouterr().out


def test_an_old_key_without_a_new_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOLDFAST_ENCRYPTION_KEY", raising=False)
    monkeypatch.setenv("HOLDFAST_OLD_ENCRYPTION_KEY", "old")
    assert main(["reseal", "--data-dir", str(tmp_path)]) == 2
    assert "set the new key too" in capsys.readouterr().err
