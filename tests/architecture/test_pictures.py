"""Pictures in the documentation are taken by the browser tests, so that they show what there is."""

from __future__ import annotations

import re
from pathlib import Path

from .sources import ROOT, tracked_files

PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 120_000


def shown() -> dict[Path, set[str]]:
    """Each picture that a page shows, with the pages."""
    found: dict[Path, set[str]] = {}
    for page in tracked_files():
        if page.suffix == ".md":
            for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
                found.setdefault((page.parent / target).resolve(), set()).add(page.name)
    return found


def test_every_picture_that_is_shown_exists_and_every_one_that_exists_is_shown() -> None:
    assert set(shown()) == {path.resolve() for path in PICTURES.iterdir()}


def test_every_picture_is_one_that_the_browser_tests_take() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests" / "browser").glob("test_*.py"))
    assert [path.stem for path in shown() if f'"{path.stem}"' not in sources] == []


def test_no_picture_is_large() -> None:
    assert {path.name: path.stat().st_size for path in shown() if path.stat().st_size > MOST_BYTES} == {}


def test_every_picture_says_what_it_shows() -> None:
    for page in tracked_files():
        if page.suffix == ".md":
            assert not re.search(r"!\[\s*\]\(", page.read_text()), f"{page.name} has a picture without a text"
