"""The one place where an exception becomes an HTTP answer. Unknown ones become 500 and are loud."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence, Sized
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.json import json_response
from holdfast.api.params import examples_for, readable_pattern
from holdfast.core.failures import classify
from holdfast.errors import ConfigError, DatabaseError, ModelError, RequestError, RunInterrupted, Unprocessable

_MAX_PROBLEMS_SHOWN: Final = 10

# letta-client repeats every 408, 409, 429 and 5xx by itself unless told not to. A repeated POST of a message that was
# already stored would put it into the history twice.
_NO_RETRY: Final = {"x-should-retry": "false"}

# What a client is told whose run goes on without it, in an answer or at the end of a stream.
HANDED_OVER: Final[dict[str, Any]] = {
    "error_type": "internal_error",
    "message": "The run was interrupted and will be carried on. It can be read with GET /v1/runs/{run_id}.",
    "detail": "The server had to let go of the run, because it stops or cannot write now. The run will be carried on.",
    "http_status": 503,
    "http_type": None,
}

_CUT_OFF: Final = (
    "The server stops, and could not finish this in time. Check what became of it before you send it again."
)

_log = logging.getLogger(__name__)


def request_error_answer(error: RequestError) -> Response:
    headers = {"retry-after": str(error.retry_after_s)} if error.retry_helps else _NO_RETRY
    return json_response(error.body(), error.status, headers)


def model_error_answer(error: ModelError) -> Response:
    """As the answer to a message whose run failed of the same."""
    return failed_run_answer(classify(error, "").error)


def failed_run_answer(error: dict[str, Any]) -> Response:
    """A run that failed, as the answer to the request that waited for it. The run keeps the whole story."""
    status, headers = error.get("http_status", 500), dict(_NO_RETRY)
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


def install(app: FastAPI) -> None:
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
        return json_response({"detail": str(error)}, 503, _NO_RETRY)

    async def on_database_error(request: Request, error: Exception) -> Response:
        _log.error("%s %s: %s", request.method, request.url.path, error)
        return json_response({"detail": str(error)}, 503)

    async def on_config_error(request: Request, error: Exception) -> Response:
        _log.error("%s %s: %s", request.method, request.url.path, error)
        return json_response({"detail": str(error)}, 500, _NO_RETRY)

    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(ModelError, on_model_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RunInterrupted, on_interruption)
    app.add_exception_handler(DatabaseError, on_database_error)
    app.add_exception_handler(ConfigError, on_config_error)


class UnhandledErrors:
    """The API edge's broad catch: whatever nobody translated is ours, so it is logged whole and answered 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except asyncio.CancelledError:
            # A stopping server cuts off what takes longer than its grace period. uvicorn would log a traceback, and
            # answer 500 in plain text. It closes the connection of an answer that was begun and not finished.
            _log.warning("%s %s was cut off", scope["method"], scope["path"])
            if not started:
                await json_response({"detail": _CUT_OFF}, 503, _NO_RETRY)(scope, receive, send)
        except Exception:
            _log.exception("Unexpected failure in %s %s", scope["method"], scope["path"])
            if started:  # too late for an answer; a cut connection at least shows that it is broken
                raise
            await json_response({"detail": "An unknown error occurred"}, 500)(scope, receive, send)


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
