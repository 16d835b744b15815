"""What somebody finds who opens the server's address: the console in a browser, JSON for programs.

Open without a key, because a browser cannot send one; so it says nothing that the health routes do not say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import Request
from starlette.responses import Response

from holdfast.api.framework.routing import LazyRouter
from holdfast.api.json import json_response
from holdfast.api.routes.console import asset, respond
from holdfast.version import API_VERSION, VERSION

router = LazyRouter(include_in_schema=False)

_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?")
_HEADERS: Final = {"vary": "accept"}
_SUMMARY: Final = {
    "name": "holdfast",
    "holdfast_version": VERSION,
    "version": API_VERSION,
    "health": "/v1/health/",
    "docs": "/docs",
    "openapi": "/openapi.json",
}


@router.api_route("/", methods=["GET", "HEAD"])
async def show_root(request: Request) -> Response:
    if not prefers_html(request.headers.getlist("accept")):
        return json_response(_SUMMARY, headers=_HEADERS)
    return respond(request, asset("index.html"), vary="accept, accept-encoding")


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
