"""One call as the fork server sees it: its process, what comes out of its pipes, and how it ended."""

from __future__ import annotations

import os
import time
from typing import Final

import msgspec

from holdfast.tools.sandbox import call_limits
from holdfast.tools.sandbox.contract import IDLE_MARK, EndReason, Run

CHUNK: Final = 1 << 16
NEVER: Final = float("inf")


class PipeBuffer:
    """The end of what one pipe carried: at most `keep` bytes."""

    def __init__(self, fd: int, keep: int) -> None:
        self.fd = fd
        self._keep = keep
        self._held = bytearray()
        self._dropped = 0

    def read(self) -> bool:
        """False at the end of the pipe or when nothing waits."""
        try:
            chunk = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        self._held += chunk
        excess = len(self._held) - self._keep
        if excess > self._keep:  # trimmed rarely, so that a flood costs little per byte
            self._trim(excess)
        return bool(chunk)

    @property
    def size(self) -> int:
        return len(self._held) + self._dropped

    def ends_with(self, end: bytes) -> bool:
        return self._held.endswith(end)

    def bytes(self) -> bytes:
        self._trim(len(self._held) - self._keep)
        note = f"[{self._dropped} bytes dropped]\n".encode() if self._dropped else b""
        return note + bytes(self._held)

    def _trim(self, excess: int) -> None:
        if excess > 0:
            del self._held[:excess]
            self._dropped += excess


class ForkedProcess(msgspec.Struct, frozen=True):
    """What the fork server forked: the sandbox child itself, or the reaper above it where there is no pid namespace."""

    pid: int
    user_slot: int = 0  # which of the user ids for calls it has
    limit_pipe: int = -1  # where its reaper writes the limit that it ended the call for


Outputs = tuple[PipeBuffer, PipeBuffer, PipeBuffer]  # stdout, stderr, the answer


class CallProcess:
    """An isolated process: a spare that waits for a job, then a call, until it has ended."""

    def __init__(self, forked: ForkedProcess, start_pipe: int, job_fd: int, pipes: Outputs) -> None:
        self.pid = forked.pid
        self.forked = forked
        self.pipes = pipes
        self.number = 0
        self.deadline = NEVER
        self.watched_from = 0.0
        self.end_reason: EndReason = "exited"
        self.open_pipes = len(pipes)
        self._start_pipe = start_pipe
        self._job_fd = job_fd

    def start(self, run: Run) -> None:
        """The job goes into a file in memory: a pipe would make the fork server wait for a reader of a large job."""
        now = time.monotonic()
        self.number = run.number
        self.deadline = now + run.timeout_s
        self.watched_from = now + call_limits.CHECK_S
        write_all(self._job_fd, run.job)
        try:  # noqa: SIM105 - the pages of `contextlib` would be copied for every call
            os.write(self._start_pipe, b"!")
        except BrokenPipeError:
            pass  # it has ended already, and SIGCHLD will say so
        self.close_inputs()

    @property
    def has_answered(self) -> bool:
        """An answer has come, and no process of the call has a pipe open for more."""
        return self.end_reason == "exited" and not self.open_pipes and self.pipes[2].size > 0

    @property
    def is_idle(self) -> bool:
        return self.pipes[2].ends_with(IDLE_MARK)

    def close_inputs(self) -> None:
        os.close(self._job_fd)
        os.close(self._start_pipe)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
