from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.errors import (
    AuthRejected,
    ContextTooLong,
    ModelError,
    ModelTimedOut,
    ModelUnavailable,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    Refused,
    Rejected,
)
from holdfast.llm import failures


def answered(status: int, body: Any = b"", headers: Mapping[str, str] | None = None) -> ModelError:
    said = body if isinstance(body, bytes) else json.dumps(body).encode()
    return failures.from_response("acme", status, headers or {}, said)


def openai(message: str, kind: str | None = None, code: str | int | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(kind: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def google(status: str, message: str = "no") -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": status}}


OVERFLOWS = [
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "the request exceeds the available context size. try increasing the context size",
    "Please reduce the length of the messages or completion.",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",  # Moonshot
    "Prompt exceeds max length",  # Z.ai
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000",  # Together, TGI
]


def relayed(code: int, raw: Any) -> dict[str, Any]:
    """OpenRouter, about a provider behind it."""
    return {"error": {"message": "Provider returned error", "code": code, "metadata": {"raw": raw}}}


BEHIND = json.dumps(openai(OVERFLOWS[0], "invalid_request_error", "context_length_exceeded"))


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, openai("slow down", "requests", "rate_limit_exceeded"), RateLimited),
        (429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), QuotaExceeded),
        (429, b"", RateLimited),
        (401, openai("Incorrect API key", "invalid_request_error", "invalid_api_key"), AuthRejected),
        (401, {"detail": "no"}, AuthRejected),
        (402, openai("Insufficient Balance", "unknown_error"), QuotaExceeded),
        (403, openai("no", "request_forbidden", "unsupported_country_region_territory"), Rejected),
        (404, openai("no such model", "invalid_request_error", "model_not_found"), Rejected),
        (422, {"detail": [{"msg": "bad"}]}, Rejected),
        (400, openai("bad", "invalid_request_error"), Refused),
        (400, openai("filtered", None, "content_filter"), Refused),
        (400, {"error": {"code": 400, "message": "no", "type": "exceed_context_size_error"}}, ContextTooLong),
        (408, b"", ModelTimedOut),
        (413, b"<html>too large</html>", ContextTooLong),
        (500, openai("oops", "server_error"), ModelUnavailable),
        (502, b"<html>Bad gateway</html>", ModelUnavailable),
        (503, openai("busy", "server_error"), Overloaded),
        (504, b"", ModelTimedOut),
        (529, anthropic("overloaded_error"), Overloaded),
        (400, anthropic("invalid_request_error"), Refused),
        (400, anthropic("invalid_request_error", "Your credit balance is too low"), QuotaExceeded),
        (403, anthropic("permission_error"), Rejected),
        (429, google("RESOURCE_EXHAUSTED"), RateLimited),
        (400, google("INVALID_ARGUMENT"), Refused),
        (503, google("UNAVAILABLE"), Overloaded),
        (504, google("DEADLINE_EXCEEDED"), ModelTimedOut),
        (301, b"", Rejected),
        *((400, openai(text, "invalid_request_error"), ContextTooLong) for text in OVERFLOWS),
        (500, openai(OVERFLOWS[4], "server_error"), ContextTooLong),
        (400, relayed(400, BEHIND), ContextTooLong),
        (400, relayed(400, openai(OVERFLOWS[0])), ContextTooLong),
        (400, relayed(400, OVERFLOWS[0]), ContextTooLong),
        (429, relayed(429, "gemma is temporarily rate-limited upstream."), RateLimited),
        (400, relayed(400, None), Refused),
        (400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided."}, AuthRejected),
        (429, openai("You exceeded your current token quota", "exceeded_current_quota_error"), QuotaExceeded),
        (429, openai("Too many tokens per minute: context length 128", "tokens", None), RateLimited),
    ],
)
def test_an_answer_becomes_the_error_that_it_means(status: int, body: Any, error: type[ModelError]) -> None:
    assert type(answered(status, body)) is error


@pytest.mark.parametrize(
    ("status", "named", "said", "error"),
    [
        (403, "UnrecognizedClientException", "The security token is invalid", AuthRejected),
        (403, "ExpiredTokenException:http://internal.amazon.com/", "expired", AuthRejected),
        (403, "AccessDeniedException", "You don't have access to the model", Rejected),
        (429, "ThrottlingException", "Too many tokens, please wait before trying again.", RateLimited),
        (400, "ValidationException", "Input is too long for requested model.", ContextTooLong),
        (400, "ValidationException", "The provided model identifier is invalid.", Refused),
        (408, "ModelTimeoutException", "slow", ModelTimedOut),
        (424, "ModelErrorException", "it broke", ModelUnavailable),
        (429, "ModelNotReadyException", "warming up", Overloaded),
    ],
)
def test_amazon_names_its_errors_in_a_header(status: int, named: str, said: str, error: type[ModelError]) -> None:
    body = json.dumps({"message": said}).encode()
    assert type(failures.from_response("bedrock", status, {"x-amzn-errortype": named}, body)) is error


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"error": {"message": "no", "type": "server_error"}}, ModelUnavailable),
        ({"error": {"message": "no", "type": "invalid_request_error"}}, Refused),
        ({"error": {"message": "no", "code": 429}}, RateLimited),
        ({"error": {"message": "no", "code": "server_is_overloaded"}}, Overloaded),
        ({"object": "error", "message": "no", "code": 400}, Refused),
        ({"message": OVERFLOWS[0], "type": "BadRequestError", "code": 400}, ContextTooLong),
        ({"error": "no"}, ModelUnavailable),
        (relayed(502, BEHIND), ContextTooLong),
        ({"error": {"message": "no", "code": 1_000_000}}, ModelUnavailable),
    ],
)
def test_an_error_object_in_a_stream_becomes_the_error_that_it_means(
    found: dict[str, Any], error: type[ModelError]
) -> None:
    assert type(failures.in_stream("acme", found)) is error


def test_the_message_names_the_vendor_and_quotes_its_sentence() -> None:
    assert answered(429, openai("Slow down.")).message == "Rate limited by acme: Slow down."
    assert answered(400, relayed(400, "no images")).message == "Bad request to acme: Provider returned error: no images"
    assert answered(502, b"<h1>Bad\n gateway</h1>").message == "Error at acme: <h1>Bad gateway</h1> (status 502)"
    assert answered(500).message == "Error at acme: status 500 (status 500)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Incorrect API key provided: sk-proj-****************abcd.", "Incorrect API key provided: [key]."),
        ("key sk-ant-api03-AbCdEf_12-34 is revoked", "key [key] is revoked"),
        ("gsk_abcdefgh1234 and xai-abcdefgh1234", "[key] and [key]"),
        ("AIzaSyA1234567890 is not valid", "[key] is not valid"),
        ("skipping the keyboard_shortcuts of task-management", "skipping the keyboard_shortcuts of task-management"),
    ],
)
def test_keys_are_hidden_and_words_are_not(text: str, shown: str) -> None:
    assert failures.hide_keys(text) == shown
    assert shown in answered(400, openai(text)).message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 -0000", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
    ],
)
def test_when_to_try_again_is_read_from_the_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert answered(429, b"", headers).retry_after == seconds


def test_a_body_of_any_shape_can_be_described() -> None:
    assert failures.described(b'[{"error": {"message": "no", "status": "UNAVAILABLE"}}]') == (("UNAVAILABLE",), "no")
    assert failures.described(b"[]") == ((), "")
    assert failures.described(b'"no"') == ((), '"no"')
    assert failures.described(b'{"error": {"odd": 1}}') == ((), '{"odd":1}')
    assert failures.described(b"\xff no") == ((), "\ufffd no")
