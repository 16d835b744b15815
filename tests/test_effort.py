"""What a run leaves out of a sweep: combinations, never a promise."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.effort import sampled

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]
SWEEP = """
import pytest

@pytest.mark.parametrize("mode", ["one", "two", "three"])
@pytest.mark.parametrize("promise", range(60))
def test_kept(promise, mode):
    pass

def test_alone():
    pass
"""


@pytest.fixture
def sweep(pytester: pytest.Pytester) -> list[pytest.Item]:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    return pytester.getitems(SWEEP)


def test_a_sample_has_every_promise_once_and_every_value_its_share(sweep: list[pytest.Item]) -> None:
    kept = [item.name for item in sampled(sweep, ("mode",))]
    promises = Counter(name.removesuffix("]").partition("[")[2].partition("-")[0] for name in kept)
    assert promises == {"": 1, **{str(number): 1 for number in range(60)}}
    shares = Counter(name.removesuffix("]").rpartition("-")[2] for name in kept if "-" in name)
    assert shares.keys() == {"one", "two", "three"}
    assert min(shares.values()) > 10


def test_a_sample_does_not_depend_on_the_order_of_the_sweeps_around_it(sweep: list[pytest.Item]) -> None:
    """Every process of a run collects for itself, and all must have the same."""
    kept = sampled(sweep, ("mode",))
    assert sampled(sweep[90:], ("mode",)) == [item for item in kept if item in sweep[90:]]
