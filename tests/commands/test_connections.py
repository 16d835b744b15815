"""What a connection may cost, tried with raw sockets against a real server process."""

from __future__ import annotations

import resource
import socket
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from ..serving import ServerProcess

pytestmark = pytest.mark.slow

AGENT = b'{"model": "holdfast/offline", "include_base_tools": false}'
PATIENCE_S = 30.0  # far above any timeout below: it is only reached when the server does not do its part


class Quick(ServerProcess):
    def __init__(self, data_dir: Path, **environment: str) -> None:
        quick = {"HOLDFAST_HEADER_TIMEOUT_S": "1", "HOLDFAST_BODY_TIMEOUT_S": "3", "HOLDFAST_DRAIN_S": "1"}
        super().__init__(data_dir, **quick | environment)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def is_healthy(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/v1/health/", timeout=PATIENCE_S) as answer:
            return answer.status == 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quick]:
    with Quick(tmp_path_factory.mktemp("server")) as started:
        yield started


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes."""
    received = bytearray()
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass  # closed while we were still sending: what it said before that is here
    return bytes(received)


def read_health(connection: socket.socket) -> bytes:
    """One answer on a connection that stays open; its head and its body may come one after the other."""
    received = b""
    while not received.endswith(b"}") and (piece := connection.recv(65_536)):
        received += piece
    return received


def test_a_connection_that_sends_nothing_is_closed(server: Quick) -> None:
    with server.connect() as silent:
        assert b"408" in read_all(silent).partition(b"\r\n")[0]


def test_half_a_header_is_not_waited_for_even_if_it_drips(server: Quick) -> None:
    with server.connect() as slow:
        slow.sendall(b"GET /v1/health/ HTTP/1.1\r\nhost: localhost\r\n")
        slow.settimeout(0.2)
        received = b""
        for _ in range(100):
            try:
                received = slow.recv(65_536)
                break
            except TimeoutError:
                slow.sendall(b"x-a: b\r\n")
        assert received.startswith(b"HTTP/1.1 408")


def test_half_a_header_of_a_later_request_is_not_waited_for(server: Quick) -> None:
    with server.connect() as kept:
        kept.sendall(b"GET /v1/health/ HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read_health(kept).startswith(b"HTTP/1.1 200")
        kept.sendall(b"GET /v1/health/ HTT")
        assert b"HTTP/1.1 408" in read_all(kept)


def test_a_body_that_stops_arriving_is_answered_408(server: Quick) -> None:
    with server.connect() as stopped:
        head = b"POST /v1/agents/ HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        stopped.sendall(head + b"content-length: 1000\r\n\r\n" + AGENT)
        answer = read_all(stopped)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"The body of the request stopped arriving" in answer


def test_a_body_that_keeps_arriving_slowly_is_served(server: Quick) -> None:
    with server.connect() as slow:
        head = (
            b"POST /v1/agents/ HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        )
        slow.sendall(head + b"content-length: %d\r\n\r\n" % len(AGENT))
        for start in range(0, len(AGENT), 6):
            slow.sendall(AGENT[start : start + 6])
            time.sleep(0.35)  # the pauses are what is tested: together longer than the timeout, each shorter
        assert read_all(slow).startswith(b"HTTP/1.1 200")


def test_an_idle_kept_connection_and_a_silent_stream_outlive_the_timeouts(server: Quick) -> None:
    agent = server.client().agents.create(model="holdfast/offline", include_base_tools=False)
    body = b'{"input": "[[ttft:3]] hello", "streaming": true}'
    with server.connect() as kept:
        kept.sendall(b"GET /v1/health/ HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read_health(kept).startswith(b"HTTP/1.1 200")
        with server.connect() as stream:
            head = f"POST /v1/agents/{agent.id}/messages HTTP/1.1\r\nhost: localhost\r\n"
            head += "user-agent: letta-client/1.12.0\r\n"  # older ones stream by another route
            rest = f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            stream.sendall((head + rest).encode() + body)
            assert b"[DONE]" in read_all(stream)  # after three seconds of silence
        kept.sendall(b"GET /v1/health/ HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read_health(kept).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"x-long: " + b"a" * 5_000_000 + b"\r\n", b"longer than 65536 bytes"),
        (b"".join(b"x-%d: a\r\n" % number for number in range(20_000)), b"longer than 65536 bytes"),
        (b"".join(b"x-%d: a\r\n" % number for number in range(300)), b"at most 200"),
    ],
)
def test_too_many_headers_are_answered_431(server: Quick, header: bytes, problem: bytes) -> None:
    with server.connect() as large:
        with suppress(ConnectionResetError, BrokenPipeError):  # refused before all of it was sent
            large.sendall(b"GET /v1/health/ HTTP/1.1\r\nhost: localhost\r\n" + header + b"\r\n")
        answer = read_all(large)
    # What a server says to somebody who is still sending may be lost on the way.
    assert answer == b"" or (answer.startswith(b"HTTP/1.1 431") and problem in answer)
    assert len(header) > 100_000 or answer
    assert server.is_healthy()


def test_a_bad_header_that_follows_at_once_does_not_disturb_the_answer_before_it(server: Quick) -> None:
    agent = server.client().agents.create(model="holdfast/offline", include_base_tools=False)
    body = b'{"input": "[[ttft:0.5]] hello", "streaming": true}'
    head = f"POST /v1/agents/{agent.id}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    first = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    headers = b"".join(b"x-%d: a\r\n" % number for number in range(300))
    with server.connect() as pipelined:
        pipelined.sendall(first + b"GET /v1/health/ HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n")
        answer = read_all(pipelined)
    whole, done, after = answer.partition(b"[DONE]")
    assert whole.startswith(b"HTTP/1.1 200")
    assert done
    assert b"HTTP/1.1 431" in after


def test_a_header_just_below_the_limit_is_served(server: Quick) -> None:
    with server.connect() as large:
        header = b"x-long: " + b"a" * 60_000 + b"\r\nconnection: close\r\n"
        large.sendall(b"GET /v1/health/ HTTP/1.1\r\nhost: localhost\r\n" + header + b"\r\n")
        assert read_all(large).startswith(b"HTTP/1.1 200")


def test_one_address_may_have_as_many_connections_as_the_setting_says(tmp_path: Path) -> None:
    patient = {"HOLDFAST_HEADER_TIMEOUT_S": "60", "HOLDFAST_MAX_CONNECTIONS_PER_PEER": "5"}
    with Quick(tmp_path, **patient) as server, ExitStack() as held:
        kept = [held.enter_context(server.connect()) for _ in range(5)]
        with server.connect() as one_more:
            answer = read_all(one_more)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"More than 5 connections" in answer
        kept[0].close()
        deadline = time.monotonic() + PATIENCE_S
        while b"503" in answer and time.monotonic() < deadline:  # the server hears of it in its own time
            with server.connect() as again:
                again.sendall(b"GET /v1/health/ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                answer = read_all(again)
        assert answer.startswith(b"HTTP/1.1 200")


def test_more_silent_connections_than_open_files_do_not_stop_the_server(tmp_path: Path) -> None:
    with (
        few_files(256),
        Quick(tmp_path, HOLDFAST_HEADER_TIMEOUT_S="5") as server,
        ExitStack() as held,
        more_files(),
    ):
        for number in range(300):
            held.enter_context(server.connect())
            if number % 50 == 49:
                assert server.is_healthy(), "with connections held, it still answers"
        assert server.is_healthy()
        agent = server.client().agents.create(model="holdfast/offline", include_base_tools=False)
        assert server.client().agents.retrieve(agent.id).id == agent.id


@contextmanager
def few_files(number: int) -> Generator[None]:
    """Processes that are started now may have so many files open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def more_files() -> Generator[None]:
    """As many as this process may have itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
