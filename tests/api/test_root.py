from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.routes.root import prefers_html

from .application import client_of

FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.resources: list[str] = []
        self.links: list[str] = []
        self.pieces: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if tag == "a" and name == "href"]
        loads = tag in ("script", "img", "link", "iframe") or any(name in ("src", "style") for name, _ in attrs)
        self.resources += [tag] if loads else []

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


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


async def test_the_places_that_a_program_is_told_of_are_there() -> None:
    async with client_of() as client:
        told = (await client.get("/")).json()
        for place in ("health", "docs", "openapi"):
            assert (await client.get(told[place])).status_code == 200


async def test_a_browser_gets_a_page_that_loads_nothing_and_whose_links_work() -> None:
    async with client_of() as client:
        answer = await client.get("/", headers={"accept": FIREFOX, "host": "127.0.0.1:8283"})
        page = Page(answer.text)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "accept" in answer.headers["vary"].lower()
        assert page.resources == []
        assert page.links
        for link in page.links:
            assert (await client.get(f"/{link}")).status_code == 200
    assert 'Letta(base_url="http://127.0.0.1:8283")' in page.text
    assert "Authorization" not in page.text
    bodies = re.findall(r"-d '(.*)'", page.text)
    assert [list(json.loads(body)) for body in bodies] == [["name", "memory_blocks"], ["input"]]


async def test_head_is_answered_too() -> None:
    async with client_of() as client:
        answer = await client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_key_is_not_needed_for_the_front_page_but_told_of() -> None:
    async with client_of(api_key="s3cret") as client:
        page = (await client.get("/", headers={"accept": FIREFOX})).text
        program = await client.get("/")
        assert (await client.get("/docs")).status_code == 401
    assert program.status_code == 200
    assert "Bearer $HOLDFAST_API_KEY" in page
    assert "api_key=" in page
    assert "s3cret" not in page


async def test_the_name_under_which_it_was_asked_is_shown_and_cannot_write_markup() -> None:
    async with client_of() as client:
        shown = await client.get("/", headers={"accept": FIREFOX, "host": "a<script>x</script>"})
        secure = await client.get("/", headers={"accept": FIREFOX, "host": "a.test", "x-forwarded-proto": "https"})
    assert "<script>" not in shown.text
    assert "https://a.test/v1/agents/" in secure.text


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


@given(st.lists(st.text(alphabet="text/html*aplicionjs;,q=01.9- ")))
def test_no_header_is_too_strange(accept: list[str]) -> None:
    assert prefers_html(accept) in (True, False)
