"""The files of the web console, and what somebody finds who opens the server's address: the console in a browser, JSON
for programs.

Open without a key, because a browser cannot send one for a script. The files hold no data: what the console shows comes
from the API, with the user's key. The JSON says nothing that the health routes do not say.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from fastapi import Request
from starlette.responses import Response

from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.errors import NotFound
from holdfast.version import API_VERSION, VERSION

router = LazyRouter(include_in_schema=False)
root_router = LazyRouter(include_in_schema=False)

# Nothing but our own files runs, nothing but our own API is asked, and no other page may show this one in a frame.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".html": "text/html",
}
_PAGE: Final = "index.html"
_FIRST: Final = "app.js"
_IMPORT: Final = re.compile(r"""\bfrom\s*["'](\.[^"']+)["']""")
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # asked for again each time, and answered 304 if it is the same
    "vary": "accept-encoding",
}

_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?")
_SUMMARY: Final = {
    "name": "holdfast",
    "holdfast_version": VERSION,
    "version": API_VERSION,
    "health": "/v1/health/",
    "docs": "/docs",
    "openapi": "/openapi.json",
}


class Asset(msgspec.Struct, frozen=True):
    content: bytes
    zipped: bytes
    etag: str
    media_type: str


@cache
def asset(path: str) -> Asset:
    """A file of the console by its path within it. The set is small and fixed, so all that were asked for are kept."""
    place = files("holdfast.console")
    suffix = path[path.rfind(".") :]
    names = path.split("/")
    if suffix not in _TYPES or ".." in names or "" in names or not (found := place.joinpath(path)).is_file():
        raise NotFound(f"The console has no file {path!r}.")
    content = found.read_bytes()
    if path == _PAGE:
        links = [f'<link rel="modulepreload" href="console/{name}">\n' for name in modules_of(_FIRST)]
        content = content.replace(b"</head>", "".join(links).encode() + b"</head>")
    etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
    return Asset(content, gzip.compress(content, mtime=0), etag, _TYPES[suffix])


def modules_of(first: str) -> list[str]:
    """A module and all that it imports, of itself or through others, so that a browser fetches them at once. Else it
    learns of each from the one that imports it, and waits for one after the other."""
    found = [first]
    for name in found:
        source = files("holdfast.console").joinpath(name).read_text()
        folder = posixpath.dirname(name)
        imported = (posixpath.normpath(posixpath.join(folder, path)) for path in _IMPORT.findall(source))
        found += [each for each in dict.fromkeys(imported) if each not in found]
    return found


@router.api_route("/console/{name}", methods=["GET", "HEAD"])
async def show_file(request: Request, name: str) -> Response:
    return respond(request, asset(name))


@router.api_route("/console/{folder}/{name}", methods=["GET", "HEAD"])
async def show_file_in_folder(request: Request, folder: str, name: str) -> Response:
    return respond(request, asset(f"{folder}/{name}"))


def respond(request: Request, found: Asset, **headers: str) -> Response:
    sent = {**_HEADERS, "etag": found.etag, "content-security-policy": POLICY, **headers}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.zipped, media_type=found.media_type, headers={**sent, "content-encoding": "gzip"})
    return Response(found.content, media_type=found.media_type, headers=sent)


@root_router.api_route("/", methods=["GET", "HEAD"])
async def show_root(request: Request) -> Response:
    if not prefers_html(request.headers.getlist("accept")):
        return json_response(_SUMMARY, headers={"vary": "accept"})
    return respond(request, asset(_PAGE), vary="accept, accept-encoding")


def prefers_html(accept: Sequence[str]) -> bool:
    """Browsers rank all else below HTML. Who accepts both alike, or says nothing, is taken for a program."""
    weights = _weights(",".join(accept))
    return _weight(weights, "text", "html") > _weight(weights, "application", "json")


def _weights(accept: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        given = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        found[name] = float(given) if _WEIGHT.fullmatch(given) else 0.0
    return found


def _weight(weights: Mapping[str, float], kind: str, form: str) -> float:
    names = (f"{kind}/{form}", f"{kind}/*", "*/*")
    return next((weights[name] for name in names if name in weights), 0.0)
