"""What is known of well-known models by their names: window, longest output, abilities, price.

What a vendor says itself comes first; this is for what it does not say. Windows and prices of single models come from
`models.json`, which is generated (decision 26); outputs and abilities are in no list and are kept here by hand, by
family. A family's window and abilities are inherited by the longest prefix, because a new member rarely has less.
Prices are not inherited: a guessed price is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from holdfast.llm.base import Abilities, Price

_FILE: Final = Path(__file__).with_name("models.json")
_UNKNOWN_WINDOW: Final = 128_000
_UNKNOWN_OPENAI_WINDOW: Final = 30_000
_WIDE_CLAUDE: Final = 1_000_000


class SourceModel(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of `models.json`. `of_any_date`: names that may be followed by a date. `prices`: by the day from which
    each holds, empty for the first."""

    names: tuple[str, ...] = ()
    of_any_date: tuple[str, ...] = ()
    window: int | None = None
    prices: dict[str, Price] = {}


class Spec(msgspec.Struct, frozen=True):
    """`window` is None where only a price is known."""

    window: int | None
    output: int | None = None
    abilities: Abilities = Abilities()


# An inference profile of Amazon's is region, maker and name with dots between; elsewhere makers end with a slash.
_MAKER: Final = re.compile(r"^(?:(?:us|eu|apac|jp|au|ca|global)\.)?(?:[a-z0-9]+\.)(?=[a-z])")
_DATE: Final = re.compile(r"[-@](?:20\d\d-?\d\d-?\d\d|\d{4}|latest)(?:-v\d+)?$|-v\d+$")


def spec_of(name: str) -> Spec | None:
    """None when neither the name nor a prefix of it is known."""
    plain = plain_name(name)
    undated = undated_name(plain)
    family = family_of(name)
    listed = _listed(plain, undated)
    if family is None and listed is None:
        return None
    window = WINDOWS.get(undated) or (listed.window if listed else None) or (family.window if family else None)
    return msgspec.structs.replace(family or Spec(None), window=window)


def price_of(provider_type: str, name: str, *, day: str | None = None) -> Price | None:
    """The maker's own price on that day, today if none is named. None for anybody who is not a maker."""
    plain = plain_name(name)
    undated = undated_name(plain)
    models = _source().get(provider_type, {})
    listed, dated = models.get(plain), models.get(undated)
    if listed is None and dated is not None and undated in dated.of_any_date:
        listed = dated
    if listed is None:
        return None
    day = day or datetime.now(UTC).date().isoformat()
    since = max((start for start in listed.prices if start <= day), default=None)
    return None if since is None else listed.prices[since]


def family_of(name: str) -> Spec | None:
    """What is known by hand: None where nothing but a window or a price is."""
    plain = plain_name(name)
    undated = undated_name(plain)
    exact = FAMILIES.get(plain) or FAMILIES.get(undated)
    if exact is not None:
        return exact
    key = max((key for key in FAMILIES if _begins(undated, key)), key=len, default=None)
    return None if key is None else FAMILIES[key]


def _listed(*names: str) -> SourceModel | None:
    makers = _source().values()
    return next((models[name] for name in names for models in makers if name in models), None)


@cache
def _source() -> dict[str, dict[str, SourceModel]]:
    """By maker and name. Read when a model is first asked about: a server with no vendor does without."""
    listed = msgspec.json.decode(_FILE.read_bytes(), type=dict[str, list[SourceModel] | str])
    return {
        maker: {name: model for model in models for name in (*model.names, *model.of_any_date)}
        for maker, models in listed.items()
        if not isinstance(models, str)
    }


def default_window(provider_type: str) -> int:
    """Small where too much is refused, and the vendor's own list is known to leave windows out."""
    return _UNKNOWN_OPENAI_WINDOW if provider_type in ("openai", "azure") else _UNKNOWN_WINDOW


def wide_window(name: str, options: Mapping[str, str]) -> int | None:
    """A window that Anthropic grants on request only, where the operator said that it is granted."""
    families = options.get("context_1m", "").split(",")
    wide = any(family and plain_name(name).startswith(f"claude-{family}-4") for family in families)
    return _WIDE_CLAUDE if wide else None


def embedding_dimension(name: str) -> int | None:
    """Anywhere in the name: servers put words of their own before it."""
    plain = plain_name(name, keep_tag=True)
    family = max((key for key in EMBEDDINGS if key in plain), key=len, default=None)
    return None if family is None else EMBEDDINGS[family]


def is_embedding_name(name: str) -> bool:
    return bool(_EMBEDDING_NAME.search(name)) or embedding_dimension(name) is not None


def plain_name(name: str, *, keep_tag: bool = False) -> str:
    """Without the maker in front, and without the tag that Ollama and OpenRouter put behind a colon."""
    last = name.lower().rpartition("/")[2]
    if not keep_tag:
        last = last.partition(":")[0]
    return _MAKER.sub("", last)


def undated_name(name: str) -> str:
    return _DATE.sub("", name)


