"""The file in a form (multipart/form-data), handed on while it comes in: neither memory nor disk holds it here."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from email.message import Message as Header
from typing import Final

import msgspec
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError

from holdfast.errors import Unprocessable

_LONGEST_HEADERS: Final = 16 * 1024  # of one part, in bytes


class FormFile(msgspec.Struct, frozen=True):
    name: str
    content_type: str | None
    content: AsyncIterator[bytes]


async def read_file(content_type: str, body: AsyncIterator[bytes], field: str = "file") -> FormFile:
    """Returns as soon as the file begins; its content is then to be read. Unprocessable when there is none."""
    parts = _Parts(content_type)
    events = parts.read(body)
    async for event in events:
        if isinstance(event, Header):
            disposition = dict(event.get_params([], "content-disposition"))
            if disposition.get("name") == field and (name := event.get_filename()) is not None:
                return FormFile(name, event.get("content-type"), _content(events))
    raise Unprocessable(f"The form holds no file: send one as the field {field!r}, with its name.")


async def _content(events: AsyncIterator[Header | bytes | None]) -> AsyncIterator[bytes]:
    async for event in events:
        if not isinstance(event, bytes):
            return
        yield event
    raise Unprocessable("The form ends in the middle of the file: send it again.")


class _Parts:
    """What the parser finds: the headers of a part, pieces of its content, and None at its end."""

    def __init__(self, content_type: str) -> None:
        kind = Header()
        kind["content-type"] = content_type
        boundary = kind.get_param("boundary")
        if kind.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
            raise Unprocessable("Send the file as multipart/form-data, with a boundary: a form with the field 'file'.")
        self._found: deque[Header | bytes | None] = deque()
        self._headers, self._length = Header(), 0
        self._name, self._value = bytearray(), bytearray()
        self._parser = MultipartParser(
            boundary.encode("latin-1", "replace"),
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header(self._name, data[start:end]),
                "on_header_value": lambda data, start, end: self._header(self._value, data[start:end]),
                "on_header_end": self._header_end,
                "on_headers_finished": lambda: self._found.append(self._headers),
                "on_part_data": lambda data, start, end: self._found.append(bytes(data[start:end])),
                "on_part_end": lambda: self._found.append(None),
            },
        )

    async def read(self, body: AsyncIterator[bytes]) -> AsyncGenerator[Header | bytes | None]:
        async for piece in body:
            try:
                self._parser.write(piece)
            except MultipartParseError as error:
                raise Unprocessable(f"The form cannot be read: {error}") from error
            while self._found:
                yield self._found.popleft()

    def _begin(self) -> None:
        self._headers, self._length = Header(), 0

    def _header(self, part: bytearray, piece: bytes) -> None:
        self._length += len(piece)
        if self._length > _LONGEST_HEADERS:
            raise Unprocessable("The headers of the form are too long.")
        part += piece

    def _header_end(self) -> None:
        name, value = self._name.decode("latin-1"), self._value.decode("utf-8", "replace")
        self._headers[name] = value.replace("\r", " ").replace("\n", " ")
        self._name.clear()
        self._value.clear()
