"""No process of a run is left with a long test at the end."""

from __future__ import annotations

import pytest

from tests.order import long_ones_first

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(40))
def test_short(number):
    pass

@pytest.mark.timeout(5)
def test_impatient():
    pass

@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(7))
def test_long(number):
    pass

@pytest.mark.adapter
@pytest.mark.timeout(900)
def test_of_a_vendor():
    pass
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\ntimeout = 120\nmarkers = adapter")
    return pytester.getitems(TESTS)


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 60])
def test_every_test_is_run_once(items: list[pytest.Item], processes: int) -> None:
    assert sorted(long_ones_first(items, processes), key=items.index) == items


def test_long_ones_are_begun_first_and_the_others_keep_their_order(items: list[pytest.Item]) -> None:
    names = [item.name for item in long_ones_first(items, 1)]
    assert names[:7] == [f"test_long[{number}]" for number in range(7)]
    assert names[7:] == [*(f"test_short[{number}]" for number in range(40)), "test_impatient", "test_of_a_vendor"]


def test_each_process_begins_with_its_share_of_the_long_ones(items: list[pytest.Item]) -> None:
    names = [item.name.partition("[")[0] for item in long_ones_first(items, 3)]
    pieces = [names[:16], names[16:32], names[32:]]  # 49 of them, the rest of a division at the end
    assert [piece.count("test_long") for piece in pieces] == [3, 2, 2]
    assert [piece.index("test_short") for piece in pieces] == [3, 2, 2]
