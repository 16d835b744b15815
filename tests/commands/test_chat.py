"""`holdfast chat` in a real terminal: a pty, with keys as a person presses them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Generator

import pytest
from letta_client import Letta

from tests.serving import ServerProcess

from .test_remote_commands import ASK, INVOICE

LIMIT_S = 30.0
pytestmark = pytest.mark.slow


class Terminal:
    """A program behind a pty. `until` reads what it shows until a pattern is there."""

    def __init__(self, *command: str) -> None:
        self.pid, self._line = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm"})
        self.shown = ""
        self._seen = 0

    def until(self, pattern: str) -> str:
        """What was shown since the last time, up to and with the pattern."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.compile(pattern).search(self.shown, self._seen)):
            ready, _, _ = select.select([self._line], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{pattern!r} was not shown: {self.shown!r}"
            self.shown += os.read(self._line, 65_536).decode(errors="replace")
        text = self.shown[self._seen : found.end()]
        self._seen = found.end()
        return text

    def type(self, keys: str) -> None:
        os.write(self._line, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._line, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self) -> int:
        """Its exit code, when it has ended by itself."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._line], [], [], 0.05)
            try:
                if ready:
                    os.read(self._line, 65_536)
            except OSError:  # the other end is closed
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._line)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("holdfast"), HOLDFAST_DEFAULT_MODEL="holdfast/offline") as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Letta:
    return server.client()


@pytest.fixture
def chat(server: ServerProcess) -> Generator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*given: str) -> Terminal:
        opened.append(Terminal(sys.executable, "-m", "holdfast", "chat", "--url", server.url, *given))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.kill()


def test_words_come_as_they_are_written_and_in_colour(chat: Callable[..., Terminal], client: Letta) -> None:
    agent = client.agents.create(name="slow", include_base_tools=False)
    terminal = chat("slow")
    terminal.until(r"> ")
    terminal.type("[[tokens:40]] [[delay:0.05]] [[reasoning:3]]\n")
    first = terminal.until(r"\x1b\[2m\w+")
    assert "end" not in first
    rest = terminal.until(r"> ")
    assert len(rest.split()) > 20
    terminal.type("/quit\n")
    assert terminal.end() == 0
    client.agents.delete(agent.id)


def test_a_first_chat_makes_an_agent(chat: Callable[..., Terminal], client: Letta) -> None:
    assert client.agents.list().items == []
    terminal = chat()
    terminal.until(r"assistant \(holdfast/offline\)")
    terminal.type("Hello\n")
    terminal.until("You said: Hello")
    terminal.type("\x04")
    assert terminal.end() == 0
    [made] = client.agents.list().items
    client.agents.delete(made.id)


@pytest.mark.parametrize(("answer", "shown"), [("y", "→ sent 120 to Ada"), ("too much", "too much")])
def test_a_call_is_decided_in_place(chat: Callable[..., Terminal], client: Letta, answer: str, shown: str) -> None:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="billing", include_base_tools=False, tool_ids=[tool.id])
    terminal = chat("billing")
    terminal.until(r"> ")
    terminal.type(f"{ASK}\n")
    terminal.until(r"why not\] ")
    terminal.resize(10, 40)
    terminal.type(f"{answer}\n")
    terminal.until(re.escape(shown))
    terminal.until(r"> ")
    client.agents.delete(agent.id)


def test_ctrl_c_cancels_the_run_and_the_chat_goes_on(chat: Callable[..., Terminal], client: Letta) -> None:
    agent = client.agents.create(name="stopped", include_base_tools=False)
    terminal = chat("stopped")
    terminal.until(r"> ")
    terminal.type("[[tokens:500]] [[delay:0.05]] [[no_reasoning]]\n")
    terminal.until(r"\w+ \w+ \w+")
    terminal.type("\x03")
    terminal.until("Cancelling")
    terminal.until(r"\[cancelled\]")
    terminal.until(r"> ")
    [run] = client.runs.list(agent_id=agent.id).items
    assert run.status == "cancelled"
    terminal.type("Hello again\n")
    terminal.until("You said: Hello again")
    client.agents.delete(agent.id)


def test_ctrl_c_twice_leaves(chat: Callable[..., Terminal], client: Letta) -> None:
    agent = client.agents.create(name="left", include_base_tools=False)
    terminal = chat("left")
    terminal.until(r"> ")
    terminal.type("\x03")
    terminal.until("Ctrl-C again leaves")
    terminal.until(r"> ")
    terminal.type("\x03")
    assert terminal.end() == 130
    client.agents.delete(agent.id)


def test_what_a_model_writes_cannot_steer_the_terminal(chat: Callable[..., Terminal], client: Letta) -> None:
    agent = client.agents.create(name="hostile", include_base_tools=False)
    client.agents.messages.create(agent.id, input="x")
    terminal = chat("hostile", "-m", "[[no_reasoning]] [[say:a\x1b[2Jb\x07c]]")
    assert "a\\x1b[2Jb\\x07c" in terminal.until("c\r\n")
    assert terminal.end() == 0
    client.agents.delete(agent.id)
