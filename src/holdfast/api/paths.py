"""One spelling per route. Clients use `/v1/agents` and `/v1/agents/` alike, and a redirect would drop the body."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from starlette.types import ASGIApp, Receive, Scope, Send


def canonical_path(path: str, slashed: AbstractSet[str]) -> str:
    """`slashed` holds the routes that are declared with a slash at the end; all others are declared without."""
    if path.startswith("/latest/"):
        path = "/v1/" + path.removeprefix("/latest/")
    if not path.startswith("/v1/"):
        return path
    bare = path.rstrip("/")
    with_slash = bare + "/"
    return with_slash if with_slash in slashed else bare


class CanonicalPaths:
    def __init__(self, app: ASGIApp, slashed: AbstractSet[str]) -> None:
        self._app = app
        self._slashed = slashed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = canonical_path(scope["path"], self._slashed)
            if path != scope["path"]:
                scope = {**scope, "path": path}
        await self._app(scope, receive, send)
