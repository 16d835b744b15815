"""agentic-learning from PyPI: it listens to calls of a vendor's SDK, has them captured, and puts memory before them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.vendors import VendorProcess
from tests.programs import learning
from tests.programs.vendor import ANSWER, SimulatedVendor, simulated_vendor
from tests.serving import ServerProcess
from tests.surroundings import calm

LIMIT_S = 90
LEARNED = "Her name is Alice."
# What the program names, whoever uses it.
MODELS = "anthropic/claude-sonnet-4-20250514=200000,openai/text-embedding-3-small=embedding:1536"


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    """Beside the fakes of two vendors, which have the offline model for a brain."""
    with (
        VendorProcess("anthropic") as claude,
        VendorProcess("chat") as chat,
        ServerProcess(
            tmp_path / "data",
            ANTHROPIC_BASE_URL=claude.url,
            ANTHROPIC_API_KEY="sk-ant-offline",
            OPENAI_BASE_URL=f"{chat.url}/v1",
            OPENAI_API_KEY="sk-offline",
            HOLDFAST_MODELS=MODELS,
        ) as server,
    ):
        yield server


@pytest.fixture
def vendor() -> Generator[SimulatedVendor]:
    """Which the program's user talks to."""
    with simulated_vendor() as vendor:
        yield vendor


@pytest.fixture
def program(programs: Path, server: ServerProcess, vendor: SimulatedVendor) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(programs / "agentic-learning/bin/python"), learning.__file__],
        env=calm(os.environ) | {"HOLDFAST_URL": server.url, "VENDOR_URL": vendor.url, "LETTA_API_KEY": "not needed"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read(program: subprocess.Popen[str]) -> dict[str, Any]:
    assert program.stdout and program.stderr
    line = program.stdout.readline()
    assert line, program.stderr.read()
    return json.loads(line)


def go_on(program: subprocess.Popen[str]) -> None:
    assert program.stdin
    program.stdin.write("\n")
    program.stdin.flush()


def until_learned(server: ServerProcess, turns: int) -> None:
    """The program does not say which runs its captures have made due."""
    deadline = time.monotonic() + LIMIT_S
    with server.client() as client:
        while time.monotonic() < deadline:
            done = [run for run in client.runs.list() if run.status == "completed"]
            if len(done) == turns:
                return
            time.sleep(0.05)
    raise AssertionError("the sleeptime agent did not look")


def test_what_is_said_to_a_vendor_is_captured_learned_and_put_before_the_next_call(
    server: ServerProcess, vendor: SimulatedVendor, program: subprocess.Popen[str]
) -> None:
    assert read(program) == {"answer": ANSWER}
    until_learned(server, 1)
    go_on(program)
    assert LEARNED in read(program)["memory"]
    assert [read(program), read(program)] == [{"answer": ANSWER}] * 2
    until_learned(server, 2)  # it looks after the first turn, and after every second one then
    go_on(program)
    told = read(program)
    asked = [text for kind, text in told["messages"] if kind == "user_message"]
    assert [text.split(" [[")[0] for text in asked] == [
        "My name is Alice.",
        "What is my name?",
        "And mine, Claude?",
        "Say nothing of it.",
    ]
    assert [text for kind, text in told["messages"] if kind == "assistant_message"] == [ANSWER] * 4
    assert (told["agents"], told["sleeptime"]) == (["my_assistant"], "my_assistant-sleeptime")
    assert "assistant_message" in told["found"]
    assert read(program) == {"labels": ["human", "project"], "deleted": True}
    assert program.wait(LIMIT_S) == 0
    assert program.stderr and "Warning" not in program.stderr.read()
    check_injected(vendor.requests)
    with server.client() as client:
        assert [agent.name for agent in client.agents.list()] == []


def check_injected(requests: list[dict[str, Any]]) -> None:
    """Into the instructions of each vendor, once there is something to know; not where the program is told not to."""
    first, streamed, claude, captured_only = requests
    assert [message["role"] for message in first["messages"]] == ["user"]
    assert [message["role"] for message in streamed["messages"]] == ["system", "user"]
    assert LEARNED in streamed["messages"][0]["content"]
    assert LEARNED in claude["system"]
    assert [message["role"] for message in captured_only["messages"]] == ["user"]
