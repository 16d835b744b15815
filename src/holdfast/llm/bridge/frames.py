"""Amazon's framing of a stream of events: lengths, headers, a payload, and sums over all of it.

A frame is `total length, length of the headers, sum of these two, headers, payload, sum of everything before`; numbers
are big-endian. A header is `length of its name, name, type, value`; names of events and errors are texts, type 7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import msgspec

_PRELUDE: Final = struct.Struct("!III")
_SUM: Final = struct.Struct("!I")
_LARGEST: Final = 24 * 1024 * 1024  # the vendor's own limit
_TEXT: Final = 7
_LENGTH: Final = struct.Struct("!H")


class Frame(msgspec.Struct, frozen=True):
    headers: dict[str, str]
    payload: bytes
    raw: bytes


class FrameReader:
    """Raises ValueError for bytes that are not frames."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def is_amid_a_frame(self) -> bool:
        return bool(self._held)

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        self._held += chunk
        while len(self._held) >= _PRELUDE.size:
            total, headers, said = _PRELUDE.unpack_from(self._held)
            if said != crc32(self._held[:8]) or not _PRELUDE.size + headers + _SUM.size <= total <= _LARGEST:
                raise ValueError("its beginning is not that of a frame")
            if len(self._held) < total:
                return
            raw, self._held = self._held[:total], self._held[total:]
            if _SUM.unpack(raw[-4:])[0] != crc32(raw[:-4]):
                raise ValueError("its sum is wrong")
            begin = _PRELUDE.size + headers
            yield Frame(dict(_headers(raw[_PRELUDE.size : begin])), raw[begin:-4], raw)


def _headers(block: bytes) -> Iterator[tuple[str, str]]:
    """Those that are texts, up to the first that is not: all that name a frame are, and nothing else is looked for."""
    at = 0
    while at < len(block):
        value = at + 1 + block[at] + 1
        if value + 2 > len(block) or block[value - 1] != _TEXT:
            return
        (length,) = _LENGTH.unpack_from(block, value)
        name, at = block[at + 1 : value - 1].decode(errors="replace"), value + 2 + length
        yield name, block[value + 2 : at].decode(errors="replace")
