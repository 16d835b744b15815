from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.api.middleware import LocalPagesOnly, canonical_path
from holdfast.settings import Settings

from .application import AGENT, Worker, client_of


@pytest.mark.parametrize("root", ["/v1", "/latest"])
@pytest.mark.parametrize("path", ["/notes", "/notes/", "/notes/count", "/notes/count/", "/health", f"/notes/{AGENT}/"])
async def test_every_route_answers_with_and_without_a_slash_under_both_roots(root: str, path: str) -> None:
    async with client_of() as client:
        answer = await client.get(root + path, follow_redirects=False)
    assert answer.status_code == 200


async def test_a_post_to_the_other_spelling_keeps_its_body() -> None:
    async with client_of() as client:
        answer = await client.post("/v1/notes", json={"text": "kept"}, follow_redirects=False)
    assert answer.json()["text"] == "kept"


def test_only_api_paths_are_respelled() -> None:
    assert canonical_path("/console/", frozenset()) == "/console/"
    assert canonical_path("/", frozenset()) == "/"
    assert canonical_path("/v1/a/b/", frozenset({"/v1/a/"})) == "/v1/a/b"


async def test_a_fixed_word_wins_over_an_id_wherever_it_was_declared() -> None:
    async with client_of() as client:
        assert (await client.get("/v1/notes/count")).json() == 7


async def test_a_stopping_server_is_healthy_but_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "leaving", True)
    async with client_of() as client:
        assert (await client.get("/v1/health/")).status_code == 200
        ready = await client.get("/v1/ready/")
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")


@pytest.mark.slow
async def test_the_description_lists_real_routes_and_our_own_422_body() -> None:
    async with client_of() as client:
        description: dict[str, Any] = (await client.get("/openapi.json")).json()
        page = await client.get("/docs")
    assert "/v1/notes/" in description["paths"]
    assert not any("templates" in path for path in description["paths"])
    assert description["components"]["schemas"]["HTTPValidationError"]["properties"]["detail"]["type"] == "string"
    assert page.headers["content-type"].startswith("text/html")
    assert "https://" not in page.text


@pytest.mark.parametrize(
    ("origin", "welcome"),
    [
        ("http://localhost:3000", True),
        ("https://app.example", True),
        ("https://evil.example", False),
        ("https://localhost.evil.example", False),
    ],
)
async def test_pages_of_this_machine_and_of_listed_origins_may_call(origin: str, welcome: bool) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "user_id"}
    async with client_of(api_key="k", acceptable_origins=("https://app.example",)) as client:
        preflight = await client.options("/v1/notes/", headers=asked)
    assert (preflight.headers.get("access-control-allow-origin") == origin) is welcome


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"host": "127.0.0.1:8283"}, 200),
        ("GET", {"host": "[::1]:8283"}, 200),
        ("GET", {"host": "localhost"}, 200),
        ("GET", {"host": "rebound.example"}, 403),
        ("POST", {"host": "localhost", "origin": "https://evil.example"}, 403),
        ("POST", {"host": "localhost", "origin": "null"}, 403),
        ("POST", {"host": "localhost", "origin": "http://localhost:3000"}, 200),
        ("POST", {"host": "localhost", "origin": "https://app.example"}, 200),
        ("POST", {"host": "localhost"}, 200),
    ],
)
async def test_without_a_key_foreign_pages_cannot_drive_the_server(
    method: str, headers: dict[str, str], status: int
) -> None:
    async def reached(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    settings = Settings(data_dir=Path("unused"), acceptable_origins=("https://app.example",))
    transport = httpx.ASGITransport(LocalPagesOnly(reached, settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.request(method, "/v1/notes/", headers=headers)
    assert answer.status_code == status
