"""Which providers the environment enables, and how each is reached. The order here is the order of every listing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from holdfast.errors import ConfigError
from holdfast.llm.endpoint import Endpoint, base_url, is_official
from holdfast.settings import OFFLINE_MODEL

_log = logging.getLogger("holdfast.llm")

Variables = Mapping[str, str]

# When the OpenAI address is not the official one, handles begin with the second name; both are understood.
OPENAI_NAMES: Final = ("openai", "openai-proxy")
_YES: Final = ("true", "1", "yes", "on")
_AWS_REGION: Final = "us-east-1"
_AWS_ADDRESS: Final = "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"  # the name that Amazon's own tools read
_GOOGLE_LOCATION: Final = "us-central1"
_GOOGLE_GLOBAL: Final = "global"
_GOOGLE_CONTINENTS: Final = ("us", "eu")


def endpoints(variables: Variables) -> list[Endpoint]:
    for name, value in variables.items():
        if not value.isprintable():
            raise ConfigError(f"{name} holds a line end or another character that cannot be sent to a provider.")
    found = [endpoint for read in _READERS for endpoint in read(variables)]
    _require_different_names(found)
    return found


def _require_different_names(found: list[Endpoint]) -> None:
    """One would hide the other, and be noticed only when its models are missing."""
    taken = [OFFLINE_MODEL.partition("/")[0], *(endpoint.provider_name for endpoint in found)]
    for name in taken:
        if taken.count(name) > 1:
            raise ConfigError(
                f"Two providers would be called {name}: choose another VLLM_HANDLE_BASE, SGLANG_HANDLE_BASE or "
                "OPENROUTER_HANDLE_BASE."
            )


def _openai(variables: Variables) -> Iterator[Endpoint]:
    name = "OPENAI_BASE_URL" if variables.get("OPENAI_BASE_URL") else "OPENAI_API_BASE"
    if not (key := variables.get("OPENAI_API_KEY")):
        if variables.get(name):  # no mistake for sure: other programs read it too
            _log.warning("%s is set, but OPENAI_API_KEY is not: any word will do if that server wants none.", name)
    else:
        url = _url("openai", variables, name)
        prefix = OPENAI_NAMES[0] if is_official("openai", url) else OPENAI_NAMES[1]
        yield Endpoint(provider_name=prefix, provider_type="openai", base_url=url, api_key=key)


def _anthropic(variables: Variables) -> Iterator[Endpoint]:
    if key := variables.get("ANTHROPIC_API_KEY"):
        switches = {"sonnet": "ANTHROPIC_SONNET_1M", "opus": "ANTHROPIC_OPUS_1M"}
        wide = [family for family, name in switches.items() if variables.get(name, "").lower() in _YES]
        yield Endpoint(
            provider_name="anthropic",
            provider_type="anthropic",
            base_url=_url("anthropic", variables, "ANTHROPIC_BASE_URL"),
            api_key=key,
            options={"context_1m": ",".join(wide)} if wide else {},
        )


def _google_ai(variables: Variables) -> Iterator[Endpoint]:
    if key := variables.get("GEMINI_API_KEY"):
        url = _url("google_ai", variables, "GEMINI_BASE_URL")
        yield Endpoint(provider_name="google_ai", provider_type="google_ai", base_url=url, api_key=key)


def _google_vertex(variables: Variables) -> Iterator[Endpoint]:
    # The project alone says nothing about models: Google sets it on machines of its own.
    if variables.get("GOOGLE_CLOUD_LOCATION") and _both(variables, "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"):
        location, project = variables["GOOGLE_CLOUD_LOCATION"], variables["GOOGLE_CLOUD_PROJECT"]
        yield vertex_endpoint("google_vertex", location, project=project)


def _ollama(variables: Variables) -> Iterator[Endpoint]:
    if variables.get("OLLAMA_BASE_URL"):
        url = _url("ollama", variables, "OLLAMA_BASE_URL")
        yield Endpoint(provider_name="ollama", provider_type="ollama", base_url=url)


def _served(provider_type: str, address: str, prefix: str | None = None) -> Callable[[Variables], Iterator[Endpoint]]:
    """A server of one's own that is known by its address; it wants no key."""

    def read(variables: Variables) -> Iterator[Endpoint]:
        if variables.get(address):
            name = provider_type if prefix is None else _prefix(variables, prefix, provider_type)
            url = _url(provider_type, variables, address)
            yield Endpoint(provider_name=name, provider_type=provider_type, base_url=url)

    return read


def _azure(variables: Variables) -> Iterator[Endpoint]:
    if _both(variables, "AZURE_API_KEY", "AZURE_BASE_URL"):
        yield Endpoint(
            provider_name="azure",
            provider_type="azure",
            base_url=_url("azure", variables, "AZURE_BASE_URL"),
            api_key=variables["AZURE_API_KEY"],
            options=_without_none(api_version=variables.get("AZURE_API_VERSION")),
        )


