"""Commands that watch a running server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from tests.serving import ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("holdfast"), HOLDFAST_DEFAULT_MODEL="holdfast/offline") as started:
        yield started


def test_stats_show_what_was_done(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", server.url)
    client = server.client()
    agent = client.agents.create(name="counted", include_base_tools=False)
    client.agents.messages.create(agent.id, input="Hello")
    assert main(["stats"]) == 0
    shown = capsys.readouterr().out
    assert "Runs      1: 1 completed" in shown
    assert "PROVIDER" in shown
    assert "SLOWEST RUN" in shown
    assert main(["stats", "--last", "90m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["completed"] == 1
    client.agents.delete(agent.id)


def test_a_time_that_cannot_be_read_is_a_sentence(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", server.url)
    assert main(["stats", "--last", "yesterday"]) == 2
    assert "90m, 12h or 7d" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--json"], []])
def test_events_are_printed_as_they_come_until_the_server_stops(tmp_path: Path, options: list[str]) -> None:
    with ServerProcess(tmp_path / "data") as stopping:
        client = stopping.client()
        agent = client.agents.create(name="watched", model="holdfast/offline", include_base_tools=False)
        watching = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "events", "--url", stopping.url, "--agent", "watched", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        assert "hello" in watching.stdout.readline()
        client.agents.messages.create(agent.id, input="Hello")
        shown: list[Any] = []
        for line in watching.stdout:
            shown.append(json.loads(line) if options else line.split())
            if "completed" in line:
                break
        stopping.stop()
        _, complaint = watching.communicate(timeout=30)
    assert watching.returncode == 2
    assert "ended the stream" in complaint
    assert {event["agent_id"] if options else event[-1] for event in shown} == {agent.id}
