from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.store import mcp_servers as server_rows
from holdfast.tools.mcp.values import LoginState
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


async def make_mcp_server(directory: Path, key: str) -> str:
    async with served(directory, encryption_key=key, allowed_hosts=("127.0.0.1",)) as client:
        config = {"mcp_server_type": "sse", "server_url": "http://127.0.0.1:9/sse", "auth_token": "open sesame"}
        server = await client.ask("POST", "/v1/mcp-servers/", {"server_name": "cave", "config": config})
        await client.deps.mcp._save_login(server["id"], "authorized", LoginState(tokens={"access_token": "of gold"}))
        return server["id"]


async def mcp_secrets_read_with(directory: Path, server_id: str, key: str) -> tuple[str | None, object]:
    async with served(directory, encryption_key=key) as client:
        servers = client.deps.mcp
        server = await client.deps.database.read(lambda tx: server_rows.get(tx, server_id))
        login = await servers.login_of(server_id)
        assert login is not None
        return servers.open(server).auth_token, servers._opened(login).tokens


def test_what_mcp_servers_and_their_logins_hold_is_sealed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server_id = asyncio.run(make_mcp_server(tmp_path, "old"))
    restart_with(monkeypatch, "new", "old")
    assert main(["reseal", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "Sealed with the newest key: 2.\n"
    read = asyncio.run(mcp_secrets_read_with(tmp_path, server_id, "new"))
    assert read == ("open sesame", {"access_token": "of gold"})


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
