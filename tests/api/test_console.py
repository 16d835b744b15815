"""The files of the console: complete, typed, small, and none but its own."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from .application import client_of

CONSOLE = Path(str(files("holdfast.console")))
TYPES = (".js", ".mjs", ".css", ".svg", ".html")
SENT = [path.relative_to(CONSOLE).as_posix() for path in CONSOLE.rglob("*") if path.suffix in TYPES]
SCRIPTS = sorted(path.relative_to(CONSOLE).as_posix() for path in CONSOLE.rglob("*") if path.suffix in (".js", ".mjs"))


async def test_every_module_is_served_as_a_script() -> None:
    async with client_of() as client:
        for name in SCRIPTS:
            answer = await client.get(f"/console/{name}")
            assert answer.headers["content-type"].startswith("text/javascript")


def imported_by(modules: list[str]) -> set[str]:
    return {
        ((CONSOLE / name).parent / path).resolve().relative_to(CONSOLE.resolve()).as_posix()
        for name in modules
        for path in re.findall(r'from ?"(\.[^"]+)"', (CONSOLE / name).read_text())
    }


async def test_the_page_names_the_modules_of_the_first_view_so_that_a_browser_fetches_them_at_once() -> None:
    async with client_of() as client:
        page = await client.get("/console/index.html")
    named = re.findall(r'rel="modulepreload" href="console/([^"]+)"', page.text)
    assert len(named) == len(set(named))
    assert {"app.js", "views/agents.js", "vendor/signals-core.mjs"} <= set(named) < set(SCRIPTS)
    assert imported_by(named) == set(named) - {"app.js"}
    assert not {"views/chat.js", "vendor/marked.mjs", "vendor/uplot.mjs"} & set(named)


def test_every_view_can_be_fetched_later() -> None:
    views = {path.relative_to(CONSOLE).as_posix() for path in (CONSOLE / "views").glob("*.js")}
    later = set(re.findall(r'import\("\./(views/[^"]+)"\)', (CONSOLE / "app.js").read_text()))
    assert later == views - {"views/agents.js"}


async def test_all_of_it_together_is_small() -> None:
    """Whatever a browser may ever ask for, as it is sent."""
    async with client_of() as client:
        answers = [await client.get(f"/console/{name}", headers={"accept-encoding": "gzip"}) for name in SENT]
    assert sum(int(answer.headers["content-length"]) for answer in answers) <= 150_000


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_module_imports_files_of_the_console_only(name: str) -> None:
    text = (CONSOLE / name).read_text()
    for imported in re.findall(r'(?:from|import)\s*"(\.[^"]+)"', text):
        place = ((CONSOLE / name).parent / imported).resolve()
        assert place.is_relative_to(CONSOLE.resolve())
        assert place.is_file()


async def test_a_file_is_sent_compressed_and_only_when_it_has_changed() -> None:
    async with client_of() as client:
        zipped = await client.get("/console/app.js", headers={"accept-encoding": "gzip"})
        plain = await client.get("/console/app.js", headers={"accept-encoding": "identity"})
        again = await client.get("/console/app.js", headers={"if-none-match": zipped.headers["etag"]})
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.text == plain.text
    assert int(zipped.headers["content-length"]) < int(plain.headers["content-length"])
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "none.js",
        "__init__.py",
        "vendor/LICENSE-preact",
        "views/%2e%2e/__init__.py",
        "%2e%2e/cli.py",
        "views",
        "a/b/c.js",
    ],
)
async def test_nothing_else_is_served(path: str) -> None:
    async with client_of() as client:
        answer = await client.get(f"/console/{path}")
    assert answer.status_code == 404
    assert "detail" in answer.json()


def test_the_policy_allows_scripts_of_our_own_only() -> None:
    text = (CONSOLE / "index.html").read_text()
    assert not re.findall(r"<script(?![^>]*src=)|<style|style=|onload=", text)


def test_every_vendored_library_has_its_licence() -> None:
    kept = {path.name for path in (CONSOLE / "vendor").iterdir()}
    for library in ("preact", "htm", "signals", "marked", "dompurify", "uplot"):
        assert f"LICENSE-{library}" in kept
