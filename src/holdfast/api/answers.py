"""How the API answers: with JSON, with a stream that follows a run, or with what went wrong.

JSON is encoded once, straight to bytes, without a second validation of what we built ourselves. Errors become answers
here and nowhere else; what nobody translated is caught by `middleware.UnhandledErrors`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence, Sized
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.api.params import examples_for, readable_pattern
from holdfast.core.failures import classify
from holdfast.core.frames import ErrorFrame
from holdfast.engine.streams import Numbered
from holdfast.errors import (
    ConfigError,
    DatabaseError,
    HandedOver,
    ModelError,
    RequestError,
    RunInterrupted,
    Unprocessable,
)
from holdfast.wire.chat_completions import ChatChunks
from holdfast.wire.responses import DONE, FrameEncoder

_MAX_PROBLEMS_SHOWN: Final = 10
# letta-client repeats every 408, 409, 429 and 5xx by itself unless told not to. A repeated POST of a message that was
# already stored would put it into the history twice.
NO_RETRY: Final = {"x-should-retry": "false"}
# What a client is told whose run goes on without it, in an answer or at the end of a stream.
HANDED_OVER: Final[dict[str, Any]] = {
    "error_type": "internal_error",
    "message": "The run was interrupted and will be carried on. It can be read with GET /v1/runs/{run_id}.",
    "detail": "The server had to let go of the run, because it stops or cannot write now. The run will be carried on.",
    "http_status": 503,
    "http_type": None,
}
EVENT_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_log = logging.getLogger(__name__)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value`: dicts, lists, msgspec structs, datetimes and pydantic models, nested in any way."""
    return Response(_encoder.encode(value), status, headers, "application/json")


def _encode_foreign(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


class EventStream(Response):
    """Follows a run. The reader may come and go: it never slows or stops the run.

    Three children: one writes what the run produces, one pings while nothing comes, one listens for the reader to
    leave. Whichever of the first and the last ends first ends the response.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        batches: AsyncGenerator[Sequence[Numbered]],
        encoder: FrameEncoder | ChatChunks,
        *,
        keepalive_s: float,
        include_pings: bool,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._batches = batches
        self._encoder = encoder
        self._keepalive_s = keepalive_s
        self._include_pings = include_pings
        self._last_seq = 0
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": EVENT_STREAM_HEADERS})
        children = [asyncio.create_task(self._write(send)), asyncio.create_task(reader_left(receive))]
        if self._include_pings:
            await self._send(send, self._encoder.ping())
            pinging = asyncio.create_task(self._ping(send))
        else:
            pinging = None
        try:
            done, _ = await asyncio.wait(children, return_when=asyncio.FIRST_COMPLETED)
            for child in done:
                child.result()
        finally:
            everyone = [*children, *([pinging] if pinging else [])]
            for child in everyone:
                child.cancel()
            await asyncio.wait(everyone)

    async def _write(self, send: Send) -> None:
        try:
            async for batch in self._batches:
                self._last_seq = batch[-1][0]
                shown = self._encoder.encode_all(batch)
                if shown:
                    await self._send(send, shown)
        except (HandedOver, DatabaseError) as error:
            # Half an answer must not look like a whole one. It takes no number: the run's own frames go on after it.
            _log.warning("a stream ends before its run: %s", error)
            await self._send(send, self._encoder.encode_all([(self._last_seq, ErrorFrame(HANDED_OVER))]))
        finally:
            await self._batches.aclose()
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _ping(self, send: Send) -> None:
        while True:
            quiet_s = asyncio.get_running_loop().time() - self._sent_at
            if quiet_s < self._keepalive_s:
                await asyncio.sleep(self._keepalive_s - quiet_s)
            else:
                await self._send(send, self._encoder.ping(self._last_seq))

    async def _send(self, send: Send, body: bytes) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def reader_left(receive: Receive) -> None:
    message: Any = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()


def request_error_answer(error: RequestError) -> Response:
    headers = {"retry-after": str(error.retry_after_s)} if error.retry_helps else NO_RETRY
    return json_response(error.body(), error.status, headers)


def model_error_answer(error: ModelError) -> Response:
    """As the answer to a message whose run failed of the same."""
    return failed_run_answer(classify(error, "").error)


def failed_run_answer(error: dict[str, Any]) -> Response:
    """A run that failed, as the answer to the request that waited for it. The run keeps the whole story."""
    status, headers = error.get("http_status", 500), dict(NO_RETRY)
    if (retry_after := error.get("retry_after")) is not None:
        headers["retry-after"] = str(max(1, round(retry_after)))
    if error.get("http_type") is None:
        return json_response({"detail": error.get("detail") or error["message"]}, status, headers)
    shown = {"type": error["http_type"], "message": error["message"], "detail": error.get("detail")}
    return json_response({"error": shown}, status, headers)


def validation_answer(problems: Sequence[Mapping[str, Any]]) -> Response:
    shown = [_sentence(problem) for problem in problems[:_MAX_PROBLEMS_SHOWN]]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more")
    examples = [example for problem in problems for example in _examples(problem)]
    return request_error_answer(Unprocessable("; ".join(shown), examples))


def translate_errors(app: FastAPI) -> None:
    """Registers every translation. The handlers are `async` because plain ones would run in a thread."""

    async def on_request_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return request_error_answer(error)

    async def on_model_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ModelError)
        return model_error_answer(error)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return validation_answer(error.errors())

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _http_exception_answer(request, error)

    async def on_interruption(request: Request, error: Exception) -> Response:
        return json_response({"detail": str(error)}, 503, NO_RETRY)

    async def on_database_error(request: Request, error: Exception) -> Response:
        _log.error("%s %s: %s", request.method, request.url.path, error)
        return json_response({"detail": str(error)}, 503)

    async def on_config_error(request: Request, error: Exception) -> Response:
        _log.error("%s %s: %s", request.method, request.url.path, error)
        return json_response({"detail": str(error)}, 500, NO_RETRY)

    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(ModelError, on_model_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RunInterrupted, on_interruption)
    app.add_exception_handler(DatabaseError, on_database_error)
    app.add_exception_handler(ConfigError, on_config_error)


def _http_exception_answer(request: Request, error: HTTPException) -> Response:
    detail = error.detail
    if error.status_code == 404 and detail == "Not Found":
        detail = f"There is no route {request.method} {request.url.path}."
    if error.status_code == 405 and detail == "Method Not Allowed":
        detail = f"{request.url.path} does not accept {request.method}."
    return json_response({"detail": detail}, error.status_code, error.headers)


def _sentence(problem: Mapping[str, Any]) -> str:
    where = ".".join(str(step) for step in problem.get("loc", ()))
    message = str(problem.get("msg", "is not valid")).removeprefix("Value error, ")  # pydantic's, before our own words
    if pattern := problem.get("ctx", {}).get("pattern"):
        message = f"String should match pattern '{readable_pattern(pattern)}'"
    if problem.get("type") == "too_long" and isinstance(given := problem.get("input"), Sized):
        message = f"holds {len(given)} items; at most {problem['ctx']['max_length']} are accepted"
    if where == "body" and isinstance(problem.get("input"), bytes):  # the framework did not take it for JSON
        message = "it is read only as JSON; send it with Content-Type: application/json"
    return f"{where}: {message}" if where else message


def _examples(problem: Mapping[str, Any]) -> list[str]:
    if tuple(problem.get("loc", ()))[:1] != ("path",):
        return []
    return examples_for(problem.get("ctx", {}).get("pattern", ""))
