"""Where a provider listens, and what it must be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from holdfast.llm.catalog.base_urls import is_official

_ANTHROPIC_VERSION: Final = "2023-06-01"
DEFAULT_AZURE_VERSION: Final = "2025-04-01-preview"


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
