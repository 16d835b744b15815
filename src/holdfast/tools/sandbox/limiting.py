"""The limits of a call as sums over all its processes, and the words for a limit that was reached."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection
from typing import Final

from holdfast.tools.sandbox import watching
from holdfast.tools.sandbox.contract import How, Limits

LOOK_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
_MEGABYTE: Final = 1 << 20


class Watch:
    """Looks at running calls now and then. Calls that take less than one period are never looked at."""

    def __init__(self, limits: Limits, was_refused_a_process: Callable[[int], bool]) -> None:
        self._limits = limits
        self._all_calls = most_of_all_calls(limits)
        self._was_refused_a_process = was_refused_a_process  # by the kernel, which counts for itself where it can
        self._next = 0.0

    def due(self, watched_from: float) -> float:
        return max(self._next, watched_from)

    def excesses(self, tops: Collection[int], now: float) -> list[tuple[int, How]]:
        """The calls to end, and for what."""
        if not tops or now < self._next:
            return []
        begun = time.process_time()
        usages = watching.usage_below(tops)
        found: list[tuple[int, How]] = []
        for top, usage in usages.items():
            if usage.tasks > self._limits.processes or self._was_refused_a_process(top):
                found.append((top, "processes"))
            elif _exceeds(usage, self._limits.memory_bytes):
                found.append((top, "memory"))
        if not found and sum(usage.resident for usage in usages.values()) > self._all_calls:
            exact = {top: watching.exact_memory(usage) for top, usage in usages.items()}
            if sum(exact.values()) > self._all_calls:
                found.append((max(exact, key=lambda top: exact[top]), "all_memory"))
        self._next = time.monotonic() + pause_after(time.process_time() - begun, share=10)
        return found


def pause_after(cost_s: float, share: int) -> float:
    """So that looking takes no more than one part in `share` of a processor.

    The cost is processor time. By the clock, a look that busy processes of a call held up would be followed by a long
    pause, just when the next look is needed most.
    """
    return min(max(LOOK_S, share * cost_s), LONGEST_PAUSE_S)


def most_of_all_calls(limits: Limits) -> int:
    return limits.all_calls_bytes or _memory_of_the_machine() // 2


def _memory_of_the_machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reason(how: How, limits: Limits) -> str:
    """What the model is told about a call that was ended for one of these."""
    match how:
        case "memory":
            return f"the processes of the call used more than {_megabytes(limits.memory_bytes)} of memory together"
        case "all_memory":
            most = _megabytes(most_of_all_calls(limits))
            return f"all running tools used more than {most} of memory together, and this call the most"
        case "processes":
            return f"the call had more than {limits.processes} processes and threads at once"
        case "disk":
            return f"the call wrote more than {_megabytes(limits.scratch_bytes)} of files"
        case "files":
            return f"the call made more than {limits.scratch_files} files"
        case _:
            return ""


def explain(limits: Limits) -> Callable[[BaseException], str]:
    """Names the limit behind an error that the kernel gave a tool, as far as the error tells."""

    def text(problem: BaseException) -> str:
        limit = _limit_behind(problem, limits)
        return f"{problem} ({limit})" if limit else str(problem)

    return text


def _limit_behind(problem: BaseException, limits: Limits) -> str:
    if isinstance(problem, MemoryError):
        return f"a process of a tool may use {_megabytes(limits.memory_bytes)} of memory"
    match getattr(problem, "errno", None):
        case errno.ENOSPC | errno.EDQUOT:
            return f"a call may keep {_megabytes(limits.scratch_bytes)} in files"
        case errno.EFBIG:
            return f"a file of a tool may have {_megabytes(limits.file_bytes)}"
        case errno.EMFILE:
            return f"a process of a tool may have {limits.open_files} files open"
        case errno.EAGAIN if isinstance(problem, BlockingIOError):
            return f"a call may have {limits.processes} processes and threads"
        case _:
            return ""


def _exceeds(usage: watching.Usage, most: int) -> bool:
    return usage.resident > most and watching.exact_memory(usage) > most


def _megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:g} MB"
