"""Which files can be read, and how: by the content type that they were sent with, or else by their extension."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal["text", "markdown", "html", "json", "code", "pdf", "docx"]

_DOCX: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_BY_TYPE: Final[dict[str, Kind]] = {
    "text/plain": "text",
    "text/csv": "text",
    "text/tab-separated-values": "text",
    "text/markdown": "markdown",
    "text/x-markdown": "markdown",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/json": "json",
    "application/jsonl": "json",
    "application/x-jsonlines": "json",
    "application/x-ndjson": "json",
    "application/pdf": "pdf",
    _DOCX: "docx",
    "application/xml": "code",
    "application/yaml": "code",
    "application/x-yaml": "code",
    "application/toml": "code",
    "application/javascript": "code",
    "application/x-javascript": "code",
    "application/typescript": "code",
    "application/sql": "code",
    "application/x-sh": "code",
    "application/x-python": "code",
}
_CODE: Final = """
    astro bash bat c cc cfg clj conf cpp cs css cxx dart dockerfile elm env erl ex exs f90 fs go gradle graphql groovy h
    hpp hs ini ipynb java jl js jsx kt kts less lisp lock log lua m makefile mjs ml nim php pl properties proto ps1 py
    pyi r rb rs sass scala scss sh sql svelte swift tex tf toml ts tsx vb vue xml xsl yaml yml zig zsh
"""
_BY_EXTENSION: Final[dict[str, tuple[Kind, str]]] = {
    "txt": ("text", "text/plain"),
    "text": ("text", "text/plain"),
    "rst": ("text", "text/plain"),
    "csv": ("text", "text/csv"),
    "tsv": ("text", "text/tab-separated-values"),
    "md": ("markdown", "text/markdown"),
    "markdown": ("markdown", "text/markdown"),
    "mdx": ("markdown", "text/markdown"),
    "html": ("html", "text/html"),
    "htm": ("html", "text/html"),
    "json": ("json", "application/json"),
    "jsonl": ("json", "application/jsonl"),
    "ndjson": ("json", "application/jsonl"),
    "pdf": ("pdf", "application/pdf"),
    "docx": ("docx", _DOCX),
    **{extension: ("code", f"text/x-{extension}") for extension in _CODE.split()},
}
_OF_CODE: Final = ("text/x-", "text/xml", "text/css", "text/javascript", "text/typescript", "text/yaml", "text/toml")


class FileType(msgspec.Struct, frozen=True):
    kind: Kind
    media_type: str


def file_type(name: str, content_type: str | None) -> FileType | None:
    """None for what cannot be read. The type that was sent counts if it says something that can be read; what a sender
    does not know it calls `application/octet-stream`, and `.ts` is a video to many."""
    said = (content_type or "").partition(";")[0].strip().lower()
    if (kind := _BY_TYPE.get(said)) is not None:
        # Programs that know no better send Markdown and code as plain text: the name then tells more.
        told = _BY_EXTENSION.get(extension(name)) if said == "text/plain" else None
        return FileType(told[0] if told and told[0] not in ("pdf", "docx") else kind, said)
    if said.startswith(_OF_CODE):
        return FileType("code", said)
    known = _BY_EXTENSION.get(extension(name))
    if known is not None:
        return FileType(*known)
    return FileType("text", said) if said.startswith("text/") else None


def extension(name: str) -> str:
    """Without the dot, in lower case. A name without one, such as `Makefile`, is its own."""
    base = name.rpartition("/")[2]
    return base.rpartition(".")[2].lower()


def numbered(name: str, number: int) -> str:
    """`a.txt` as `a_(1).txt`."""
    path, slash, own = name.rpartition("/")
    base, dot, end = own.rpartition(".")
    return path + slash + (f"{base}_({number}).{end}" if dot and base else f"{own}_({number})")
