"""Sums of bytes in the order in which runs ended: what has to go is known without reading it all again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.room import Room
from holdfast.store.retention import Place


def ended(*sizes: int, after: int = 0) -> list[tuple[Place, int]]:
    return [(Place(after + number, f"run-{after + number}"), size) for number, size in enumerate(sizes, 1)]


def test_nothing_goes_while_there_is_room() -> None:
    room = Room(100)
    room.add(ended(50, 50))
    assert room.excess() is None
    assert room.total == 100
    assert room.counted.us == 2


def test_the_oldest_go_first_and_no_more_than_necessary() -> None:
    room = Room(100)
    room.add(ended(50, 40, 30, 20))
    assert room.excess() == Place(1, "run-1")
    assert room.total == 90
    room.add(ended(60, after=4))
    assert room.excess() == Place(3, "run-3")
    assert room.total == 80


def test_a_count_can_begin_anew_from_what_is_left() -> None:
    room = Room(100)
    room.add(ended(90, 90))
    assert room.excess() == Place(1, "run-1")
    room.swept = Place(1, "run-1")
    room.recount()
    assert (room.total, room.counted) == (0, Place(1, "run-1"))


@given(st.lists(st.lists(st.integers(0, 300)), max_size=20), st.integers(64, 10_000))
def test_what_is_kept_fits_and_is_nearly_as_much_as_could_be(parts: list[list[int]], most: int) -> None:
    room, sizes, cut = Room(most), list[int](), 0
    for part in parts:
        room.add(ended(*part, after=len(sizes)))
        sizes += part
        gone = room.excess()
        cut = gone.us if gone else cut
        assert room.total == sum(sizes[cut:]) <= most
        if gone:
            assert sum(sizes[cut - 1 :]) + most // 64 >= most - 300
        assert len(room._sums) <= 2 * 64 + 2 + len(sizes[cut:])


def test_the_memory_does_not_grow_with_the_number_of_runs() -> None:
    room = Room(64_000)
    for start in range(0, 100_000, 1_000):
        room.add(ended(*[10] * 1_000, after=start))
        room.excess()
    assert len(room._sums) <= 2 * 64
