"""Figures about many runs at once: over which time, in which buckets, and what is computed of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.errors import Unprocessable

MOST_BUCKETS: Final = 1_000
LONGEST_US: Final = 400 * 86_400_000_000
_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US
_USUAL_US: Final = 24 * 3_600 * _SECOND_US
_WIDTHS_S: Final = (60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 86_400, 7 * 86_400)
_USUAL_BUCKETS: Final = 60  # at most, if no width is asked for
# Beyond this no time of a run can lie, and a date cannot be told.
_LATEST_US: Final = 4_102_444_800 * _SECOND_US


class Span(msgspec.Struct, frozen=True):
    """From the beginning of a bucket to `until_us`, which is not part of it. Buckets begin at multiples of their width
    since the epoch, so that those of a day are days of UTC."""

    since_us: int
    until_us: int
    width_us: int

    @property
    def buckets(self) -> int:
        return -(-(self.until_us - self.since_us) // self.width_us)


def span_of(since_us: int | None, until_us: int | None, width_s: int | None, now_us: int) -> Span:
    """The day before now, unless told otherwise, in as many buckets as are easily seen."""
    until = now_us if until_us is None else until_us
    since = until - _USUAL_US if since_us is None else since_us
    if not 0 <= since < until <= _LATEST_US:
        raise Unprocessable("since: it must be a time before `until`, and both between 1970 and 2100.")
    if until - since > LONGEST_US:
        raise Unprocessable(f"since: at most {LONGEST_US // _DAY_US} days are counted at once.")
    width_us = (width_s or _width_for(until - since)) * _SECOND_US
    span = Span(since - since % width_us, until, width_us)
    if span.buckets > MOST_BUCKETS:
        raise Unprocessable(f"bucket_s: it would take {span.buckets} buckets; at most {MOST_BUCKETS} are given.")
    return span


def _width_for(length_us: int) -> int:
    return next((width for width in _WIDTHS_S if length_us <= width * _SECOND_US * _USUAL_BUCKETS), _WIDTHS_S[-1])


class Used(msgspec.Struct):
    """What model calls used. Grows while it is summed."""

    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_input_tokens: int = 0
    cost_usd: float | None = None  # None: no price is known
    unpriced_steps: int = 0  # whose price is not known, and which the cost lacks

    def add(self, more: Used) -> None:
        self.steps += more.steps
        self.prompt_tokens += more.prompt_tokens
        self.completion_tokens += more.completion_tokens
        self.cached_input_tokens += more.cached_input_tokens
        self.unpriced_steps += more.unpriced_steps
        if more.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + more.cost_usd


class StepSum(msgspec.Struct, frozen=True):
    """Steps of one bucket, day, provider and outcome."""

    bucket: int
    day: int  # since the epoch
    provider: str
    error_type: str | None
    used: Used
    model_ns: int  # of those of which it is known, together
    timed: int  # how many these are
    last_us: int


class ProviderFigures(msgspec.Struct):
    name: str
    calls: int = 0
    failures: int = 0
    model_ns: int = 0
    timed: int = 0
    last_success_us: int | None = None
    last_failure_us: int | None = None
    last_error_type: str | None = None

    @property
    def mean_ns(self) -> int | None:
        return self.model_ns // self.timed if self.timed else None

    @property
    def is_failing(self) -> bool:
        """Its last call that ended was a failure."""
        return self.last_failure_us is not None and self.last_failure_us > (self.last_success_us or 0)


class ToolSample(msgspec.Struct, frozen=True):
    """One call of a tool. `took_ns` is None if its step called others too: the time of a step is not divided."""

    name: str
    failed: bool
    took_ns: int | None


class ToolFigures(msgspec.Struct, frozen=True):
    name: str
    calls: int
    failures: int
    timed: int  # calls of which the duration is known
    p50_ns: int | None
    p95_ns: int | None
    max_ns: int | None


class ErrorFigures(msgspec.Struct, frozen=True):
    error_type: str
    runs: int
    last_us: int


class SlowRun(msgspec.Struct, frozen=True):
    id: str
    agent_id: str
    status: str
    stop_reason: str | None
    created_us: int
    total_duration_ns: int


class WorkerFigures(msgspec.Struct, frozen=True):
    id: str
    runs: int


class QueueFigures(msgspec.Struct, frozen=True):
    waiting: int
    oldest_s: float  # zero if none waits
    active: int  # driven by a worker
    held: int  # for a decision


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    span: Span
    runs: Sequence[Mapping[str, int]]  # of each bucket, by status
    used: Sequence[Used]  # of each bucket
    days: Mapping[int, Used]
    errors: Sequence[ErrorFigures]
    tools: Sequence[ToolFigures]
    tool_steps: int  # how many steps the figures of tools are made from
    slowest: Sequence[SlowRun]
    providers: Sequence[ProviderFigures]
    queue: QueueFigures
    workers: Sequence[WorkerFigures]


def used_by_bucket(span: Span, sums: Iterable[StepSum]) -> list[Used]:
    found = [Used() for _ in range(span.buckets)]
    for each in sums:
        found[each.bucket].add(each.used)
    return found


def used_by_day(sums: Iterable[StepSum]) -> dict[int, Used]:
    found: dict[int, Used] = {}
    for each in sums:
        found.setdefault(each.day, Used()).add(each.used)
    return dict(sorted(found.items()))


def by_provider(sums: Iterable[StepSum]) -> list[ProviderFigures]:
    found: dict[str, ProviderFigures] = {}
    for each in sums:
        figures = found.setdefault(each.provider, ProviderFigures(each.provider))
        figures.calls += each.used.steps
        figures.model_ns += each.model_ns
        figures.timed += each.timed
        if each.error_type is None:
            figures.last_success_us = max(figures.last_success_us or 0, each.last_us)
            continue
        figures.failures += each.used.steps
        if each.last_us >= (figures.last_failure_us or 0):
            figures.last_failure_us, figures.last_error_type = each.last_us, each.error_type
    return sorted(found.values(), key=lambda figures: figures.name)


def by_tool(samples: Iterable[ToolSample]) -> list[ToolFigures]:
    """The slowest first, by what 95 of 100 calls take at most."""
    calls: dict[str, list[ToolSample]] = {}
    for sample in samples:
        calls.setdefault(sample.name, []).append(sample)
    figures = [_of_tool(name, made) for name, made in calls.items()]
    return sorted(figures, key=lambda one: (-(one.p95_ns or -1), -one.calls, one.name))


def _of_tool(name: str, made: Sequence[ToolSample]) -> ToolFigures:
    took = sorted(sample.took_ns for sample in made if sample.took_ns is not None)
    return ToolFigures(
        name=name,
        calls=len(made),
        failures=sum(sample.failed for sample in made),
        timed=len(took),
        p50_ns=percentile(took, 50),
        p95_ns=percentile(took, 95),
        max_ns=took[-1] if took else None,
    )


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """The smallest that so many in a hundred do not exceed; None of nothing."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None