def _bedrock(variables: Variables) -> Iterator[Endpoint]:
    if _both(variables, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        yield bedrock_endpoint(
            "bedrock",
            variables.get("AWS_DEFAULT_REGION"),
            access_key=variables["AWS_ACCESS_KEY_ID"],
            secret=variables["AWS_SECRET_ACCESS_KEY"],
            session_token=variables.get("AWS_SESSION_TOKEN"),
            address=_url("bedrock", variables, _AWS_ADDRESS) if variables.get(_AWS_ADDRESS) else None,
        )


def _openrouter(variables: Variables) -> Iterator[Endpoint]:
    if key := variables.get("OPENROUTER_API_KEY"):
        attribution = {
            "http-referer": variables.get("OPENROUTER_REFERER"),
            "x-title": variables.get("OPENROUTER_TITLE"),
        }
        yield Endpoint(
            provider_name=_prefix(variables, "OPENROUTER_HANDLE_BASE", "openrouter"),
            provider_type="openrouter",
            base_url=base_url("openrouter", None),
            api_key=key,
            headers={name: value for name, value in attribution.items() if value},
        )


def _keyed(provider_type: str) -> Callable[[Variables], Iterator[Endpoint]]:
    """A vendor of which nothing but the key need be known."""
    variable = provider_type.upper()

    def read(variables: Variables) -> Iterator[Endpoint]:
        if key := variables.get(f"{variable}_API_KEY"):
            url = _url(provider_type, variables, f"{variable}_BASE_URL")
            yield Endpoint(provider_name=provider_type, provider_type=provider_type, base_url=url, api_key=key)

    return read


def bedrock_endpoint(
    name: str,
    region: str | None,
    *,
    access_key: str,
    secret: str,
    session_token: str | None = None,
    address: str | None = None,
) -> Endpoint:
    region = region or _AWS_REGION
    return Endpoint(
        provider_name=name,
        provider_type="bedrock",
        base_url=address or f"https://bedrock-runtime.{region}.amazonaws.com",
        api_key=secret,
        options=_without_none(region=region, access_key=access_key, session_token=session_token),
    )


def vertex_endpoint(
    name: str, location: str | None, *, project: str | None = None, api_key: str | None = None
) -> Endpoint:
    # A project is somewhere; a key alone belongs to no region.
    location = location or (_GOOGLE_GLOBAL if api_key else _GOOGLE_LOCATION)
    return Endpoint(
        provider_name=name,
        provider_type="google_vertex",
        base_url=f"https://{_vertex_host(location)}",
        api_key=api_key,
        options=_without_none(location=location, project=project),
    )


def _vertex_host(location: str) -> str:
    if location == _GOOGLE_GLOBAL:
        return "aiplatform.googleapis.com"
    if location in _GOOGLE_CONTINENTS:
        return f"aiplatform.{location}.rep.googleapis.com"
    return f"{location}-aiplatform.googleapis.com"


def _without_none(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}


def _url(provider_type: str, variables: Variables, name: str) -> str:
    try:
        return base_url(provider_type, variables.get(name))
    except ValueError as error:
        raise ConfigError(f"{name} {error}.") from error


def _prefix(variables: Variables, name: str, usual: str) -> str:
    prefix = variables.get(name, "").strip().rstrip("/") or usual
    if "/" in prefix:
        raise ConfigError(f"{name} must be one word without a slash, because handles are provider/model: {prefix!r}.")
    return prefix


def _both(variables: Variables, first: str, second: str) -> bool:
    """Half a provider is a mistake that would otherwise be noticed only when a model is missing."""
    given = [name for name in (first, second) if variables.get(name)]
    if len(given) == 1:
        missing = second if given == [first] else first
        raise ConfigError(f"{given[0]} is set, but {missing} is not: set both, or neither.")
    return bool(given)


_READERS: Final[tuple[Callable[[Variables], Iterator[Endpoint]], ...]] = (
    _openai,
    _anthropic,
    _google_ai,
    _google_vertex,
    _azure,
    _bedrock,
    _ollama,
    _served("vllm", "VLLM_API_BASE", "VLLM_HANDLE_BASE"),
    _served("sglang", "SGLANG_API_BASE", "SGLANG_HANDLE_BASE"),
    _served("lmstudio_openai", "LMSTUDIO_BASE_URL"),
    _keyed("mistral"),
    _keyed("cohere"),
    _openrouter,
    _keyed("groq"),
    _keyed("together"),
    _keyed("deepseek"),
    _keyed("xai"),
    _keyed("zai"),
    _keyed("minimax"),
    _keyed("baseten"),
    _keyed("fireworks"),
)
