"""Sums of bytes in the order in which runs ended: what has to go is known without reading it all again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.retention import SizeLimit
from holdfast.store.retention import Place


def ended(*sizes: int, after: int = 0) -> list[tuple[Place, int]]:
    return [(Place(after + number, f"run-{after + number}"), size) for number, size in enumerate(sizes, 1)]


def test_nothing_goes_while_there_is_room() -> None:
    limit = SizeLimit(100)
    limit.add(ended(50, 50))
    assert limit.excess() is None
    assert limit.total == 100
    assert limit.counted.us == 2


def test_the_oldest_go_first_and_no_more_than_necessary() -> None:
    limit = SizeLimit(100)
    limit.add(ended(50, 40, 30, 20))
    assert limit.excess() == Place(1, "run-1")
    assert limit.total == 90
    limit.add(ended(60, after=4))
    assert limit.excess() == Place(3, "run-3")
    assert limit.total == 80


def test_a_count_can_begin_anew_from_what_is_left() -> None:
    limit = SizeLimit(100)
    limit.add(ended(90, 90))
    assert limit.excess() == Place(1, "run-1")
    limit.swept = Place(1, "run-1")
    limit.recount()
    assert (limit.total, limit.counted) == (0, Place(1, "run-1"))


@given(st.lists(st.lists(st.integers(0, 300)), max_size=20), st.integers(64, 10_000))
def test_what_is_kept_fits_and_is_nearly_as_much_as_could_be(parts: list[list[int]], most: int) -> None:
    limit, sizes, cut = SizeLimit(most), list[int](), 0
    for part in parts:
        limit.add(ended(*part, after=len(sizes)))
        sizes += part
        gone = limit.excess()
        cut = gone.us if gone else cut
        assert limit.total == sum(sizes[cut:]) <= most
        if gone:
            assert sum(sizes[cut - 1 :]) + most // 64 >= most - 300
        assert len(limit._sums) <= 2 * 64 + 2 + len(sizes[cut:])


def test_the_memory_does_not_grow_with_the_number_of_runs() -> None:
    limit = SizeLimit(64_000)
    for start in range(0, 100_000, 1_000):
        limit.add(ended(*[10] * 1_000, after=start))
        limit.excess()
    assert len(limit._sums) <= 2 * 64
