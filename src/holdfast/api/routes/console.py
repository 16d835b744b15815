"""The files of the web console. Open without a key, because a browser cannot send one for a script; they hold no data:
what the console shows comes from the API, with the user's key."""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from fastapi import Request
from starlette.responses import Response

from holdfast.api.framework.routing import LazyRouter
from holdfast.errors import NotFound

router = LazyRouter(include_in_schema=False)

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
