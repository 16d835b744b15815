from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.routes.console import prefers_html

from .application import client_of

FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize("accept", ["*/*", "application/json", None])
async def test_a_program_is_told_in_json_where_things_are(accept: str | None) -> None:
    async with client_of() as client:
        if accept is None:
            del client.headers["accept"]
        answer = await client.get("/", headers={"accept": accept} if accept else {})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        told = answer.json()
        assert told["name"] == "holdfast"
        assert (told["version"], told["holdfast_version"]) == ("0.16.8", told["holdfast_version"])


@pytest.mark.slow
async def test_the_places_that_a_program_is_told_of_are_there() -> None:
    async with client_of() as client:
        told = (await client.get("/")).json()
        for place in ("health", "docs", "openapi"):
            assert (await client.get(told[place])).status_code == 200


async def test_a_browser_gets_the_console() -> None:
    async with client_of() as client:
        answer = await client.get("/", headers={"accept": FIREFOX, "host": "127.0.0.1:8283"})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "accept" in answer.headers["vary"].lower()
        loaded = re.findall(r'(?:src|href)="(console/[^"]+)"', answer.text)
        assert {"console/icon.svg", "console/console.css", "console/app.js"} < set(loaded)
        for place in loaded:
            assert (await client.get(f"/{place}")).status_code == 200


async def test_head_is_answered_too() -> None:
    async with client_of() as client:
        answer = await client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_the_front_page_and_the_files_of_the_console_need_no_key_and_nothing_else_is_open() -> None:
    async with client_of(api_key="s3cret") as client:
        page = await client.get("/", headers={"accept": FIREFOX})
        script = await client.get("/console/app.js")
        program = await client.get("/")
        closed = [(await client.get(path)).status_code for path in ("/docs", "/v1/agents/", "/console/../v1/agents/")]
    assert (page.status_code, script.status_code, program.status_code) == (200, 200, 200)
    assert closed == [401, 401, 401]
    assert "s3cret" not in page.text


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (FIREFOX, True),
        ("text/html", True),
        ("TEXT/HTML", True),
        ("text/*", True),
        ("text/html;q=0.5", True),
        ("text/html;q=0.5, application/json", False),
        ("application/json, text/html", False),
        ("text/html;level=1;q=0.9, */*;q=0.1", True),
        ("*/*", False),
        ("", False),
        ("text/html;q=", False),
        ("text/html;q=1e400", False),
        ("image/png", False),
    ],
)
def test_html_is_for_those_who_prefer_it(accept: str, html: bool) -> None:
    assert prefers_html([accept]) is html


@pytest.mark.slow
@given(st.lists(st.text(alphabet="text/html*aplicionjs;,q=01.9- ")))
def test_no_header_is_too_strange(accept: list[str]) -> None:
    assert prefers_html(accept) in (True, False)
