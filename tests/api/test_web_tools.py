"""The tools `fetch_webpage` and `web_search`, against a web of our own on loopback."""

from __future__ import annotations

import gzip
import json
import sys
import threading
import zlib
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.tools.sandbox.web_pages import charset_of, html_text, unpacked
from holdfast.tools.sandbox.web_tools import page_text

from ..served import ServedClient, served

pytestmark = pytest.mark.slow

PAGE = """<html><head><title>T</title><style>p {color: red}</style></head><body><h1>Kelp &amp; rock</h1>
<script>alert(1)</script><p>A holdfast   anchors kelp.</p><ul><li>one<li>two</ul></body></html>"""
ARTICLE = """<html><head><title>Kelp</title></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav><article><h1>Kelp forests</h1>
<p>Kelp forests are areas under water with a high density of kelp, along a large part of the coasts of the world.</p>
<p>A holdfast anchors kelp to rock; its shape depends on <a href="/kinds">the kind of kelp</a> and on the ground.</p>
<table><tr><th>Kind</th><th>Depth</th></tr><tr><td>Giant kelp</td><td>30 m</td></tr></table></article>
<footer>Imprint Contact Terms</footer></body></html>"""
FOUND = {"title": "Kelp", "url": "https://kelp.example", "publishedDate": "2026-01-01", "author": None, "summary": "s"}


class Pages(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        html = "text/html; charset=utf-8"
        known = {"/page": (html, PAGE), "/article": (html, ARTICLE), "/plain": ("text/plain", "ü")}
        if self.path == "/packed":
            self._answer(200, "text/html; charset=utf8mb4", gzip.compress(PAGE.encode()), {"Content-Encoding": "gzip"})
        elif self.path == "/image":
            self._answer(200, "image/png", b"\x89PNG")
        elif self.path in known:
            content_type, text = known[self.path]
            self._answer(200, content_type, text.encode())
        else:
            self._answer(404, "text/plain", b"no")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({**body, "key": self.headers["x-api-key"]})
        self._answer(200, "application/json", json.dumps({"results": [FOUND]}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, status: int, content_type: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def pages() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with pages() as address:
        yield address


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, tool_egress="all") as client:
        yield client


async def run(client: ServedClient, name: str, args: dict[str, Any], **agent: Any) -> Any:
    made = await client.agent(tools=[name], **agent)
    return await client.ask("POST", f"/v1/agents/{made.id}/tools/{name}/run", {"args": args})


async def test_a_page_is_read_as_text(client: ServedClient, web: str) -> None:
    read = await run(client, "fetch_webpage", {"url": f"{web}/page"})
    assert all(text in read["func_return"] for text in ("Kelp & rock", "A holdfast anchors kelp.", "one", "two"))
    assert "alert" not in read["func_return"]
    assert (await run(client, "fetch_webpage", {"url": f"{web}/plain"}))["func_return"] == "ü"


async def test_with_the_extra_only_the_article_of_a_page_is_read(client: ServedClient, web: str) -> None:
    text = (await run(client, "fetch_webpage", {"url": f"{web}/article"}))["func_return"]
    assert text.startswith("# Kelp forests")
    assert f"[the kind of kelp]({web}/kinds)" in text
    assert "| Giant kelp | 30 m |" in text
    assert not any(word in text for word in ("About us", "Imprint"))


def test_without_the_extra_all_of_a_page_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)  # as if it were not installed
    assert page_text(PAGE, "http://a") == "Kelp & rock\n\nA holdfast anchors kelp.\n\none\ntwo"
    assert "About us" in page_text(ARTICLE, "http://a")


def test_an_extra_that_is_broken_is_not_taken_for_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trafilatura.py").write_text("import something_that_it_needs\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "trafilatura", raising=False)
    with pytest.raises(ModuleNotFoundError, match="something_that_it_needs"):
        page_text(PAGE, "http://a")


def test_a_page_in_which_the_extra_finds_nothing_is_read_whole() -> None:
    assert page_text("<html><body><nav>Menu</nav></body></html>", "http://a") == "Menu"


@pytest.mark.parametrize(
    ("path", "why"), [("/image", "image/png, which cannot be read as text"), ("/gone", "answered 404")]
)
async def test_what_cannot_be_read_is_an_error_that_says_why(
    client: ServedClient, web: str, path: str, why: str
) -> None:
    read = await run(client, "fetch_webpage", {"url": web + path})
    assert read["status"] == "error"
    assert why in str(read["stderr"])


async def test_files_of_the_machine_are_no_pages(client: ServedClient) -> None:
    assert "only http and https" in str(await run(client, "fetch_webpage", {"url": "file:///etc/passwd"}))


async def test_this_machine_is_out_of_reach_unless_the_operator_says_otherwise(tmp_path: Path, web: str) -> None:
    async with served(tmp_path, tool_egress="public") as client:
        read = await run(client, "fetch_webpage", {"url": f"{web}/page"})
    assert read["status"] == "error"