def _begins(name: str, key: str) -> bool:
    """`gpt-4` does not begin `gpt-4o`, and `o1` does not begin `o10`; but `qwen` begins `qwen3`."""
    rest = name[len(key) :]
    return name.startswith(key) and not (rest and key[-1].isdigit() and rest[0].isalnum())


_TEXT: Final = Abilities(images=False)
_SEES: Final = Abilities()
_STRICT: Final = Abilities(strict_tools=True)
_THINKS: Final = Abilities(reasoning=True)
_THINKS_IN_TEXT: Final = Abilities(images=False, reasoning=True)
_STRICT_THINKS: Final = Abilities(reasoning=True, strict_tools=True)
_STRICT_THINKS_IN_TEXT: Final = Abilities(images=False, reasoning=True, strict_tools=True)


_OPENAI: Final[dict[str, Spec]] = {
    "gpt-3.5-turbo": Spec(16_385, 4_096, _TEXT),
    "gpt-4": Spec(8_192, 8_192, _TEXT),
    "gpt-4-0125-preview": Spec(128_000, 4_096, _TEXT),
    "gpt-4-1106-preview": Spec(128_000, 4_096, _TEXT),
    "gpt-4-turbo": Spec(128_000, 4_096, _SEES),
    "gpt-4o": Spec(128_000, 16_384, _STRICT),
    "gpt-4o-2024-05-13": Spec(128_000, 4_096, _SEES),
    "chatgpt-4o": Spec(128_000, 16_384, Abilities(tools=False)),
    "gpt-4.1": Spec(1_047_576, 32_768, _STRICT),
    "gpt-4.5": Spec(128_000, 16_384, _STRICT),
    "gpt-5": Spec(400_000, 128_000, _STRICT_THINKS),
    "gpt-5-chat": Spec(128_000, 16_384, _SEES),
    "gpt-5-pro": Spec(400_000, 272_000, _STRICT_THINKS),
    "gpt-5.1-chat": Spec(128_000, 16_384, _SEES),
    "gpt-5.2-chat": Spec(128_000, 16_384, _SEES),
    "gpt-oss": Spec(131_072, 32_768, _THINKS_IN_TEXT),
    "o1": Spec(200_000, 100_000, _STRICT_THINKS),
    "o1-mini": Spec(128_000, 65_536, Abilities(tools=False, images=False, reasoning=True)),
    "o1-preview": Spec(128_000, 32_768, Abilities(tools=False, images=False, reasoning=True)),
    "o3": Spec(200_000, 100_000, _STRICT_THINKS),
    "o3-mini": Spec(200_000, 100_000, _STRICT_THINKS_IN_TEXT),
    "o4-mini": Spec(200_000, 100_000, _STRICT_THINKS),
}
_ANTHROPIC: Final[dict[str, Spec]] = {
    "claude": Spec(200_000, 8_192, _SEES),
    "claude-3": Spec(200_000, 4_096, _SEES),
    "claude-3-5": Spec(200_000, 8_192, _SEES),
    "claude-3-7": Spec(200_000, 64_000, _THINKS),
    "claude-sonnet-4": Spec(200_000, 64_000, _THINKS),
    "claude-sonnet-4-6": Spec(1_000_000, 128_000, _THINKS),
    "claude-opus-4": Spec(200_000, 32_000, _THINKS),
    "claude-opus-4-5": Spec(200_000, 64_000, _THINKS),
    "claude-opus-4-6": Spec(1_000_000, 128_000, _THINKS),
    "claude-opus-4-7": Spec(1_000_000, 128_000, _THINKS),
    "claude-opus-4-8": Spec(1_000_000, 128_000, _THINKS),
    "claude-haiku-4-5": Spec(200_000, 64_000, _THINKS),
    "claude-sonnet-5": Spec(1_000_000, 128_000, _THINKS),
    "claude-opus-5": Spec(1_000_000, 128_000, _THINKS),
    "claude-haiku-5": Spec(1_000_000, 128_000, _THINKS),
    "claude-fable-5": Spec(1_000_000, 128_000, _THINKS),
}
_GOOGLE: Final[dict[str, Spec]] = {
    "gemini": Spec(1_048_576, 8_192, _SEES),
    "gemini-2.5": Spec(1_048_576, 65_536, _THINKS),
    "gemini-3": Spec(1_048_576, 65_536, _THINKS),
    "gemma": Spec(8_192, None, _TEXT),
    "gemma-3": Spec(131_072, None, _SEES),
    "gemma3": Spec(131_072, None, _SEES),
    "gemma3n": Spec(32_768, None, _SEES),
}
# By family, as their makers and the servers that run them spell it. A server that states its window is believed.
_OPEN: Final[dict[str, Spec]] = {
    "codestral": Spec(32_768, None, _TEXT),
    "command-a": Spec(262_144, 8_192, _TEXT),
    "command-r": Spec(131_072, 4_096, _TEXT),
    "deepseek": Spec(131_072, 8_192, _TEXT),
    "deepseek-reasoner": Spec(128_000, 65_536, _THINKS_IN_TEXT),
    "deepseek-r1": Spec(131_072, None, _THINKS_IN_TEXT),
    "devstral": Spec(131_072, None, _TEXT),
    "glm-4": Spec(128_000, None, _TEXT),
    "glm-4.5": Spec(131_072, 98_304, _THINKS_IN_TEXT),
    "glm-4.6": Spec(200_000, 131_072, _THINKS_IN_TEXT),
    "granite": Spec(131_072, None, _TEXT),
    "grok-3": Spec(131_072, None, _TEXT),
    "grok-4": Spec(256_000, None, _THINKS),
    "grok-4-fast": Spec(2_000_000, None, _THINKS),
    "grok-code-fast": Spec(256_000, None, _THINKS_IN_TEXT),
    "kimi-k2": Spec(131_072, None, _TEXT),
    "llama": Spec(8_192, None, _TEXT),
    "llama2": Spec(4_096, None, _TEXT),
    "llama-2": Spec(4_096, None, _TEXT),
    "llama3": Spec(8_192, None, _TEXT),
    "llama-3": Spec(8_192, None, _TEXT),
    "llama3.1": Spec(131_072, None, _TEXT),
    "llama-3.1": Spec(131_072, None, _TEXT),
    "llama3.2": Spec(131_072, None, _TEXT),
    "llama-3.2": Spec(131_072, None, _TEXT),
    "llama3.3": Spec(131_072, None, _TEXT),
    "llama-3.3": Spec(131_072, None, _TEXT),
    "llama4": Spec(131_072, None, _SEES),
    "llama-4": Spec(131_072, None, _SEES),
    "meta-llama-3.1": Spec(131_072, None, _TEXT),
    "meta-llama-3": Spec(8_192, None, _TEXT),
    "minimax-m2": Spec(204_800, None, _THINKS_IN_TEXT),
    "ministral": Spec(131_072, None, _TEXT),
    "mistral": Spec(32_768, None, _TEXT),
    "mistral-large": Spec(131_072, None, _TEXT),
    "mistral-medium": Spec(131_072, None, _SEES),
    "mistral-nemo": Spec(131_072, None, _TEXT),
    "mistral-small": Spec(32_768, None, _TEXT),
    "mixtral": Spec(32_768, None, _TEXT),
    "phi3": Spec(128_000, None, _TEXT),
    "phi-3": Spec(128_000, None, _TEXT),
    "phi4": Spec(16_384, None, _TEXT),
    "phi-4": Spec(16_384, None, _TEXT),
    "qwen": Spec(32_768, None, _TEXT),
    "qwen3": Spec(40_960, None, _THINKS_IN_TEXT),
    "qwen3-coder": Spec(262_144, None, _TEXT),
    "qwq": Spec(32_768, None, _THINKS_IN_TEXT),
    "smollm": Spec(8_192, None, _TEXT),
}
FAMILIES: Final[dict[str, Spec]] = {**_OPENAI, **_ANTHROPIC, **_GOOGLE, **_OPEN}
# Where `models.json` is wrong: it has the window of the model that thinks, a rounded one, or one of an older model.
WINDOWS: Final[dict[str, int]] = {
    "gpt-4.1": 1_047_576,
    "gpt-4.1-mini": 1_047_576,
    "gpt-4.1-nano": 1_047_576,
    "gpt-5-chat": 128_000,
    "gpt-5.1-chat": 128_000,
    "gpt-5.2-chat": 128_000,
    "deepseek-chat": 128_000,
    "deepseek-reasoner": 128_000,
    "deepseek-r1": 131_072,
}

