"""A client that does not read its stream: neither its run nor any other client waits for it."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

import httpx
import pytest

from tests.serving import ServerProcess

from . import fleet

TOKENS = 15_000  # far more than socket buffers hold
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("slow")) as made:
        yield made


@pytest.fixture
async def http(server: ServerProcess) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as made:
        yield made


@contextmanager
def idle_reader(server: ServerProcess, path: str, body: dict[str, object]) -> Generator[str]:
    """Asks for a stream, reads how it begins, and never again. Gives the id of the run."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n"
    head += "content-type: application/json\r\n"
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        line.settimeout(PATIENCE_S)
        line.connect(("127.0.0.1", server.port))
        line.sendall(head.encode() + b"\r\n" + data)
        begun = ""
        while '"run_id":"run-' not in begun or begun.count("data: ") < 2:
            begun += line.recv(1_024).decode()
        place = begun.index('"run_id":"run-') + len('"run_id":"')
        yield begun[place : place + 40]


@pytest.mark.parametrize("background", [False, True])
async def test_a_client_that_does_not_read_does_not_delay_its_own_run(
    server: ServerProcess, http: httpx.AsyncClient, background: bool
) -> None:
    agent_id = await fleet.make_agent(server.url)
    body: dict[str, object] = {"input": f"Hi [[tokens:{TOKENS}]]", "stream_tokens": True, "background": background}
    with idle_reader(server, f"/v1/agents/{agent_id}/messages/stream", body) as run_id:
        run = await fleet.wait_for_end(server.url, run_id)
        assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
        answer = await http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Hello again"})
        assert answer.json()["stop_reason"]["stop_reason"] == "end_turn"


async def test_a_client_that_does_not_read_does_not_delay_another_reader_of_the_same_run(
    server: ServerProcess, http: httpx.AsyncClient
) -> None:
    agent_id = await fleet.make_agent(server.url)
    body: dict[str, object] = {"input": f"Hi [[tokens:{TOKENS}]]", "stream_tokens": True, "background": True}
    with idle_reader(server, f"/v1/agents/{agent_id}/messages/stream", body) as run_id:
        whole = await http.post(f"/v1/runs/{run_id}/stream", json={"include_pings": False})
        assert whole.text.endswith("data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in whole.text.splitlines() if line.startswith("data: {")]
        said = [event for event in events if event["message_type"] == "assistant_message"]
        assert len(said) == TOKENS
        assert events[-2]["message_type"] == "stop_reason"
