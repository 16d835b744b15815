"""Where a provider listens, and what it must be shown: addresses as people write them are brought into one form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

_ANTHROPIC_VERSION: Final = "2023-06-01"
DEFAULT_AZURE_VERSION: Final = "2025-04-01-preview"
OPENAI: Final = "https://api.openai.com/v1"

OFFICIAL: Final[Mapping[str, str]] = {
    "anthropic": "https://api.anthropic.com",
    "baseten": "https://inference.baseten.co/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "cohere": "https://api.cohere.com/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "fireworks": "https://api.fireworks.ai/inference/v1",
    "google_ai": "https://generativelanguage.googleapis.com",
    "groq": "https://api.groq.com/openai/v1",
    "hugging-face": "https://router.huggingface.co/v1",
    "minimax": "https://api.minimax.io/v1",
    "mistral": "https://api.mistral.ai/v1",
    "moonshot": "https://api.moonshot.ai/v1",
    "moonshot_coding": "https://api.kimi.com/coding/v1",
    "openai": OPENAI,
    "openrouter": "https://openrouter.ai/api/v1",
    "together": "https://api.together.xyz/v1",
    "xai": "https://api.x.ai/v1",
    "zai": "https://api.z.ai/api/paas/v4",
    "zai_coding": "https://api.z.ai/api/coding/paas/v4",
}
# They have the version in the paths of their requests, so their base has none.
_UNVERSIONED: Final = frozenset({"anthropic", "bedrock", "google_ai"})
# Servers that one runs oneself. They speak below /v1, whatever comes before it.
_OWN_SERVERS: Final = frozenset({"ollama", "vllm", "sglang", "lmstudio_openai"})
_VERSION: Final = re.compile(r"/v\d+(?:beta\d*)?$")
_PASTED: Final = re.compile(r"/(?:chat/completions|messages|models|responses|api/tags|api/chat)$")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    provider_name: str  # the first half of its handles
    provider_type: str  # which adapter and dialect it needs: openai, anthropic, ollama, google_ai, …
    base_url: str  # no slash at the end; paths such as /chat/completions are appended
    api_key: str | None = None
    headers: Mapping[str, str] = {}  # besides those of the protocol
    options: Mapping[str, str] = {}  # what is peculiar to a vendor: api_version, region, access_key, project, …
    category: Literal["base", "byok"] = "base"

    def __repr__(self) -> str:
        # Endpoints end up in logs and tracebacks; keys must not.
        return f"Endpoint({self.provider_name!r}, {self.provider_type!r}, {self.base_url!r})"


def is_written_by_user(endpoint: Endpoint) -> bool:
    """Whether a user had a say in where it leads. The official address of a vendor is known and is nobody's to choose;
    a region is a part of the address."""
    return endpoint.category == "byok" and not is_official(endpoint.provider_type, endpoint.base_url)


def headers_of(endpoint: Endpoint) -> dict[str, str]:
    """How the key is shown, by dialect."""
    key = endpoint.api_key
    match endpoint.provider_type:
        case "anthropic":
            return {"anthropic-version": _ANTHROPIC_VERSION} | ({"x-api-key": key} if key else {})
        case "google_ai":
            return {"x-goog-api-key": key} if key else {}
        case "azure":
            return {"api-key": key} if key else {}
        case _:
            return {"authorization": f"Bearer {key}"} if key else {}


def path_of(endpoint: Endpoint, model: str, operation: str) -> str:
    """Of an operation of the OpenAI protocol, `chat/completions` or `embeddings`. Azure has the model in it."""
    if endpoint.provider_type != "azure" or endpoint.base_url.endswith("/openai/v1"):
        return f"/{operation}"
    version = endpoint.options.get("api_version") or DEFAULT_AZURE_VERSION
    return f"/openai/deployments/{model}/{operation}?api-version={version}"


def base_url(provider_type: str, written: str | None) -> str:
    """The base that request paths are appended to. Raises ValueError, in words that go after the name of a setting."""
    if not written:
        if provider_type in OFFICIAL:
            return OFFICIAL[provider_type]
        raise ValueError("must be set, because there is no official address")
    try:
        parts = urlsplit(written.strip())
    except ValueError as error:
        raise ValueError(f"must have a host that can exist ({error})") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"must be an http or https URL such as http://localhost:11434, not {written!r}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not carry a user name or password")
    if not _can_exist(parts):
        raise ValueError(f"must have a host and a port that can exist, which {written!r} has not")
    path = _PASTED.sub("", parts.path.rstrip("/"))
    return urlunsplit((parts.scheme, parts.netloc, _versioned(provider_type, path), "", ""))


def is_official(provider_type: str, url: str) -> bool:
    return OFFICIAL.get(provider_type) == url


def without_version(url: str) -> str:
    """Where a server keeps what is not below /v1."""
    return _VERSION.sub("", url)


def _can_exist(parts: SplitResult) -> bool:
    try:
        (parts.hostname or "").rstrip(".").encode("idna")
        return parts.port != 0
    except ValueError:  # an empty part of a name, one that is too long, a port that is no number or too large a one
        return False


def _versioned(provider_type: str, path: str) -> str:
    if provider_type in _UNVERSIONED:
        return _VERSION.sub("", path)
    if provider_type == "azure":  # where /openai/v1 is the newer interface; the older one begins at the root
        return path if path.endswith("/openai/v1") else path.removesuffix("/openai")
    if _VERSION.search(path):
        return path
    # A gateway with a path of its own may have no version below it: then it is taken at its word.
    return f"{path}/v1" if not path or provider_type in _OWN_SERVERS else path
