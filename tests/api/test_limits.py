from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.api.middleware import MAX_VALUES, check_storable
from holdfast.errors import Unprocessable

from .application import client_of

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"text": "a\\u0000b"}', "body.text: text must not hold NUL"),
        (b'{"text": "a", "extra": {"deep": [1, {"\\u0000": 2}]}}', "body.extra.deep.1: text must not hold NUL"),
        (b'{"text": "\\ud800"}', "not valid JSON"),
        (b'{"text": "a", "extra": {"lone": "\\udc00 end"}}', "not valid JSON"),
        (b'{"text": "a", "extra": {"big": 9223372036854775808}}', "body.extra.big: numbers must fit into 64 bits"),
        (b'{"text": "a", "extra": {"big": -99999999999999999999999}}', "body.extra.big"),
        (b'{"text": "a", "extra": {"big": 1e999}}', "not valid JSON"),
        (b'{"text": "a", "extra": {"odd": NaN}}', "not valid JSON"),
        (b'{"text": "a"', "not valid JSON"),
        (b'{"text": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
async def test_what_cannot_be_stored_is_refused_with_a_sentence(body: bytes, problem: str) -> None:
    async with client_of() as client:
        answer = await client.post("/v1/notes/", content=body, headers=JSON)
    assert answer.status_code == 422
    assert problem in answer.json()["detail"]


async def test_text_that_only_looks_dangerous_passes() -> None:
    note = {"text": 'print("\\u0000 \\ud800")', "extra": {"edge": 2**63 - 1, "low": -(2**63), "ok": True, "pair": "😀"}}
    async with client_of() as client:
        answer = await client.post("/v1/notes/", json=note)
    assert (answer.status_code, answer.json()) == (200, note)


async def test_nul_in_the_address_is_refused() -> None:
    async with client_of() as client:
        path = await client.get("/v1/labels/a%00b")
        query = await client.get("/v1/notes/?after=%00")
        number = await client.get("/v1/notes/", params={"since": 2**63})
    assert path.status_code == query.status_code == number.status_code == 422


@pytest.mark.parametrize("size", [1024, 1025])
async def test_a_json_body_may_be_exactly_as_large_as_the_limit(size: int) -> None:
    frame = b'{"text": ""}'
    body = frame[:-2] + b"x" * (size - len(frame)) + frame[-2:]
    async with client_of(max_body_bytes=1024) as client:
        told = await client.post("/v1/notes/", content=body, headers=JSON)
        chunked = await client.post("/v1/notes/", content=_chunks(body), headers=JSON)
    assert told.status_code == chunked.status_code == (200 if size == 1024 else 413)
    if size > 1024:
        assert "1024 bytes" in chunked.json()["detail"]
        assert chunked.headers["connection"] == "close"


async def test_an_upload_that_grows_too_large_is_cut_off_with_413() -> None:
    headers = {"content-type": "application/octet-stream"}
    async with client_of(max_body_bytes=4096) as client:
        small = await client.post("/v1/uploads", content=_chunks(b"x" * 100), headers=headers)
        large = await client.post("/v1/uploads", content=_chunks(b"x" * 9000), headers=headers)
    assert (small.status_code, small.json()) == (200, 100)
    assert large.status_code == 413
    assert "4096 bytes" in large.json()["detail"]


def test_decoded_values_from_elsewhere_can_be_checked_too() -> None:
    check_storable({"a": [1, "b"]})
    with pytest.raises(Unprocessable, match=r"file\.a\.1"):
        check_storable({"a": [1, "\x00"]}, "file")


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100):
        yield body[start : start + 100]


@pytest.mark.parametrize("kind", ["application/jsonx", "text/foo+json", "application/json-seq"])
async def test_what_is_not_json_by_its_content_type_is_not_read_as_json_anywhere(kind: str) -> None:
    body = b'{"text": "a\\u0000b"}'
    async with client_of() as client:
        answer = await client.post("/v1/notes/", content=body, headers={"content-type": kind})
    assert answer.status_code == 422
    assert "NUL" not in answer.text


@pytest.mark.parametrize("kind", ["application/json", "APPLICATION/JSON; charset=utf-8", "application/vnd.x+json"])
async def test_json_by_any_of_its_names_is_checked_and_read(kind: str) -> None:
    async with client_of() as client:
        bad = await client.post("/v1/notes/", content=b'{"text": "a\\u0000b"}', headers={"content-type": kind})
        good = await client.post("/v1/notes/", content=b'{"text": "a"}', headers={"content-type": kind})
    assert "NUL" in bad.text
    assert good.status_code == 200


async def test_a_body_that_does_not_say_what_it_is_is_checked_and_read_as_json() -> None:
    async with client_of(max_body_bytes=1024) as client:
        bad = await client.post("/v1/notes/", content=b'{"text": "a\\u0000b"}')
        large = await client.post("/v1/notes/", content=_chunks(b"x" * 2000))
        good = await client.post("/v1/notes/", content=b'{"text": "a"}')
    assert "content-type" not in good.request.headers
    assert "NUL" in bad.text
    assert large.status_code == 413
    assert (good.status_code, good.json()["text"]) == (200, "a")


@pytest.mark.parametrize("kind", ["text/plain;charset=UTF-8", "application/x-www-form-urlencoded"])
async def test_json_under_another_name_is_refused_with_the_name_to_use(kind: str) -> None:
    async with client_of() as client:
        answer = await client.post("/v1/notes/", content=b'{"text": "a"}', headers={"content-type": kind})
    assert answer.status_code == 422
    assert "Content-Type: application/json" in answer.json()["detail"]


@pytest.mark.parametrize("value", ["[]", "1", '"a"', '{"a":1}'])
async def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(value: str) -> None:
    body = f'{{"text": "a", "extra": {{"many": [{",".join([value] * (MAX_VALUES + 1))}]}}}}'.encode()
    async with client_of() as client:
        answer = await client.post("/v1/notes/", content=body, headers=JSON)
    assert answer.status_code == 422
    assert f"more than {MAX_VALUES} JSON values" in answer.json()["detail"]


async def test_a_long_text_full_of_commas_brackets_and_quotes_is_one_value() -> None:
    note: dict[str, Any] = {"text": 'a,b[{"\\",' * MAX_VALUES, "extra": {}}
    async with client_of() as client:
        answer = await client.post("/v1/notes/", json=note)
    assert (answer.status_code, answer.json()) == (200, note)


@pytest.mark.parametrize("bad", [b"9223372036854775808", b'"a\\u0000b"'])
async def test_what_cannot_be_stored_is_found_among_many_short_values(bad: bytes) -> None:
    body = b'{"text": "a", "extra": {"many": [' + b"1," * 10_000 + bad + b"]}}"
    async with client_of() as client:
        answer = await client.post("/v1/notes/", content=body, headers=JSON)
    assert answer.status_code == 422
    assert "body.extra.many.10000" in answer.json()["detail"]


async def test_a_query_of_too_many_parameters_is_refused() -> None:
    async with client_of() as client:
        many = await client.get("/v1/notes/?" + "&".join(["after=a"] * 1_001))
        most = await client.get("/v1/notes/?" + "&".join(["after=a"] * 1_000))
    assert many.status_code == 422 and "1001 parameters" in many.json()["detail"]
    assert most.status_code == 200
