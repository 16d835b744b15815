"""Requests cost what they cost before. A guard by counts, not by time: it says the same on a busy machine.

A change that is worth more calls raises the budget, and says in its commit what for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from .costs import Cost, What, measure

pytestmark = pytest.mark.slow

# Versions of Python and of libraries differ by less, a needless pass over a request's data by more.
MARGIN: Final = 1.04
BUDGETS: Final[dict[tuple[str, What], Cost]] = {
    ("sqlite", "create an agent"): Cost(calls=650, statements=6),
    ("sqlite", "no-tool turn"): Cost(calls=1811, statements=22),
    ("sqlite", "one-tool turn"): Cost(calls=4181, statements=46),
    ("postgres", "create an agent"): Cost(calls=718, statements=3),
    ("postgres", "no-tool turn"): Cost(calls=2040, statements=4),
    ("postgres", "one-tool turn"): Cost(calls=4710, statements=9),
}


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or a coverage run has calls of its own")
def test_a_request_costs_no_more_calls_and_statements_than_its_budget(tmp_path: Path, database_url: str) -> None:
    name = "sqlite" if database_url.startswith("sqlite") else "postgres"
    costs = measure(tmp_path, None if name == "sqlite" else database_url)
    above = [
        f"{what}: {cost.calls} calls (budget {budget.calls}), {cost.statements} statements (budget {budget.statements})"
        for what, cost in costs.items()
        for budget in [BUDGETS[name, what]]
        if cost.calls > budget.calls * MARGIN or cost.statements > budget.statements
    ]
    assert not above, (
        f"{name}: {'; '.join(above)}. docs/performance.md says how to find what was added. If it is worth it, measure "
        "with `.venv/bin/python -m tests.costs` and put the figures into tests/test_costs.py."
    )
