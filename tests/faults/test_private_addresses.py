"""A key on loopback is how a server stands behind a proxy on its own machine: callers come from elsewhere."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from tests.serving import ServerProcess

KEY = {"HOLDFAST_API_KEY": "k"}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_process_with_a_key_connects_to_nobody_on_its_own_machine(tmp_path: Path, host: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as inside,
        ServerProcess(tmp_path, HOLDFAST_HOST=host, **KEY) as server,
        httpx.Client(base_url=server.url, headers={"authorization": "Bearer k"}, timeout=60) as client,
    ):
        url = f"http://localhost:{inside.getsockname()[1]}"
        body = {"name": "x", "provider_type": "openai", "api_key": "k", "base_url": url}
        for path in ("/v1/providers/", "/v1/providers/check"):
            assert "HOLDFAST_ALLOWED_HOSTS" in client.post(path, json=body).json()["detail"]
        agent = client.post("/v1/agents/", json={"include_base_tools": False}).json()
        sent = {"input": "hello", "callback_url": url}
        refused = client.post(f"/v1/agents/{agent['id']}/messages/async", json=sent)
        assert (refused.status_code, client.get("/v1/runs/").json()) == (400, [])
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has connected
            inside.accept()


def test_a_server_process_without_a_key_on_loopback_lets_its_callers_bring_local_providers(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        body = {"name": "x", "provider_type": "openai", "api_key": "k", "base_url": "http://127.0.0.1:1"}
        assert httpx.post(f"{server.url}/v1/providers/", json=body, timeout=60).status_code == 200
