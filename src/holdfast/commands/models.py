"""The models that the server can use, and for every provider that could not be asked, since when and why."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.commands.printing import print_json
from holdfast.commands.remote import ask
from holdfast.commands.tables import text_table

_HEADINGS = ("HANDLE", "WINDOW", "ABILITIES", "PRICE")


def run(arguments: argparse.Namespace) -> int:
    query = {"provider_name": arguments.provider} if arguments.provider else {}
    models: list[dict[str, Any]] = ask(arguments, "/v1/models/", **query)
    providers: list[dict[str, Any]] = ask(arguments, "/v1/models/providers")
    asked = [one for one in providers if arguments.provider in (None, one.get("name"))]
    if arguments.json:
        print_json({"models": models, "providers": asked})
        return 0
    if models:
        print(text_table(_HEADINGS, (_cells(model) for model in models)))
    else:
        print(f"No provider called {arguments.provider} lists any model." if arguments.provider else "No models.")
    if sentences := [sentence for provider in asked if (sentence := _sentence(provider))]:
        print("\n" + "\n".join(sentences))
    return 0


def _cells(model: dict[str, Any]) -> list[object]:
    able: dict[str, bool] = model.get("abilities") or {}
    names = [name.replace("_", " ") for name, can in able.items() if can]
    return [model.get("handle"), f"{model.get('max_context_window') or 0:,}", ", ".join(names), _price(model)]


def _price(model: dict[str, Any]) -> str | None:
    """US dollars for a million tokens, in and out."""
    price: dict[str, float] | None = model.get("price")
    return None if price is None else f"${price['input']:g} / ${price['output']:g}"


def _sentence(provider: dict[str, Any]) -> str | None:
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
