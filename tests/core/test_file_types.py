from __future__ import annotations

import pytest

from holdfast.core.file_types import file_type, numbered


@pytest.mark.parametrize(
    ("name", "content_type", "kind"),
    [
        ("a.txt", "text/plain", "text"),
        ("a", "text/markdown; charset=utf-8", "markdown"),
        ("a.md", "text/plain", "markdown"),
        ("a.pdf", "application/octet-stream", "pdf"),
        ("a.bin", "application/pdf", "pdf"),
        ("a.PDF", None, "pdf"),
        ("a.pdf", "text/plain", "text"),
        ("a.ts", "video/mp2t", "code"),
        ("Makefile", None, "code"),
        ("a.py", "text/x-python-script", "code"),
        ("a.html", "text/html", "html"),
        ("a.jsonl", "", "json"),
        ("a.odd", "text/odd", "text"),
        ("a.docx", "application/zip", "docx"),
    ],
)
def test_the_content_type_counts_and_then_the_name(name: str, content_type: str | None, kind: str) -> None:
    found = file_type(name, content_type)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize(("name", "content_type"), [("a.exe", "application/x-msdownload"), ("a.png", None), ("a", "")])
def test_what_cannot_be_read_has_no_type(name: str, content_type: str | None) -> None:
    assert file_type(name, content_type) is None


def test_a_number_goes_before_the_extension() -> None:
    names = [numbered(name, 2) for name in ("a.txt", "a", ".env", "a.tar.gz")]
    assert names == ["a_(2).txt", "a_(2)", ".env_(2)", "a.tar_(2).gz"]
