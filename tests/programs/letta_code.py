"""The `letta` command, headless, in a project and a home of its own; and a tool call of it that waits for us."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from tests.surroundings import calm

LIMIT_S = 60
FROM_NPM = "letta-code/node_modules/@letta-ai/letta-code/letta.js"
FROM_PYPI = "letta/bin/letta"


class Answer(msgspec.Struct, frozen=True):
    """What the program prints at the end, as far as we look at it."""

    result: str
    is_error: bool
    agent_id: str
    conversation_id: str


class LettaCode:
    """`with LettaCode(…) as letta_code:` ends every process that it has started."""

    def __init__(self, command: Sequence[str], url: str, directory: Path) -> None:
        self._command = command
        self._url = url
        self._home = directory / "home"
        self.project = directory / "project"
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self._home.mkdir()
        self.project.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                self.kill(process)

    def start(self, prompt: str, *options: str) -> subprocess.Popen[str]:
        """In a process group of its own, with the tools that it runs. It may call them without asking a person."""
        process = subprocess.Popen(
            [*self._command, "-p", prompt, "--output-format", "json", "--yolo", *options],
            cwd=self.project,
            env=surroundings(self._home, self._url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, prompt: str, *options: str) -> Answer:
        return self.finish(self.start(prompt, *options))

    def finish(self, process: subprocess.Popen[str]) -> Answer:
        printed, complaints = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, complaints
        answer = msgspec.json.decode(printed, type=Answer)
        assert not answer.is_error, printed
        return answer

    def kill(self, process: subprocess.Popen[str]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Gate:
    """A call of the program's own Bash tool that tells when it has begun, and goes on when it is let through.

    Its two pipes are outside the project: the program reads every file in there at its start.
    """

    def __init__(self, directory: Path) -> None:
        self._begun = directory / "begun"
        self._go = directory / "go"
        os.mkfifo(self._begun)
        os.mkfifo(self._go)
        command = f"echo ran >> runs.txt; echo begun > {self._begun}; cat {self._go}"
        self.prompt = f"Wait [[no_reasoning]] {call('Bash', 1, command=command, description='wait')}"

    def wait_until_begun(self) -> None:
        reader = os.open(self._begun, os.O_RDONLY | os.O_NONBLOCK)
        try:
            ready, _, _ = select.select([reader], [], [], LIMIT_S)
            assert ready, "the tool did not begin"
        finally:
            os.close(reader)

    def let_through(self, text: str) -> None:
        self._go.write_text(text)


def surroundings(home: Path, url: str) -> dict[str, str]:
    return calm(os.environ) | {
        "HOME": str(home),
        "LETTA_BASE_URL": url,
        "LETTA_API_KEY": "not needed",
        "LETTA_CODE_TELEM": "0",
        "DISABLE_AUTOUPDATER": "1",
    }


def call(tool: str, reply: int, **arguments: str) -> str:
    """Has the offline model call the tool in that reply."""
    return f"[[call:{tool} {json.dumps(arguments)}@{reply}]]"
