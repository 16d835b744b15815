from __future__ import annotations

import pytest

from .application import AGENT, client_of

USER = "user-123e4567-e89b-42d3-8456-426614174000"


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer s3cret"}, {"x-bare-password": "password s3cret"}],
)
async def test_the_key_opens_the_api_in_either_header(headers: dict[str, str]) -> None:
    async with client_of(api_key="s3cret", headers=headers) as client:
        assert (await client.get("/v1/notes/count")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "s3cret"},
        {"authorization": "Bearer s3cret2"},
        {"x-bare-password": "s3cret"},
        {"authorization": "Bearer \xfc".encode("latin-1")},
    ],
)
@pytest.mark.parametrize("path", ["/v1/notes/count", "/latest/notes/count", "/docs", "/openapi.json", "/v1/nothing"])
async def test_without_the_key_everything_is_401(headers: dict[str, str], path: str) -> None:
    async with client_of(api_key="s3cret") as client:
        answer = await client.get(path, headers=headers)
    assert (answer.status_code, answer.json()) == (401, {"detail": "Unauthorized"})


@pytest.mark.parametrize("path", ["/v1/health", "/v1/health/", "/v1/ready", "/v1/ready/", "/latest/health/"])
async def test_the_health_routes_need_no_key(path: str) -> None:
    async with client_of(api_key="s3cret") as client:
        answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"


async def test_a_header_may_name_a_user_but_nothing_that_is_none() -> None:
    async with client_of() as client:
        unnamed = [await client.get(f"/v1/notes/{AGENT}", headers=headers) for headers in ({}, {"user_id": ""})]
        named = await client.get(f"/v1/notes/{AGENT}", headers={"user_id": USER})
        wrong = await client.get(f"/v1/notes/{AGENT}", headers={"user_id": "user-1"})
    assert [answer.status_code for answer in (*unnamed, named)] == [200, 200, 200]
    assert wrong.status_code == 400
    assert "user_id" in wrong.json()["detail"]