_EMBEDDING_NAME: Final = re.compile(r"embed|\bbge-|\be5-|\bgte-|minilm", re.IGNORECASE)
EMBEDDINGS: Final[dict[str, int]] = {
    "all-minilm": 384,
    "bge-base": 768,
    "bge-large": 1024,
    "bge-m3": 1024,
    "bge-small": 384,
    "codestral-embed": 1536,
    "e5-base": 768,
    "e5-large": 1024,
    "e5-small": 384,
    "embed-english-v3.0": 1024,
    "embed-multilingual-v3.0": 1024,
    "embed-v4.0": 1536,
    "embeddinggemma": 768,
    "gemini-embedding-001": 3072,
    "gte-base": 768,
    "gte-large": 1024,
    "gte-small": 384,
    "jina-embeddings-v3": 1024,
    "m2-bert-80m": 768,
    "mistral-embed": 1024,
    "multilingual-e5-large": 1024,
    "mxbai-embed-large": 1024,
    "nomic-embed-text": 768,
    "qwen3-embedding-0.6b": 1024,
    "qwen3-embedding-4b": 2560,
    "qwen3-embedding-8b": 4096,
    "qwen3-embedding:0.6b": 1024,
    "qwen3-embedding:4b": 2560,
    "qwen3-embedding:8b": 4096,
    "snowflake-arctic-embed-l": 1024,
    "snowflake-arctic-embed2": 1024,
    "text-embedding-004": 768,
    "text-embedding-3-large": 3072,
    "text-embedding-3-small": 1536,
    "text-embedding-ada-002": 1536,
    "titan-embed-text-v2": 1024,
    "voyage-3": 1024,
}
