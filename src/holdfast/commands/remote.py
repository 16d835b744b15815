"""Asks a running server. Standard library only: these commands should start at once."""

from __future__ import annotations

import argparse
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

import msgspec

from holdfast.commands.configured import settings_from
from holdfast.errors import ConfigError, HoldfastError, NotFound
from holdfast.settings import Settings, is_loopback

_TIMEOUT_S: Final = 30.0


class Unreachable(ConfigError):
    """No server answered where one was looked for."""


class Refusal(HoldfastError):
    """The server answered, and the answer is no."""


def ask(arguments: argparse.Namespace, path: str, **query: object) -> Any:
    settings = settings_from(arguments)
    base = arguments.url or os.environ.get("HOLDFAST_URL") or _local_address(settings)
    if urllib.parse.urlsplit(base).scheme not in ("http", "https"):
        raise ConfigError(f"The address of the server must start with http:// or https://, not {base!r}.")
    address = base.rstrip("/") + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
    request = urllib.request.Request(address, headers=_headers(settings))
    try:
        with _line_to(base).open(request, timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as error:
        raise _refusal(error) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"No server answers at {base} ({reason}). Start one with: holdfast serve") from error
    except msgspec.DecodeError as error:
        raise Refusal(f"{base} answered, but not as a Holdfast server does.") from error


def _line_to(base: str) -> urllib.request.OpenerDirector:
    """The environment's proxy is honoured, but never stands between us and a server on this machine."""
    near = is_loopback(urllib.parse.urlsplit(base).hostname or "")
    return urllib.request.build_opener(urllib.request.ProxyHandler({} if near else None))


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
