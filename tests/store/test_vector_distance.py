"""The arithmetic of vectors, with numpy and without."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

import pytest

from holdfast.store import vector_distance
from holdfast.store.vector_distance import CodeTable, code_of, normalised, similarities


@pytest.fixture(params=["numpy", "plain"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whether numpy is there."""
    if request.param == "plain":
        monkeypatch.setattr(vector_distance, "find_spec", _nothing)
    vector_distance._numpy.cache_clear()
    yield
    vector_distance._numpy.cache_clear()


def _nothing(_: str) -> None:
    """Is installed."""


def around(centre: list[float], noise: float, chance: random.Random) -> bytes:
    made = normalised([number + chance.gauss(0, noise) for number in centre])
    assert made is not None
    return made


def test_a_vector_has_length_one_or_is_none_at_all() -> None:
    made = normalised([3.0, 4.0])
    assert made is not None
    assert array("f", made).tolist() == pytest.approx([0.6, 0.8])
    assert normalised([0.0, 0.0]) is None
    assert normalised([]) is None
    assert normalised([float("nan"), 1.0]) is None
    assert normalised([float("inf"), 1.0]) is None


def test_a_code_has_a_bit_for_each_sign_and_fills_whole_words() -> None:
    code = code_of(array("f", [1.0, -1.0, 0.0, 2.0]).tobytes())
    assert code == bytes([0b10010000, 0, 0, 0, 0, 0, 0, 0])
    assert len(code_of(array("f", [1.0] * 65).tobytes())) == 16


@pytest.mark.usefixtures("arithmetic")
class TestBothWays:
    def test_the_cosine_is_exact(self) -> None:
        assert similarities(
            [array("f", [1, 0]).tobytes(), array("f", [0.6, 0.8]).tobytes()], array("f", [1, 0]).tobytes()
        ) == (pytest.approx([1.0, 0.6]))
        assert similarities([], b"") == []

    def test_codes_find_the_nearest_vectors(self) -> None:
        chance = random.Random(1)
        centres = [[chance.gauss(0, 1) for _ in range(128)] for _ in range(40)]
        vectors = [around(centres[n % 40], 0.5, chance) for n in range(800)]
        table = CodeTable(16, b"".join(map(code_of, vectors[:300]))).extended(b"".join(map(code_of, vectors[300:])))
        assert (len(table), table.size) == (800, 12_800)
        for centre in range(0, 40, 8):
            asked = around(centres[centre], 0.5, chance)
            near = similarities(vectors, asked)
            best = sorted(range(800), key=lambda at: -near[at])[:10]
            assert set(best) <= set(table.nearest(code_of(asked), 60))

    def test_only_those_allowed_are_looked_at(self) -> None:
        vectors = [array("f", [sign, 1.0]).tobytes() for sign in (-1.0, 1.0, -1.0, 1.0)]
        table = CodeTable(8, b"".join(map(code_of, vectors)))
        code = code_of(vectors[1])
        assert sorted(table.nearest(code, 2)) == [1, 3]
        assert table.nearest(code, 1, among=[0, 3]) == [3]
        assert table.nearest(code, 5, among=[0, 2]) == [0, 2]
        assert table.nearest(code, 5, among=[]) == []
