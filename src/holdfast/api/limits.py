"""What a request may carry: so many bytes, and only what both databases can store.

PostgreSQL refuses NUL in text, and integers have 64 bits in both. JSON allows more, so a body is read and checked
before any route sees it; the caller gets a sentence, not a failure from deep inside.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.errors import request_error_answer
from holdfast.api.json import is_json_type
from holdfast.errors import HoldfastError, RequestError, TooLarge, Unprocessable

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_UPLOADS: Final = "/upload"  # the end of the paths that take files, which have a limit of their own
_MOST_THROWN_AWAY: Final = 1 << 30  # bytes of a file that is refused
FORM_BYTES: Final = 64 * 1024  # of a form, beside the file in it
MAX_QUERY_FIELDS: Final = 1_000
# Of one body. Each costs a microsecond or two of the event loop, whatever it says; text may be as long as the body.
MAX_VALUES: Final = 200_000
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_SEARCH_COSTS: Final = 32  # bytes that are searched in the time in which one decoded value is looked at


class Limits:
    def __init__(self, app: ASGIApp, max_body_bytes: int, max_file_bytes: int) -> None:
        self._app = app
        self._max = max_body_bytes
        self._max_upload = max_file_bytes + FORM_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            _check_address(scope)
            length, is_json = _body_headers(scope)
            is_upload = scope["path"].endswith(_UPLOADS)
            if length is not None and length > (self._max_upload if is_upload else self._max):
                raise self._too_large(is_upload)
            if is_json is None and length != 0:
                # HTTP libraries that are handed text need not say what it is, and all that we read is JSON.
                scope["headers"] = [*scope["headers"], (b"content-type", b"application/json")]
                is_json = True
            if is_json:
                receive = await self._read_json(receive)
            elif length != 0 or scope["method"] not in _WITHOUT_BODY:
                await self._pass_counted(scope, receive, send, is_upload)
                return
        except RequestError as error:
            await _refuse(error, scope, receive, send)
        except _ClientLeft:
            return
        else:
            await self._app(scope, receive, send)

    async def _read_json(self, receive: Receive) -> Receive:
        """Takes the whole body, checks it, and returns a `receive` that hands it out again."""
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft("the client left before its body was complete")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > self._max:
                raise self._too_large()
            chunks.append(chunk)
            more = message.get("more_body", False)
        body = b"".join(chunks)
        if body:
            check_json(body)
        return _replay(body, receive)

    async def _pass_counted(self, scope: Scope, receive: Receive, send: Send, is_upload: bool) -> None:
        """Uploads are streamed. Frameworks turn what `receive` raises into a 400, so their answer is replaced."""
        size, overflowed, started = 0, False, False
        most = self._max_upload if is_upload else self._max

        async def counted_receive() -> Message:
            nonlocal size, overflowed
            message = await receive()
            size += len(message.get("body", b""))
            if size > most and not started:
                overflowed = True
                raise self._too_large(is_upload)
            return message

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if not overflowed:
                started = True
                await send(message)

        try:
            await self._app(scope, counted_receive, guarded_send)
        except TooLarge:
            if not overflowed:
                raise
        if overflowed:
            await _refuse(self._too_large(is_upload), scope, receive, send)

    def _too_large(self, is_upload: bool = False) -> TooLarge:
        most, setting = (self._max_upload, "FILE") if is_upload else (self._max, "BODY")
        return TooLarge(
            f"The request is larger than {most} bytes, the most this server accepts (HOLDFAST_MAX_{setting}_BYTES)."
        )


class _ClientLeft(HoldfastError):
    """Nobody is left to answer."""


def check_json(body: bytes, what: str = "body", most_values: int = MAX_VALUES) -> Any:
    """The decoded body, or Unprocessable with what is wrong and where. `what` is the name of what is read."""
    values = _count_values(body, most_values)
    if values > most_values:
        raise Unprocessable(
            f"The {what} holds more than {most_values} JSON values, the most that is accepted. Split it."
        )
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise Unprocessable(f"The {what} is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unprocessable(f"The {what} is not valid JSON in UTF-8: {error}") from error
    # Many short values are looked at in the body itself first: it hardly ever holds what could be wrong with one.
    if values * _SEARCH_COSTS < len(body) or b"\\u0000" in body or _LONG_NUMBER.search(body):
        check_storable(value, what)
    return value


def _count_values(body: bytes, most: int) -> int:
    """About how many values a JSON text holds, without decoding it. Never too few; too many only below the limit."""
    values = _separators(body)
    if values <= most:
        return values
    # Commas and brackets in texts do not count.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2
    return texts if texts > 2 * most else _separators(b"".join(plain.split(b'"')[::2]))


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def check_storable(value: object, where: str = "body") -> None:
    """Refuses NUL in text and integers beyond 64 bits, anywhere in decoded JSON."""
    pending = [value]
    while pending:
        item = pending.pop()
        if _problem(item):
            raise Unprocessable(_locate(value, where))
        if isinstance(item, dict):
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def _problem(item: object) -> str | None:
    if isinstance(item, str):
        return "text must not hold NUL characters" if "\x00" in item else None
    if isinstance(item, int) and not _INT64_MIN <= item <= _INT64_MAX:
        return "numbers must fit into 64 bits"
    return None


def _locate(value: Any, where: str) -> str:
    """Only after something was found, so that the common case need not carry paths along."""
    if problem := _problem(value):
        return f"{where}: {problem}"
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            if _problem(key):
                return f"{where}: {_problem(key)}"
            if found := _locate(inner, f"{where}.{key}"):
                return found
    if isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            if found := _locate(inner, f"{where}.{index}"):
                return found
    return ""


def _check_address(scope: Scope) -> None:
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        raise Unprocessable("The address must not hold NUL characters.")
    if (fields := scope["query_string"].count(b"&") + 1) > MAX_QUERY_FIELDS:
        raise Unprocessable(f"The query has {fields} parameters; at most {MAX_QUERY_FIELDS} are accepted.")


def _body_headers(scope: Scope) -> tuple[int | None, bool | None]:
    """How long the body says it is, and whether it is JSON. None: it does not say."""
    length: int | None = 0
    is_json: bool | None = None
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = int(value) if value.isdigit() else None
        elif name == b"transfer-encoding":
            length = None
        elif name == b"content-type":
            is_json = is_json_type(value)
    return length, is_json


def _replay(body: bytes, receive: Receive) -> Receive:
    handed_out = False

    async def replayed() -> Message:
        nonlocal handed_out
        if handed_out:
            return await receive()
        handed_out = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _may_finish(scope: Scope) -> bool:
    """A file that is too large by as much as people mistake is taken and thrown away: whoever is cut off in the middle
    of sending does not get to read why."""
    length, _ = _body_headers(scope)
    return scope["path"].endswith(_UPLOADS) and length is not None and length <= _MOST_THROWN_AWAY


async def _refuse(error: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
    answer = request_error_answer(error)
    if isinstance(error, TooLarge) and not _may_finish(scope):
        answer.headers["connection"] = "close"  # the rest of the body is not worth reading
    await answer(scope, receive, send)
