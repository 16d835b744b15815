"""Reads server-sent events from bytes that may be cut anywhere."""

from __future__ import annotations

from typing import Final

from holdfast.errors import BadReply

MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
_EMPTY_LINES: Final = (b"\n\n", b"\n\r", b"\r\r")  # how one shows, whichever ends of lines meet
_BOM: Final = b"\xef\xbb\xbf"
Event = tuple[bytes, bytes]  # its name, empty when it has none, and its data


class SseReader:
    def __init__(self) -> None:
        self._held: list[bytes] = []  # what belongs to an event whose end has not come
        self._held_bytes = 0
        self._last = b""  # bytes of it: an empty line may begin in one chunk and end in another
        self._at_start = True

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are whole now."""
        if not self._held and chunk.count(b"\n") == 2 and chunk.startswith(b"data: ") and chunk.endswith(b"}\n\n"):
            return [(b"", chunk[6:-2])]  # one event, whole: the usual packet
        seam = self._last + chunk
        if not any(end in seam for end in _EMPTY_LINES):
            # No line is empty here, so no event ends: pieces of a long one are joined once, not over and over.
            return self._hold(chunk)
        data = b"".join((*self._held, chunk)) if self._held else chunk
        self._held, self._held_bytes, self._last = [], 0, b""
        if self._at_start:
            data, self._at_start = data.removeprefix(_BOM), False
        half_an_end = b""
        if b"\r" in data:
            # The other half of the last line end may still be on its way.
            half_an_end = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(half_an_end).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = data.split(b"\n\n")
        self._hold(rest + half_an_end)
        return [event for block in blocks if (event := _event(block)) is not None]

    def close(self) -> list[Event]:
        """What came last, when the vendor did not end it with an empty line."""
        data = b"".join(self._held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._held, self._held_bytes, self._last = [], 0, b""
        last = _event((data.removeprefix(_BOM) if self._at_start else data).removesuffix(b"\n"))
        return [last] if last is not None else []

    def _hold(self, piece: bytes) -> list[Event]:
        if piece:
            self._held.append(piece)
            self._held_bytes += len(piece)
            self._last = (self._last + piece[-3:])[-3:]
        if self._held_bytes > MAX_EVENT_BYTES:
            raise BadReply(f"The model sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return []


def _event(block: bytes) -> Event | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return b"", block[6:]
    name, data = b"", list[bytes]()
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return (name, b"\n".join(data)) if data else None
