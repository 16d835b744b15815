"""How near vectors are to each other. Vectors are 32-bit floats of length one, codes a bit for the sign of each number.

Codes are compared first: they are a thirty-second of the size, and how many bits differ tells the angle well enough to
leave out almost everything. numpy does it if it is installed; plain Python gives the same answers, more slowly.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import mul
from typing import Any, Final

_WORD_BYTES: Final = 8


@cache
def _numpy() -> Any:
    return import_module("numpy") if find_spec("numpy") else None


def normalised(numbers: Sequence[float]) -> bytes | None:
    """None for a vector without a direction: it is near to nothing."""
    length = math.sqrt(sum(map(mul, numbers, numbers)))
    if not length or not math.isfinite(length):
        return None
    return array("f", [number / length for number in numbers]).tobytes()


def code_of(vector: bytes) -> bytes:
    """Filled up with zeros to whole 64-bit words."""
    signs = "".join("1" if number > 0 else "0" for number in array("f", vector))
    words = -(-len(signs) // (_WORD_BYTES * 8))
    return int(signs.ljust(words * _WORD_BYTES * 8, "0"), 2).to_bytes(words * _WORD_BYTES)


class CodeTable:
    """Many codes of one length, ready to be compared. It is never changed: more of them make another."""

    def __init__(self, width: int, codes: bytes) -> None:
        """`codes` is their concatenation, each of `width` bytes."""
        self._width = width
        self._count = len(codes) // width
        self._codes = codes
        self._columns: Any = None
        if (numpy := _numpy()) is not None:
            # Word by word instead of code by code: long runs of one operation are what numpy is quick at.
            table = numpy.frombuffer(codes, dtype=numpy.uint64).reshape(-1, width // _WORD_BYTES)
            self._codes, self._columns = b"", numpy.ascontiguousarray(table.T)

    @property
    def size(self) -> int:
        """In bytes."""
        return self._count * self._width

    def extended(self, codes: bytes) -> CodeTable:
        made = CodeTable(self._width, codes)
        if made._columns is not None:
            made._columns = _numpy().concatenate([self._columns, made._columns], axis=1)
        made._codes = self._codes + made._codes
        made._count += self._count
        return made

    def __len__(self) -> int:
        return self._count

    def nearest(self, code: bytes, most: int, among: Sequence[int] | None = None) -> list[int]:
        """The places of those that differ in the fewest bits, in no order. `among`: only these places."""
        if len(self if among is None else among) <= most:
            return list(range(len(self)) if among is None else among)
        if self._columns is None:
            return self._nearest_plain(code, most, range(len(self)) if among is None else among)
        kept = _numpy().argpartition(self._differing(code, among), most)[:most].tolist()
        return kept if among is None else [among[at] for at in kept]

    def differences(self, code: bytes, among: Sequence[int]) -> list[int]:
        """In how many bits the code at each of these places differs."""
        if self._columns is None:
            return list(self._differing_plain(code, among))
        return self._differing(code, among).tolist() if among else []

    def _differing(self, code: bytes, among: Sequence[int] | None) -> Any:
        numpy = _numpy()
        columns = self._columns if among is None else self._columns[:, numpy.array(among)]
        differing = numpy.zeros(columns.shape[1], dtype=numpy.uint16)
        for column, word in zip(columns, numpy.frombuffer(code, dtype=numpy.uint64), strict=True):
            differing += numpy.bitwise_count(column ^ word)
        return differing

    def _nearest_plain(self, code: bytes, most: int, among: Sequence[int]) -> list[int]:
        differing = zip(self._differing_plain(code, among), among, strict=True)
        return [place for _, place in heapq.nsmallest(most, differing)]

    def _differing_plain(self, code: bytes, among: Sequence[int]) -> Iterator[int]:
        codes, width, target = self._codes, self._width, int.from_bytes(code)
        return ((int.from_bytes(codes[at * width : at * width + width]) ^ target).bit_count() for at in among)


def similarities(vectors: Sequence[bytes], vector: bytes) -> list[float]:
    """The cosine of each with the vector."""
    numpy = _numpy()
    if numpy is None:
        target = array("f", vector)
        return [sum(map(mul, array("f", other), target)) for other in vectors]
    if not vectors:
        return []
    table = numpy.frombuffer(b"".join(vectors), dtype=numpy.float32).reshape(len(vectors), -1)
    return (table @ numpy.frombuffer(vector, dtype=numpy.float32)).tolist()
