"""How the value of an environment variable is read. Each function gives what the text means, or raises a ValueError
with what it must be; `variables.py` puts the variable's name before it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from holdfast.core import egress_policy
from holdfast.core.usage import Price

_DATABASE_SCHEMES: Final = frozenset({"postgresql", "postgres", "sqlite"})


class DeclaredModel(msgspec.Struct, frozen=True):
    """A model that the operator says is there. With a dimension it is one for embeddings."""

    handle: str
    context_window: int | None = None
    embedding_dim: int | None = None

    @property
    def name(self) -> str:
        return self.handle.partition("/")[2]


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, not {text!r}")
        return int(text)

    return parse


def seconds(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:
            raise ValueError(f"must be a number of seconds from {low:g} to {high:g}, not {text!r}")
        return value

    return parse


def truth(text: str) -> bool:
    match text.lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off":
            return False
        case _:
            raise ValueError(f"must be true or false, not {text!r}")


def comma_list(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def allowed_hosts(text: str) -> tuple[str, ...]:
    entries = comma_list(text.lower())
    for entry in entries:
        if "://" in entry:
            raise ValueError(f"must list hosts or networks such as 10.0.0.0/8, not URLs; found {entry!r}")
        if "/" in entry:
            try:
                ipaddress.ip_network(entry, strict=False)
            except ValueError:
                raise ValueError(f"holds {entry!r}, which is not a network such as 10.0.0.0/8") from None
    return entries


def handle(text: str) -> str:
    provider, slash, model = text.partition("/")
    if not (provider and slash and model):
        raise ValueError(f"must be a handle such as openai/gpt-4o, not {text!r}")
    return text


def declared_models(text: str) -> tuple[DeclaredModel, ...]:
    return tuple(_declared_model(entry) for entry in comma_list(text))


def _declared_model(entry: str) -> DeclaredModel:
    handle, _, size = (part.strip() for part in entry.partition("="))
    provider, slash, name = handle.partition("/")
    dimension = size.removeprefix("embedding:")
    number = int(dimension) if dimension.isdecimal() else 0
    if not (provider and slash and name) or (size and not 0 < number <= 100_000_000):
        raise ValueError(
            f"must list handles such as vllm/my-model=32768 or ollama/vectors=embedding:768, and not {entry!r}"
        )
    if dimension != size:
        return DeclaredModel(handle, embedding_dim=number)
    return DeclaredModel(handle, number or None)


def model_prices(text: str) -> dict[str, Price]:
    return dict(_model_price(entry) for entry in comma_list(text))


def _model_price(entry: str) -> tuple[str, Price]:
    handle, _, amounts = (part.strip() for part in entry.partition("="))
    provider, slash, name = handle.partition("/")
    try:
        prices = [float(amount) for amount in amounts.split("/")]
    except ValueError:
        prices = []
    if not (provider and slash and name) or not 2 <= len(prices) <= 4 or not all(0 <= one < 1e6 for one in prices):
        raise ValueError(
            "must list handles with US dollars per million tokens for input, output and, if they differ, cached input "
            f"and cache writes, such as openai/gpt-4o=2.5/10/1.25, and not {entry!r}"
        )
    input, output, cached, written = (*prices, None, None)[:4]
    assert input is not None
    assert output is not None
    return handle, Price(input, output, cached, written)


def openai_responses(text: str) -> str:
    if text.lower() not in ("auto", "always", "never"):
        raise ValueError(f"must be auto, always or never, not {text!r}")
    return text.lower()


def database_url(text: str) -> str:
    # The value may hold a password, so it is not repeated.
    scheme, found, _ = text.partition("://")
    if not found or scheme.partition("+")[0] not in _DATABASE_SCHEMES:
        raise ValueError("must start with postgresql:// or sqlite:///")
    return text


def http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"must be a URL such as http://localhost:4318, not {text!r}")
    return text


def egress_mode(text: str) -> str:
    if text.lower() not in egress_policy.MODES:
        raise ValueError(f"must be one of {', '.join(egress_policy.MODES)}, not {text!r}")
    return text.lower()


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {text!r}")
        return text.lower()

    return parse


def log_level(text: str) -> str:
    level = text.upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ValueError(f"must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not {text!r}")
    return level


def directory(text: str) -> Path:
    return Path(text).expanduser()
