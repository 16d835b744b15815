"""Writes `src/holdfast/llm/catalog/models.json` from genai-prices: `make models`.

The server reads the file and does not need the library (decision 26). To refresh: raise genai-prices in
`constraints.txt`, run `make models`, and read the diff. `--check` writes nothing, and fails when a price,
a window or a name differs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
from genai_prices import data, types

from holdfast.core.usage import Price
from holdfast.llm.catalog.known_models import SourceModel, plain_name

FILE: Final = Path(__file__).parents[1] / "src/holdfast/llm/catalog/models.json"
# By our type of provider, the id in genai-prices. Makers only: whoever else serves a model may ask another price.
MAKERS: Final = {
    "anthropic": "anthropic",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "google_ai": "google",
    "minimax": "minimax",
    "mistral": "mistral",
    "moonshot": "moonshotai",
    "openai": "openai",
    "xai": "x-ai",
    "zai": "zai",
}
# Models that no agent can talk to, and models of other makers that Google and Mistral resell.
_LEFT_OUT: Final = re.compile(
    r"audio|realtime|transcribe|tts|image|embed|ocr|\blive|robotics|computer-use|moderation|voice|voxtral|search"
    r"|^(?:ada|babbage|curie|davinci|text-)|^gpt-3\.5-turbo-instruct"
)
_RESOLD: Final = {"google_ai": re.compile(r"(?!gemini|gemma)"), "mistral": re.compile(r"zai-")}
# What a model costs for these is not in the two prices for text, so its price is left out.
_OTHER_UNITS: Final = ("output_image_mtok", "input_image_mtok", "requests_kcount")
# Dates that no model has, to see whether the library takes any. One of its prefixes ends within the year 2025.
_NO_RELEASE: Final = ("-20250101", "-20991231", "-2099-12-31")
_HALF_A_DATE: Final = re.compile(r"-20\d\d$")


def generated() -> str:
    found = {maker: list(_models(maker)) for maker in MAKERS}
    made = [
        f' "{maker}": [\n' + ",\n".join(f"  {_line(model)}" for model in models) + "\n ]"
        for maker, models in found.items()
    ]
    source = f' "source": "genai-prices {version("genai-prices")}"'
    return "{\n" + ",\n".join([source, *made]) + "\n}\n"


def _models(maker: str) -> Iterator[SourceModel]:
    provider = next(one for one in data.providers if one.id == MAKERS[maker])
    for model in sorted(provider.models, key=lambda one: one.id.lower()):
        names = [name for name in _names(model) if _is_wanted(maker, name) and _finds(provider, name, model)]
        of_any_date = [name for name in names if any(_finds(provider, name + date, model) for date in _NO_RELEASE)]
        exact = [name for name in names if name not in of_any_date]
        prices = dict(_prices(model))
        if names and (model.context_window or prices):
            yield SourceModel(tuple(exact), tuple(of_any_date), model.context_window, prices)


def _finds(provider: types.Provider, name: str, model: types.ModelInfo) -> bool:
    """Two models may match one name; the library's own choice counts."""
    return provider.find_model(name) is model


def _is_wanted(maker: str, name: str) -> bool:
    resold = _RESOLD.get(maker)
    # A name that is looked up has lost its maker and its tag.
    if plain_name(name) != name or _HALF_A_DATE.search(name):
        return False
    return not _LEFT_OUT.search(name) and not (resold and resold.match(name))


def _names(model: types.ModelInfo) -> list[str]:
    return sorted({model.id.lower(), *(name.lower() for name in _literals(model.match))})


def _literals(match: types.MatchLogic) -> Iterator[str]:
    match match:
        case types.ClauseOr(or_=clauses):
            for clause in clauses:
                yield from _literals(clause)
        case types.ClauseEquals(equals=name):
            yield name
        case types.ClauseStartsWith(starts_with=name) | types.ClauseContains(contains=name):
            yield name.rstrip("-@")
        case _:
            pass  # a pattern is no name; `_finds` still tries dates with it


def _prices(model: types.ModelInfo) -> Iterator[tuple[str, Price]]:
    """By the day from which it holds; empty for the first. Nothing when the price is not the same all day long."""
    listed = (
        [types.ConditionalPrice(prices=model.prices)] if isinstance(model.prices, types.ModelPrice) else model.prices
    )
    days = [_day(one.constraint) for one in listed]
    made = [_price(one.prices) for one in listed]
    known = [(day, price) for day, price in zip(days, made, strict=True) if day is not None and price is not None]
    if len(known) < len(listed):
        return
    before = None
    for day, price in sorted(known, key=lambda one: one[0]):
        if price != before:
            yield day, price
        before = price


def _day(constraint: object) -> str | None:
    if constraint is None:
        return ""
    return constraint.start_date.isoformat() if isinstance(constraint, types.StartDateConstraint) else None


def _price(prices: types.ModelPrice) -> Price | None:
    """None where there is no price for text, or more than one for long prompts."""
    amounts: dict[str, Any] = vars(prices)
    kinds = [amounts.get(f"{kind}_mtok") for kind in ("input", "output", "cache_read", "cache_write")]
    limits = {tuple(tier.start for tier in kind.tiers) for kind in kinds if isinstance(kind, types.TieredPrices)}
    if any(amounts.get(unit) for unit in _OTHER_UNITS) or len(limits) > 1:
        return None
    base = [kind.base if isinstance(kind, types.TieredPrices) else kind for kind in kinds]
    input, output, cached, written = [float(one) if isinstance(one, Decimal) else None for one in base]
    if input is None or output is None:
        return None
    return Price(input, output, cached, written, min(limits.pop(), default=None) if limits else None)


def _line(model: SourceModel) -> str:
    plain = msgspec.to_builtins(model)
    plain["prices"] = {
        day: {name: value for name, value in price.items() if value is not None}
        for day, price in plain.get("prices", {}).items()
    }
    return msgspec.json.encode({name: value for name, value in plain.items() if value}).decode()


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: update_models.py [--check]", file=sys.stderr)
        return 2
    made = generated()
    if not arguments:
        FILE.write_text(made)
    elif changes := list(_changes(FILE.read_text(), made)):
        print(f"genai-prices {version('genai-prices')} knows it otherwise:", *changes, sep="\n", file=sys.stderr)
        return 1
    return 0


def _changes(before: str, after: str) -> Iterator[str]:
    """Lines that differ, but for the one that names the version."""
    for line in unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0):
        if line[:1] in "+-" and not line.startswith(("+++", "---")) and '"source"' not in line:
            yield line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
