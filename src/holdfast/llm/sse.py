"""Reads server-sent events from bytes that may be cut anywhere."""

from __future__ import annotations

from typing import Final

from holdfast.errors import BadReply

MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
Event = tuple[bytes, bytes]  # its name, empty when it has none, and its data


class SseReader:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are whole now."""
        data = self._rest + chunk if self._rest else chunk
        if b"\r" in data:
            # Half of a line end may still be on its way.
            held = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            held = b""
        if not data.endswith(b"\n") and b"\n\n" not in data:
            blocks, rest = [], data
        else:
            *blocks, rest = data.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BadReply(f"The model sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return [event for block in blocks if (event := _event(block)) is not None]

    def close(self) -> list[Event]:
        """What came last, when the vendor did not end it with an empty line."""
        last, self._rest = _event(self._rest.removesuffix(b"\r")), b""
        return [last] if last is not None else []


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
