"""The limits of a call as sums over all its processes, and the words for a limit or a policy that stopped a tool."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, cast

from holdfast.core.egress import Egress, Mode
from holdfast.tools.sandbox import process_usage
from holdfast.tools.sandbox.contract import EndReason, ForkServerConfig, Limits

CHECK_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
_MEGABYTE: Final = 1 << 20
_MOST_CAUSES: Final = 100  # of one error; a tool may make as many as it likes
_POLICIES: Final[dict[Mode, str]] = {
    "none": "allows no connections",
    "public": "refuses this machine, private addresses and link-local ones",
    "allow-list": "allows only what HOLDFAST_TOOL_EGRESS_ALLOW lists",
    "all": "refuses only the port of this server",
}


class UsageMonitor:
    """Checks what running calls use, once in a period. A call that takes less than one period is never checked."""

    def __init__(self, limits: Limits, was_refused_a_process: Callable[[int], bool]) -> None:
        self._limits = limits
        self._all_calls = most_of_all_calls(limits)
        self._was_refused_a_process = was_refused_a_process  # by the kernel, which counts for itself where it can
        self._next = 0.0

    def due(self, watched_from: float) -> float:
        return max(self._next, watched_from)

    def excesses(self, tops: Collection[int], now: float) -> list[tuple[int, EndReason]]:
        """The calls to end, and for what."""
        if not tops or now < self._next:
            return []
        begun = time.process_time()
        usages = process_usage.usage_below(tops)
        found: list[tuple[int, EndReason]] = []
        for top, usage in usages.items():
            if usage.tasks > self._limits.processes or self._was_refused_a_process(top):
                found.append((top, "processes"))
            elif _exceeds(usage, self._limits.memory_bytes):
                found.append((top, "memory"))
        if not found and sum(usage.resident for usage in usages.values()) > self._all_calls:
            exact = {top: process_usage.exact_memory(usage) for top, usage in usages.items()}
            if sum(exact.values()) > self._all_calls:
                found.append((max(exact, key=lambda top: exact[top]), "all_memory"))
        self._next = time.monotonic() + pause_after(time.process_time() - begun, share=10)
        return found


def pause_after(cost_s: float, share: int) -> float:
    """So that checks take no more than one part in `share` of a processor.

    The cost is processor time. By the clock, a check that busy processes of a call held up would be followed by a long
    pause, just when the next check is needed most.
    """
    return min(max(CHECK_S, share * cost_s), LONGEST_PAUSE_S)


def most_of_all_calls(limits: Limits) -> int:
    return limits.all_calls_bytes or _memory_of_the_machine() // 2


def _memory_of_the_machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limit_text(reason: EndReason, limits: Limits) -> str:
    """What the model is told about a call that was ended for one of these."""
    match reason:
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


def explain(config: ForkServerConfig, own_policy: Egress | None) -> Callable[[BaseException], str]:
    """Names the limit or the egress policy behind an error that the kernel gave a tool, as far as the error tells.

    `own_policy` is the one that the tool's tags ask for.
    """

    def text(problem: BaseException) -> str:
        why = _limit_behind(problem, config.limits) or _policy_behind(problem, config.egress.policy, own_policy)
        return f"{problem} ({why})" if why else str(problem)

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


def _policy_behind(problem: BaseException, policy: Egress, own_policy: Egress | None) -> str:
    has_names = policy.needs_names and (own_policy is None or own_policy.needs_names)
    if not any(_is_refusal(cause, has_names=has_names) for cause in _causes(problem)):
        return ""
    words = f"the egress policy `{policy.mode}` of this server {_POLICIES[policy.mode]}"
    if own_policy is not None:
        words += f", and the tags of this tool narrow it to `{own_policy.mode}`"
    return f"{words}; the operator sets it with HOLDFAST_TOOL_EGRESS"


def _is_refusal(problem: BaseException, *, has_names: bool) -> bool:
    """An error of a file names the file. Where no DNS server may be asked, looking a name up fails first."""
    if isinstance(problem, socket.gaierror):
        return not has_names
    return isinstance(problem, OSError) and problem.errno == errno.EACCES and problem.filename is None


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """The error and what led to it: HTTP clients put an error of their own around the kernel's."""
    found, pending = set[int](), [problem]
    while pending and len(found) < _MOST_CAUSES:
        cause = pending.pop()
        if id(cause) in found:
            continue
        found.add(id(cause))
        yield cause
        inner = [cause.__cause__, cause.__context__, vars(cause).get("reason")]  # the last: urllib's
        if isinstance(cause, BaseExceptionGroup):
            inner += cast("BaseExceptionGroup[Any]", cause).exceptions
        pending += [one for one in inner if isinstance(one, BaseException)]


def _exceeds(usage: process_usage.Usage, most: int) -> bool:
    return usage.resident > most and process_usage.exact_memory(usage) > most


def _megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:g} MB"
