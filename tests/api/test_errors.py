from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.api.middleware import UnhandledErrors
from tests.served import served

from .application import AGENT, client_of


async def answer_to(failure: Exception) -> tuple[int, Any, dict[str, str]]:
    async with client_of(failure=failure) as client:
        answer = await client.get("/v1/failure")
    return answer.status_code, answer.json(), dict(answer.headers)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (errors.NotFound("no such thing"), 404),
        (errors.Invalid("no such thing"), 400),
        (errors.Gone("no such thing"), 410),
        (errors.Unsupported("no such thing"), 501),
        (errors.NothingToCancel("no such thing"), 409),
    ],
)
async def test_a_request_error_is_answered_with_its_status_and_told_not_to_be_retried(
    failure: errors.RequestError, status: int
) -> None:
    got, body, headers = await answer_to(failure)
    assert (got, body) == (status, {"detail": "no such thing"})
    assert headers["x-should-retry"] == "false"


async def test_a_busy_conversation_may_be_retried_and_names_the_run() -> None:
    status, body, headers = await answer_to(errors.Busy("run-1"))
    assert status == 409
    assert body["run_id"] == "run-1"
    assert "x-should-retry" not in headers
    assert headers["retry-after"] == "1"


async def test_a_pending_approval_carries_its_code_and_request() -> None:
    status, body, headers = await answer_to(errors.PendingApproval("message-1"))
    assert status == 409
    assert body["detail"]["code"] == "PENDING_APPROVAL"
    assert body["detail"]["pending_request_id"] == "message-1"
    assert headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("failure", "status", "kind", "code"),
    [
        (errors.ModelTimedOut("slow"), 504, "llm_timeout", "TIMEOUT"),
        (errors.RateLimited("slow"), 429, "llm_rate_limit", "RATE_LIMIT_EXCEEDED"),
        (errors.AuthRejected("slow"), 401, "llm_authentication", "UNAUTHENTICATED"),
        (errors.QuotaExceeded("slow"), 402, "llm_insufficient_credits", "INSUFFICIENT_CREDITS"),
        (errors.Refused("slow"), 400, "llm_bad_request", "INVALID_ARGUMENT"),
        (errors.ModelUnavailable("slow"), 500, "llm_error", "INTERNAL_SERVER_ERROR"),
        (errors.EmptyReply("slow"), 500, "llm_error", "EMPTY_RESPONSE"),
    ],
)
async def test_a_vendor_failure_is_an_error_object(
    failure: errors.ModelError, status: int, kind: str, code: str
) -> None:
    got, body, headers = await answer_to(failure)
    assert got == status
    assert body == {"error": {"type": kind, "message": failure.summary, "detail": f"{code}: slow"}}
    assert headers["x-should-retry"] == "false"


async def test_a_vendor_s_wish_to_wait_is_passed_on() -> None:
    _, _, headers = await answer_to(errors.RateLimited("slow", retry_after=12.4))
    assert headers["retry-after"] == "12"


@pytest.mark.parametrize("failure", [errors.ContextTooLong("9 > 8"), errors.SystemPromptTooLong("9 > 8")])
async def test_a_full_context_window_is_a_plain_detail_with_its_code(failure: errors.ModelError) -> None:
    status, body, _ = await answer_to(failure)
    assert (status, body) == (400, {"detail": "CONTEXT_WINDOW_EXCEEDED: 9 > 8"})


async def test_an_overloaded_vendor_is_503_with_a_plain_detail() -> None:
    status, body, _ = await answer_to(errors.Overloaded("busy"))
    assert (status, body) == (503, {"detail": "OVERLOADED: busy"})


async def test_a_secret_that_cannot_be_opened_says_so() -> None:
    status, body, _ = await answer_to(errors.WrongKey("sealed with another key"))
    assert (status, body) == (500, {"detail": "sealed with another key"})


@pytest.mark.parametrize("failure", [ValueError("inside"), errors.IllegalEvent("inside"), KeyError("inside")])
async def test_an_unknown_failure_is_500_without_its_text_and_logged_whole(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        status, body, _ = await answer_to(failure)
    assert (status, body) == (500, {"detail": "An unknown error occurred"})
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is failure


async def _cut_off(begin: Callable[[Any], Awaitable[None]]) -> list[Any]:
    """What a client is sent whose request is cut off after `begin`."""
    begun = asyncio.Event()
    sent: list[Any] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await begin(send)
        begun.set()
        await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/agents/"}
    answering = asyncio.create_task(UnhandledErrors(answer)(scope, receive, send))
    await begun.wait()
    answering.cancel()
    await answering  # uvicorn would log a traceback of whatever it raises
    return sent


async def test_a_request_that_a_stopping_server_cuts_off_is_503_and_told_not_to_be_retried() -> None:
    async def begin(send: Any) -> None:
        pass

    sent = await _cut_off(begin)
    assert sent[0]["status"] == 503
    assert (b"x-should-retry", b"false") in sent[0]["headers"]
    assert "could not finish this in time" in json.loads(sent[1]["body"])["detail"]


async def test_a_stream_that_a_stopping_server_cuts_off_is_left_unfinished(caplog: pytest.LogCaptureFixture) -> None:
    async def begin(send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})

    assert [message["type"] for message in await _cut_off(begin)] == ["http.response.start", "http.response.body"]
    assert "POST /v1/agents/ was cut off" in caplog.text


async def test_a_malformed_id_is_422_with_an_example_of_a_good_one() -> None:
    async with client_of() as client:
        answer = await client.get("/v1/notes/agent-1")
    assert answer.status_code == 422
    assert answer.json() == {
        "trace_id": "",
        "detail": "path.agent_id: String should match pattern 'agent-{uuid4}'",
        "examples": [AGENT],
    }


async def test_a_conversation_may_be_named_in_three_ways() -> None:
    conversation = AGENT.replace("agent", "conv")
    async with client_of() as client:
        for name in ("default", AGENT, conversation):
            assert (await client.get(f"/v1/talks/{name}")).json() == name
        answer = await client.get("/v1/talks/other")
    assert answer.status_code == 422
    assert answer.json()["examples"] == ["default", conversation, AGENT]


async def test_a_bad_field_is_named_together_with_its_problem() -> None:
    async with client_of() as client:
        missing = await client.post("/v1/notes/", json={})
        limit = await client.get("/v1/notes/", params={"limit": 0, "order": "up"})
    assert missing.status_code == limit.status_code == 422
    assert missing.json()["detail"] == "body.text: Field required"
    assert "query.limit: Input should be greater than or equal to 1" in limit.json()["detail"]
    assert "query.order" in limit.json()["detail"]
    assert "examples" not in limit.json()


async def test_a_rule_of_ours_is_told_in_its_own_words(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent = await client.agent()
        said = await client.refusal(422, "POST", f"/v1/agents/{agent.id}/messages", {})
    assert said == "body: Exactly one of `messages` and `input` must be given"


async def test_an_unknown_route_and_a_wrong_method_say_which() -> None:
    async with client_of() as client:
        unknown = await client.get("/v1/nothing")
        wrong = await client.put("/v1/notes/", json={})
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "There is no route GET /v1/nothing."})
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "/v1/notes/ does not accept PUT."})
    assert wrong.headers["allow"] == "GET, POST"
