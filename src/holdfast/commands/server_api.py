"""The API of a running server, for commands. Standard library only: they should start at once."""

from __future__ import annotations

import argparse
import http.client
import os
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from typing import Any, Final

import msgspec

from holdfast.commands import settings_from
from holdfast.errors import ConfigError, HoldfastError, NotFound
from holdfast.settings import Settings, is_loopback

_TIMEOUT_S: Final = 30.0
_QUIET_S: Final = 90.0  # of a stream: the server sends a ping more often


class Unreachable(ConfigError):
    """No server answered where one was looked for."""


class Refusal(HoldfastError):
    """The server answered, and the answer is no."""


class ConnectionLost(HoldfastError):
    """The server was there when a stream began, and is not any more."""


class ServerApi:
    def __init__(self, arguments: argparse.Namespace) -> None:
        settings = settings_from(arguments)
        self.base: str = (arguments.url or os.environ.get("HOLDFAST_URL") or _local_address(settings)).rstrip("/")
        if urllib.parse.urlsplit(self.base).scheme not in ("http", "https"):
            raise ConfigError(f"The address of the server must start with http:// or https://, not {self.base!r}.")
        self._headers = _headers(settings)
        # The environment's proxy is honoured, but never stands between us and a server on this machine.
        near = is_loopback(urllib.parse.urlsplit(self.base).hostname or "")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({} if near else None))

    def get(self, path: str, **query: object) -> Any:
        return self._ask("GET", path, None, query)

    def post(self, path: str, body: object = None, **query: object) -> Any:
        return self._ask("POST", path, {} if body is None else body, query)

    def patch(self, path: str, body: object = None, **query: object) -> Any:
        return self._ask("PATCH", path, {} if body is None else body, query)

    def put(self, path: str, body: object) -> Any:
        return self._ask("PUT", path, body, {})

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path, None, {})

    def upload(self, path: str, name: str, content: bytes, fields: dict[str, str]) -> Any:
        """One file and some fields as a form."""
        boundary = secrets.token_hex(16)
        opening = f"--{boundary}\r\nContent-Disposition: form-data; name="
        parts = [f'{opening}"{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()]
        head = f'{opening}"file"; filename="{name}"\r\nContent-Type: application/json\r\n\r\n'
        body = ("".join(parts) + head).encode() + content + f"\r\n--{boundary}--\r\n".encode()
        request = self._request("POST", path, {}, body, f"multipart/form-data; boundary={boundary}")
        with self._opened(request, _TIMEOUT_S) as answer:
            return _decoded(answer.read(), self.base)

    def follow(self, path: str, **query: object) -> Generator[dict[str, Any]]:
        """The events of a stream that has no end of its own. ConnectionLost when it ends."""
        yield from self._events(self._request("GET", path, query, None, ""))

    def stream(self, path: str, body: object) -> Generator[dict[str, Any]]:
        """The events of a stream, up to its end. ConnectionLost if it ends before that."""
        yield from self._events(self._request("POST", path, {}, msgspec.json.encode(body), "application/json"))

    def _events(self, request: urllib.request.Request) -> Generator[dict[str, Any]]:
        with self._opened(request, _QUIET_S) as answer:
            try:
                for line in answer:
                    if not line.startswith(b"data: "):
                        continue
                    text = line[6:].strip()
                    if text == b"[DONE]":
                        return
                    yield msgspec.json.decode(text)
            except (OSError, http.client.HTTPException) as error:
                raise ConnectionLost(f"The connection to {self.base} was lost ({error}).") from error
        raise ConnectionLost(f"{self.base} ended the stream before it was over.")

    def _ask(self, method: str, path: str, body: object, query: dict[str, object]) -> Any:
        encoded = None if body is None else msgspec.json.encode(body)
        request = self._request(method, path, query, encoded, "application/json")
        with self._opened(request, _TIMEOUT_S) as answer:
            return _decoded(answer.read(), self.base)

    def _request(
        self, method: str, path: str, query: dict[str, object], body: bytes | None, content_type: str
    ) -> urllib.request.Request:
        given = {name: value for name, value in query.items() if value is not None}
        address = self.base + path + (f"?{urllib.parse.urlencode(given, doseq=True)}" if given else "")
        headers = self._headers if body is None else {**self._headers, "content-type": content_type}
        return urllib.request.Request(address, data=body, headers=headers, method=method)

    def _opened(self, request: urllib.request.Request, timeout_s: float) -> Any:
        try:
            return self._opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"No server answers at {self.base} ({reason}). Start one with: holdfast serve") from error


def quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")


def _decoded(body: bytes, base: str) -> Any:
    if not body:
        return None
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Refusal(f"{base} answered, but not as a Holdfast server does.") from error


def _local_address(settings: Settings) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    return f"http://{host}:{settings.port}"


def _headers(settings: Settings) -> dict[str, str]:
    key = settings.api_key or os.environ.get("LETTA_API_KEY")
    return {"authorization": f"Bearer {key}"} if key else {}


def _refusal(error: urllib.error.HTTPError) -> HoldfastError:
    body = error.read()
    error.close()
    try:
        detail = msgspec.json.decode(body)["detail"]
    except (msgspec.DecodeError, KeyError, TypeError):
        detail = f"status {error.code}"
    if error.code == 401:
        return Refusal("The server wants an API key: set HOLDFAST_API_KEY to the one it was started with.")
    return NotFound(str(detail)) if error.code == 404 else Refusal(str(detail))
