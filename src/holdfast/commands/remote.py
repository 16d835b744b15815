"""Commands that ask a running server and print its answer. Standard library only: they should start at once."""

from __future__ import annotations

import argparse
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.commands import settings_from
from holdfast.errors import ConfigError, HoldfastError, NotFound
from holdfast.settings import Settings, is_loopback

_TIMEOUT_S: Final = 30.0
_MODEL_HEADINGS: Final = ("HANDLE", "WINDOW", "ABILITIES", "PRICE")


class Unreachable(ConfigError):
    """No server answered where one was looked for."""


class Refusal(HoldfastError):
    """The server answered, and the answer is no."""


def why(arguments: argparse.Namespace) -> int:
    """Where a run stands, in words: what it does or waits for, or how it ended."""
    answer: dict[str, Any] = _ask(arguments, f"/v1/runs/{urllib.parse.quote(arguments.run, safe='')}/why")
    if arguments.json:
        _print_json(answer)
        return 0
    history: list[str] = answer.get("history", [])
    print("\n  ".join([str(answer["summary"]), *history]))
    return 0


def runs(arguments: argparse.Namespace) -> int:
    """The latest runs, newest first."""
    found: list[dict[str, Any]] = _ask(arguments, "/v1/runs/", limit=arguments.limit, order="desc")
    if arguments.json:
        _print_json(found)
    elif not found:
        print("There are no runs yet.")
    else:
        columns = ("id", "status", "stop_reason", "agent_id", "created_at")
        print(
            _text_table(
                ("RUN", "STATUS", "STOPPED", "AGENT", "STARTED"), ([row.get(name) for name in columns] for row in found)
            )
        )
    return 0


def approvals(arguments: argparse.Namespace) -> int:
    """The calls that wait for a person: what would be run, with which arguments, for which agent."""
    found: list[dict[str, Any]] = _ask(arguments, "/v1/approvals/")
    if arguments.json:
        _print_json(found)
    elif not found:
        print("Nothing waits for a decision.")
    else:
        print("\n\n".join(_waiting_lines(waiting) for waiting in found))
    return 0


def _waiting_lines(waiting: dict[str, Any]) -> str:
    lines = [f"{waiting.get('agent_id')}, run {waiting.get('run_id')}, asked {waiting.get('asked_at')}"]
    calls: list[dict[str, Any]] = waiting.get("tool_calls", [])
    lines += [f"  {call.get('name')} {call.get('arguments')}  ({call.get('tool_call_id')})" for call in calls]
    if changed := waiting.get("changed_secrets"):
        lines.append(f"  secrets changed since it was asked: {', '.join(changed)}")
    return "\n".join(lines)


def models(arguments: argparse.Namespace) -> int:
    """The models that the server can use, and for every provider that could not be asked, since when and why."""
    query = {"provider_name": arguments.provider} if arguments.provider else {}
    found: list[dict[str, Any]] = _ask(arguments, "/v1/models/", **query)
    providers: list[dict[str, Any]] = _ask(arguments, "/v1/models/providers")
    asked = [one for one in providers if arguments.provider in (None, one.get("name"))]
    if arguments.json:
        _print_json({"models": found, "providers": asked})
        return 0
    if found:
        print(_text_table(_MODEL_HEADINGS, (_model_cells(model) for model in found)))
    else:
        print(f"No provider called {arguments.provider} lists any model." if arguments.provider else "No models.")
    if sentences := [sentence for provider in asked if (sentence := _provider_sentence(provider))]:
        print("\n" + "\n".join(sentences))
    return 0


def _model_cells(model: dict[str, Any]) -> list[object]:
    able: dict[str, bool] = model.get("abilities") or {}
    names = [name.replace("_", " ") for name, can in able.items() if can]
    return [model.get("handle"), f"{model.get('max_context_window') or 0:,}", ", ".join(names), _price(model)]


def _price(model: dict[str, Any]) -> str | None:
    """US dollars for a million tokens, in and out."""
    price: dict[str, float] | None = model.get("price")
    return None if price is None else f"${price['input']:g} / ${price['output']:g}"


def _provider_sentence(provider: dict[str, Any]) -> str | None:
    match provider.get("status"):
        case "ok" | "unlistable" | "not_asked" if provider.get("problem"):
            return str(provider["problem"])
        case "ok" if provider.get("models") == 0:
            return f"{provider.get('name')} lists no model that can call tools."
        case "failed":
            return f"{provider.get('name')} has not listed its models since {provider.get('since')}: " + str(
                provider.get("problem")
            )
        case "unlistable":
            return f"{provider.get('name')} cannot list its models: write their names after {provider.get('name')}/."
        case _:
            return None


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _text_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their widest entry, nothing cut off."""
    lines = [tuple(headings), *(tuple("-" if cell is None else str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _ask(arguments: argparse.Namespace, path: str, **query: object) -> Any:
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
