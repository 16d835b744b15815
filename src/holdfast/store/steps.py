"""Steps: one model call and the tools it caused."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Literal

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Select, bindparam, func, select, update

from holdfast.core.records import Step
from holdfast.core.usage import Usage
from holdfast.errors import NotFound
from holdfast.store.paging import Ordering, Page, fetch_page
from holdfast.store.statements import in_array, insert_or_update
from holdfast.store.tables import providers, steps
from holdfast.store.transaction import Row, Transaction

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode

Feedback = Literal["positive", "negative"]

# What a step is never changes, and naming it again would have its three indexes written anew with every step that ends.
# A person's feedback must survive a late save by the run.
_KEPT = frozenset({"id", "run_id", "agent_id", "number", "created_us", "feedback", "tags"})
_SAVED = tuple(column.name for column in steps.columns if column.name not in _KEPT)
_SAVE = insert_or_update(steps, ["id"], _SAVED)
# A name belongs to one provider, also after its deletion, so a step need not store the provider's id as well.
_PROVIDER_ID = (
    select(providers.c.id)
    .where(providers.c.name == steps.c.provider_name, steps.c.provider_category == "byok")
    .scalar_subquery()
    .label("provider_id")
)
_SHOWN = (steps, _PROVIDER_ID)
_ONE = select(*_SHOWN).where(steps.c.id == bindparam("step"))
_longer = bindparam("more_ns", type_=BigInteger())
_ADD_TOOL_TIME = (
    update(steps)
    .where(steps.c.id == bindparam("step"))
    .values(
        tool_execution_ns=func.coalesce(steps.c.tool_execution_ns, 0) + _longer,
        step_ns=func.coalesce(steps.c.step_ns, 0) + _longer,
    )
)
_FEEDBACK = (
    update(steps).where(steps.c.id == bindparam("step")).values(feedback=bindparam("verdict"), tags=bindparam("labels"))
)
_BY_AGE = Ordering(sort=steps.c.created_us, id=steps.c.id, what="Step")


class StepFilter(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str | None = None
    run_id: str | None = None
    model: str | None = None  # the handle, or the part of it after the provider
    trace_ids: tuple[str, ...] | None = None
    feedback: Feedback | None = None
    has_feedback: bool | None = None
    start_us: int | None = None
    end_us: int | None = None


async def save(tx: Transaction, *saved: Step) -> None:
    """Insert them, or bring what is stored up to date; feedback and tags are left as they are."""
    await tx.execute_many(_SAVE, [_columns(step) for step in saved])


async def add_tool_time(tx: Transaction, step_id: str, more_ns: int) -> None:
    """Tools that an approval let run belong to the step that asked for them, which ended when it was parked."""
    await tx.execute(_ADD_TOOL_TIME, {"step": step_id, "more_ns": more_ns})


async def get(tx: Transaction, step_id: str) -> Step:
    row = await tx.fetch_one(_ONE, {"step": step_id})
    if row is None:
        raise NotFound("Step not found")
    return _step(row)


async def list_steps(tx: Transaction, filters: StepFilter, page: Page) -> list[Step]:
    query: Select[Any] = select(*_SHOWN).where(*_conditions(filters))
    return [_step(row) for row in await fetch_page(tx, query, _BY_AGE, page)]


async def list_of_run(tx: Transaction, run_id: str, page: Page | None = None) -> list[Step]:
    """All of them in the order in which they happened, unless a page is asked for."""
    query = select(*_SHOWN).where(steps.c.run_id == run_id)
    by_number = Ordering(sort=steps.c.number, id=steps.c.id, what="Step", scope=(steps.c.run_id == run_id,))
    page = page or Page(limit=None, order="asc")
    return [_step(row) for row in await fetch_page(tx, query, by_number, page)]


async def feedback(tx: Transaction, step_id: str, verdict: Feedback | None, tags: tuple[str, ...] | None) -> Step:
    """`tags` None keeps those that are there."""
    kept = (await get(tx, step_id)).tags if tags is None else tags
    labels = _encode(kept).decode()
    await tx.execute(_FEEDBACK, {"step": step_id, "verdict": verdict, "labels": labels})
    return await get(tx, step_id)


def _conditions(filters: StepFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if filters.agent_id is not None:
        found.append(steps.c.agent_id == filters.agent_id)
    if filters.run_id is not None:
        found.append(steps.c.run_id == filters.run_id)
    if filters.model is not None:
        found.append(
            (steps.c.model_handle == filters.model)
            | steps.c.model_handle.endswith(f"/{filters.model}", autoescape=True)
        )
    if filters.trace_ids is not None:
        found.append(in_array(steps.c.trace_id, filters.trace_ids))
    if filters.feedback is not None:
        found.append(steps.c.feedback == filters.feedback)
    if filters.has_feedback is not None:
        found.append(steps.c.feedback.is_not(None) if filters.has_feedback else steps.c.feedback.is_(None))
    if filters.start_us is not None:
        found.append(steps.c.created_us >= filters.start_us)
    if filters.end_us is not None:
        found.append(steps.c.created_us <= filters.end_us)
    return found


def _columns(step: Step) -> dict[str, Any]:
    usage = step.usage
    return dict(zip(_PLAIN, _plain_values(step), strict=True)) | {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "usage_estimated": usage.estimated,
        "error_data": None if step.error_data is None else _encode(step.error_data).decode(),
        "tags": _encode(step.tags).decode(),
    }


_PLAIN = tuple(name for name in Step.__struct_fields__ if name not in ("usage", "error_data", "tags", "provider_id"))
_plain_values = attrgetter(*_PLAIN)  # one call for all of them


def _step(row: Row) -> Step:
    return Step(
        **{name: row[name] for name in _PLAIN},
        usage=Usage(
            row["prompt_tokens"],
            row["completion_tokens"],
            row["cached_input_tokens"],
            row["cache_write_tokens"],
            row["reasoning_tokens"],
            bool(row["usage_estimated"]),
        ),
        error_data=None if row["error_data"] is None else _decode_object(row["error_data"]),
        tags=_decode_tags(row["tags"]),
        provider_id=row["provider_id"],
    )
