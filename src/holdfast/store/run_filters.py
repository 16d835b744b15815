"""Which runs a list is to show: by what they are, and by what was measured of them."""

from __future__ import annotations

from typing import Literal

import msgspec
from sqlalchemy import ColumnElement, Text, false, func, literal_column, or_, select

from holdfast.store.statements import in_array
from holdfast.store.tables import messages, runs, steps

# Spelt out, not as a parameter: only so can either database see that the indexes of active runs apply.
IS_ACTIVE = runs.c.status.in_([literal_column(f"'{status}'", Text()) for status in ("created", "running")])


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    agent_ids: tuple[str, ...] | None = None
    thread_id: str | None = None
    statuses: tuple[str, ...] | None = None
    active: bool = False  # means created and running; does nothing when statuses are given
    background: bool | None = None
    stop_reason: str | None = None
    start_us: int | None = None
    end_us: int | None = None
    step_count: int | None = None
    step_count_is: Literal["eq", "gte", "lte"] = "eq"
    tool_names: tuple[str, ...] | None = None  # called any of these
    duration_ns: int | None = None
    duration_is: Literal["gt", "lt", "eq"] = "gt"
    duration_percentile: int | None = None  # at least as long as so many in a hundred of the runs that match the rest


def conditions(filters: RunFilter) -> list[ColumnElement[bool]]:
    """All but the percentile, which is computed from the runs that these conditions select."""
    found: list[ColumnElement[bool]] = []
    if filters.agent_ids is not None and len(filters.agent_ids) == 1:
        found.append(runs.c.agent_id == filters.agent_ids[0])  # so that the index gives the order too
    elif filters.agent_ids is not None:
        found.append(in_array(runs.c.agent_id, filters.agent_ids))
    if filters.thread_id is not None:
        found.append(runs.c.thread_id == filters.thread_id)
    if filters.statuses is not None:
        found.append(in_array(runs.c.status, filters.statuses))
    elif filters.active:
        found.append(IS_ACTIVE)
    if filters.background is not None:
        found.append(runs.c.background.is_(filters.background))
    if filters.stop_reason is not None:
        found.append(runs.c.stop_reason == filters.stop_reason)
    return found + _measured(filters)


def _measured(filters: RunFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if filters.start_us is not None:
        found.append(runs.c.created_us >= filters.start_us)
    if filters.end_us is not None:
        found.append(runs.c.created_us <= filters.end_us)
    if filters.step_count is not None:
        count = select(func.count()).where(steps.c.run_id == runs.c.id).scalar_subquery()
        number = filters.step_count
        found.append({"eq": count == number, "gte": count >= number, "lte": count <= number}[filters.step_count_is])
    if filters.tool_names is not None:
        found.append(_called_any(filters.tool_names))
    if filters.duration_ns is not None:
        took, limit = runs.c.total_duration_ns, filters.duration_ns
        found.append({"gt": took > limit, "lt": took < limit, "eq": took == limit}[filters.duration_is])
    return found


def _called_any(names: tuple[str, ...]) -> ColumnElement[bool]:
    """A quotation mark inside a text is stored escaped, so that only a call's own name can look like this."""
    named = [messages.c.parts.contains(f'"name":"{name}"', autoescape=True) for name in names]
    calling = messages.c.role.in_([literal_column(f"'{role}'", Text()) for role in ("assistant", "approval")])
    return select(messages.c.id).where(messages.c.run_id == runs.c.id, calling, or_(false(), *named)).exists()
