from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.commands.serving import listen
from holdfast.errors import ConfigError

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("stub_server.py")


@contextmanager
def running(data_dir: Path, **environment: str) -> Generator[tuple[subprocess.Popen[str], list[str]]]:
    """A server process and the lines it printed once it was ready."""
    known = {"PATH": os.environ["PATH"], "HOLDFAST_DATA_DIR": str(data_dir), "HOLDFAST_PORT": "0", **environment}
    with subprocess.Popen([sys.executable, PROGRAM], env=known, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, [process.stdout.readline().rstrip() for _ in range(7)]
        finally:
            process.kill()


def address_in(lines: list[str]) -> str:
    return next(word for line in lines for word in line.split() if word.startswith("http://"))


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_server_says_where_it_is_and_answers_there(tmp_path: Path) -> None:
    with running(tmp_path / "data") as (_, lines):
        shown = "\n".join(lines)
        with urllib.request.urlopen(address_in(lines) + "/v1/health/", timeout=60) as answer:
            assert b'"status":"ok"' in answer.read()
    assert str(tmp_path / "data") in shown
    assert "SQLite" in shown
    assert "holdfast/offline" in shown
    assert "not set" in shown
    assert "nothing at all" in shown


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker_closes_everything_and_exits_well(tmp_path: Path, sent: signal.Signals) -> None:
    with running(tmp_path, HOLDFAST_DRAIN_S="1") as (process, _):
        process.send_signal(sent)
        rest, _ = process.communicate(timeout=60)
        assert rest.split() == ["drained", "closed"]
        assert process.returncode == 0


def test_a_key_is_required_but_never_shown(tmp_path: Path) -> None:
    with running(tmp_path, HOLDFAST_API_KEY="hunter2") as (_, lines):
        assert status_of(address_in(lines) + "/v1/agents/") == 401
    assert "hunter2" not in "\n".join(lines)
    assert any("required" in line for line in lines)


def test_a_taken_port_is_refused_in_a_sentence() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(ConfigError, match="--port"):
        listen("127.0.0.1", first.getsockname()[1])


def test_an_ipv6_address_can_be_listened_on() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        listener = listen("::1", 0)
    except ConfigError:
        pytest.skip("this machine has no IPv6 loopback")
    with listener:
        assert listener.family is socket.AF_INET6


def test_a_process_that_cannot_stop_because_everything_hangs_is_ended() -> None:
    """The event loop itself is blocked here, as by a disk that does not answer."""
    program = (
        "import threading\n"
        "from holdfast.commands import serving\n"
        "serving._STOP_GRACE_S = 0.1\n"
        "serving.end_after(0.1)\n"
        "threading.Event().wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert b"did not stop in time" in ended.stderr
