"""Statements that run all the time find their rows by an index, however many rows there are.

SQLite shows its plan without having any rows. A plan that scans a table, or sorts where an index could give the order,
would pass every other test and only hurt somebody with a year of history.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Delete, Select, Update

from holdfast.core.changes import Change
from holdfast.store import (
    agents,
    attached_files,
    files,
    folders,
    frames,
    holds,
    journal,
    leases,
    messages,
    rate_limits,
    runs,
    statistics,
    steps,
    threads,
    traces,
)
from holdfast.store.agents import AgentFilter
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.schema import metadata
from holdfast.store.sqlite import migrate
from holdfast.store.sqlite_connection import COMPILER, connect, drive
from holdfast.store.statements import Statement
from holdfast.store.steps import StepFilter
from holdfast.store.transaction import Dialect, Row

MODULES = (
    *(runs, leases, rate_limits, threads, messages, frames, holds, journal, steps, traces),
    *(folders, files, attached_files, statistics),
)
# Statements that are for a person or a sweep, and may read one table from end to end; and what others begin with.
MAY_SCAN = {"_RECENTLY_DECIDED", "_ALL"}
ONLY_POSTGRES = {"_HEAD_WITH_TOOLS", "_HEAD_WITH_TOOLS_AND_BLOCKS"}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    migrate(tmp_path / "plans.db")
    with closing(connect(tmp_path / "plans.db", read_only=True)) as opened:
        yield opened


def plan_of(connection: sqlite3.Connection, statement: Statement) -> list[str]:
    shape = COMPILER.prepare(statement, {}).shape
    rows = connection.execute(f"EXPLAIN QUERY PLAN {shape.sql}", [None] * len(shape.names))
    return [detail for *_, detail in rows]


def scans(plan: Sequence[str]) -> list[str]:
    """Of tables. What a query has gathered for itself, it may read from end to end."""
    tables = {f"SCAN {name}" for name in metadata.tables}
    return [line for line in plan if line.partition(" USING ")[0] in tables and " INDEX " not in line]


def constants(module: ModuleType) -> list[tuple[str, Statement]]:
    kinds = (Select, Update, Delete)
    left_out = MAY_SCAN | ONLY_POSTGRES
    return [(name, value) for name, value in vars(module).items() if isinstance(value, kinds) and name not in left_out]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_prepared_statement_scans_a_table(connection: sqlite3.Connection, module: ModuleType) -> None:
    found = constants(module)
    assert found
    assert {name: scans(plan) for name, statement in found if scans(plan := plan_of(connection, statement))} == {}


@pytest.mark.parametrize(
    ("module", "name"),
    [(runs, "_ACTIVE_OF_THREAD"), (leases, "_RENEW"), (leases, "_NEXT"), (leases, "_NEXT_WITHIN_LIMIT")],
)
def test_active_runs_are_found_by_the_index_of_active_runs(
    connection: sqlite3.Connection, module: ModuleType, name: str
) -> None:
    statement = vars(module)[name]
    of_runs = [line for line in plan_of(connection, statement) if " runs " in line]
    assert of_runs
    assert all("active_run" in line for line in of_runs)


class Explaining:
    """A transaction that notes the plan of the page it is asked for, and finds every cursor."""

    dialect: Dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.plan: list[str] = []
        self.changes: list[Change] = []

    async def fetch_all(self, statement: Statement, parameters: Any = None) -> list[Row]:
        self.plan = plan_of(self._connection, statement)
        return []

    async def fetch_one(self, statement: Statement, parameters: Any = None) -> Row | None:
        return {"sort": 1}

    async def execute(self, statement: Statement, parameters: Any = None) -> int:
        raise AssertionError("a list does not write")

    async def execute_many(self, statement: Statement, parameters: Any) -> None:
        raise AssertionError("a list does not write")

    async def execute_one(self, statement: Statement, parameters: Any) -> bool:
        raise AssertionError("a list does not write")


List = Callable[..., Coroutine[Any, Any, Any]]


@pytest.mark.parametrize("page", [Page(), Page(after="x"), Page(before="x"), Page(order="asc", after="x")])
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (agents.list_agents, AgentFilter()),
        (partial(agents.list_agents, order_by="updated_at"), AgentFilter()),
        (messages.list_of_thread, "conv-1"),
        (messages.list_of_run, "run-1"),
        (messages.list_of_step, "step-1"),
        (messages.list_of_agent, "agent-1"),
        (messages.list_of_agent, None),
        (runs.list_runs, RunFilter()),
        (runs.list_runs, RunFilter(agent_ids=("agent-1",), statuses=("completed", "failed"))),
        (runs.list_runs, RunFilter(thread_id="conv-1")),
        (steps.list_steps, StepFilter()),
        (steps.list_steps, StepFilter(agent_id="agent-1")),
    ],
)
def test_a_page_is_read_in_index_order_from_its_cursor(
    connection: sqlite3.Connection, function: List, given: Any, page: Page
) -> None:
    explaining = Explaining(connection)
    drive(lambda tx: function(tx, given, page), explaining)
    plan = " | ".join(explaining.plan)
    assert "TEMP B-TREE" not in plan
    assert page.after is page.before is None or "SEARCH" in explaining.plan[0]
