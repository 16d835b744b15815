"""A line from the terminal. `input()` loses a Ctrl-C that comes between the prompt and the read: CPython notices a
signal there only when it interrupts the read. Here the signal itself ends the wait."""

from __future__ import annotations

import os
import select
import signal
import sys


def read_line(prompt: str) -> str:
    """Without its newline. KeyboardInterrupt after a Ctrl-C, EOFError after a Ctrl-D."""
    signalled, signal_writer = os.pipe()
    os.set_blocking(signal_writer, False)
    before = signal.set_wakeup_fd(signal_writer)
    try:
        print(prompt, end="", flush=True)
        select.select([sys.stdin, signalled], [], [])
        line = sys.stdin.readline()
    finally:
        signal.set_wakeup_fd(before)
        os.close(signalled)
        os.close(signal_writer)
    if not line:
        raise EOFError
    return line.removesuffix("\n")
