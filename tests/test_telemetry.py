"""Spans leave the server only when a collector is named, and cost nothing to load when none is."""

from __future__ import annotations

import http.server
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import telemetry
from holdfast.settings import Settings

pytestmark = pytest.mark.slow

SEND_ONE = """
import logging, sys
from pathlib import Path
from holdfast import telemetry
from holdfast.core.messages import ToolCall
from holdfast.engine.tracing import Spans
from holdfast.settings import Settings

logging.basicConfig(level="WARNING")
settings = Settings.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": sys.argv[1]})
with telemetry.exporting(settings) as sending:
    assert sending
    with Spans().tool(ToolCall("call-1", "note", "{}")):
        pass
"""
LOAD_ALL = """
import sys
import holdfast.commands.serving, holdfast.wiring
print([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))])
"""


class Collector(http.server.BaseHTTPRequestHandler):
    received: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    received: list[tuple[str, bytes]] = []
    taking = type("Taking", (Collector,), {"received": received})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), taking) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: a process has one provider of tracers, for good."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.parametrize(("environment", "name"), [({}, b"holdfast"), ({"OTEL_SERVICE_NAME": "mine"}, b"mine")])
def test_spans_reach_the_collector_that_is_named(
    collector: tuple[str, list[tuple[str, bytes]]], environment: dict[str, str], name: bytes
) -> None:
    url, received = collector
    assert run(SEND_ONE, url, **environment).stderr == ""
    ((path, body),) = received
    assert path == "/v1/traces"
    assert b"execute_tool note" in body
    assert b"service.name\x12" in body
    assert name in body


def test_a_collector_that_does_not_answer_does_not_keep_the_server_from_stopping() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run(SEND_ONE, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "the last spans are lost" in done.stderr


def test_a_server_without_a_collector_does_not_load_the_sdk() -> None:
    assert run(LOAD_ALL).stdout.strip() == "[]"


def test_without_a_collector_nothing_is_sent(tmp_path: Path) -> None:
    with telemetry.exporting(Settings(data_dir=tmp_path)) as sending:
        assert not sending


def test_without_the_extra_a_warning_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    settings = Settings(data_dir=tmp_path, otlp_endpoint="http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING), telemetry.exporting(settings) as sending:
        assert not sending
    assert "pip install 'holdfast[telemetry]'" in caplog.text