async def test_a_search_needs_a_key_and_says_which(client: ServedClient) -> None:
    assert "EXA_API_KEY is not set" in str(await run(client, "web_search", {"query": "kelp"}))


async def test_a_search_with_a_key_tells_what_was_found(client: ServedClient, web: str) -> None:
    secrets = {"EXA_API_KEY": "k", "EXA_BASE_URL": web}
    found = await run(client, "web_search", {"query": "kelp", "num_results": 99}, secrets=secrets)
    shown = {"title": "Kelp", "url": "https://kelp.example", "published_date": "2026-01-01", "author": None}
    assert json.loads(found["func_return"]) == {"query": "kelp", "results": [{**shown, "summary": "s"}]}
    assert Pages.asked[-1]["key"] == "k"
    assert Pages.asked[-1]["numResults"] == 25


async def test_a_page_that_is_packed_unasked_and_names_a_charset_of_its_own_is_read(
    client: ServedClient, web: str
) -> None:
    read = await run(client, "fetch_webpage", {"url": f"{web}/packed"})
    assert "Kelp & rock" in str(read["func_return"])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<p>one<p>two<b> three", "one\ntwo three"),
        ("<!doctype html><html><head><title>T</title><body><p>Hello <b>world</b></p></body></html>", "Hello world"),
        ("<head><title>T</title><p>no body tag", "no body tag"),
        ("<!doctype html><title>T</title><p>Hello", "Hello"),
        ("<p>a<svg><p>b</p>c", "a\nb\nc"),
        ("<p>a<svg><title>t</title><text>x</text></svg>c</p>", "ac"),
        ("<p>x</p><noscript><p>y</p>", "x\n\ny"),
        ("<p>before<template><p>in</p><p>after", "before\nin\n\nafter"),
        ("<head/><p>x</p>", "x"),
        ("<p>a<template><svg>b</template>c</svg>d", "acd"),
        ("<p>1 < 2 & <3 and a<", "1 < 2 & <3 and a<"),
        ("<script>if (a<b) s = '<!--';</script><p>x<style>p {}</style>y", "xy"),
        ("<p>x<!-- <p>hidden --><?php echo 1 ?>y<![CDATA[z]]>", "xy"),
        ("<p>x<!-- no end <p>y", "x"),
        ("<p>x<script>no end <p>y", "x"),
    ],
)
def test_what_a_page_says_is_read_however_it_is_written(source: str, text: str) -> None:
    assert html_text(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "<" * 1_000_000,
        "<!" * 500_000,
        "<![CDATA[" * 200_000,
        "<!--" * 300_000,
        "<a " + "b='" * 300_000,
        "<a " + "b='" * 300_000 + ">",
        "<a" * 500_000,
        "</" * 500_000 + ">",
        "&" * 1_000_000,
        "<script>" + "</" * 500_000,
        "<script></" * 100_000,
        "<svg>" * 200_000,
        "<svg>" * 100_000 + "</title></p>" * 100_000,
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(20)  # far more than it takes, far less than a time that grows with the square
def test_no_page_takes_long(source: str) -> None:
    assert len(html_text(source)) <= len(source)


@pytest.mark.parametrize(
    ("body", "named", "charset"),
    [
        (b"<p>hello", None, "utf-8"),
        (b"<p>hello", "latin-1", "latin-1"),
        (b"<p>hello", "utf8mb4", "utf-8"),
        (b"<p>hello", "zlib", "utf-8"),
        (b"<p>hello", "a\0b", "utf-8"),
        (b"\xef\xbb\xbfhello", "latin-1", "utf-8-sig"),
        ("<p>hello".encode("utf-16"), None, "utf-16"),
        (b'<head><meta charset="shift_jis">', None, "shift_jis"),
        (b'<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">', None, "koi8-r"),
        (b'<meta charset="shift_jis">', "utf-8", "utf-8"),
        (b'<meta charset="nonsense">', "nonsense", "utf-8"),
    ],
)
def test_the_charset_is_found(body: bytes, named: str | None, charset: str) -> None:
    assert charset_of(body, named) == charset


def test_a_packed_answer_is_unpacked_up_to_the_limit() -> None:
    assert unpacked(b"x", "", 10) == unpacked(b"x", "identity", 10) == b"x"
    assert unpacked(zlib.compress(b"hello"), "deflate", 10) == b"hello"
    assert unpacked(gzip.compress(b"x" * 1_000_000), "gzip", 10) == b"x" * 11
    with pytest.raises(ValueError, match="packed as 'br'"):
        unpacked(b"x", "br", 10)
    with pytest.raises(ValueError, match="not gzip"):
        unpacked(b"no such thing", "gzip", 10)
