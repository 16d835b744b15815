"""How near vectors are to each other. Vectors are 32-bit floats of length one, codes a bit for the sign of each number.

Codes are compared first: they are a thirty-second of the size, and how many bits differ tells the angle well enough to
leave out almost everything. numpy does it if it is installed; plain Python gives the same answers, ten times slower.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Sequence
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


def nearest_codes(codes: bytes | bytearray, code: bytes, most: int, among: Sequence[int] | None = None) -> list[int]:
    """Places in `codes`, which stand end to end, of those that differ in the fewest bits. In no order.

    `among`: only these places.
    """
    numpy = _numpy()
    if numpy is None:
        return _nearest_plain(codes, code, most, among)
    table = numpy.frombuffer(codes, dtype=numpy.uint64).reshape(-1, len(code) // _WORD_BYTES)
    places = None if among is None else numpy.array(among, dtype=numpy.int64)
    if places is not None:
        table = table[places]
    if len(table) > most:
        differing = numpy.bitwise_count(table ^ numpy.frombuffer(code, dtype=numpy.uint64)).sum(axis=1, dtype="int32")
        kept = numpy.argpartition(differing, most)[:most]
    else:
        kept = numpy.arange(len(table))
    return (kept if places is None else places[kept]).tolist()


def _nearest_plain(codes: bytes | bytearray, code: bytes, most: int, among: Sequence[int] | None) -> list[int]:
    width, wanted = len(code), int.from_bytes(code)
    places = range(len(codes) // width) if among is None else among
    if len(places) <= most:
        return list(places)
    differing = (((int.from_bytes(codes[at * width : at * width + width]) ^ wanted).bit_count(), at) for at in places)
    return [place for _, place in heapq.nsmallest(most, differing)]


def similarities(vectors: Sequence[bytes], vector: bytes) -> list[float]:
    """The cosine of each with the vector."""
    numpy = _numpy()
    if numpy is None:
        wanted = array("f", vector)
        return [sum(map(mul, array("f", other), wanted)) for other in vectors]
    if not vectors:
        return []
    table = numpy.frombuffer(b"".join(vectors), dtype=numpy.float32).reshape(len(vectors), -1)
    return (table @ numpy.frombuffer(vector, dtype=numpy.float32)).tolist()
