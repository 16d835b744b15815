"""Where the OpenAI protocol is spoken at an endpoint: Azure has the model in the path."""

from __future__ import annotations

from typing import Final

from holdfast.llm.endpoint import Endpoint

DEFAULT_AZURE_VERSION: Final = "2025-04-01-preview"


def path_of(endpoint: Endpoint, model: str, operation: str) -> str:
    """`operation` is `chat/completions` or `embeddings`."""
    if endpoint.provider_type != "azure" or endpoint.base_url.endswith("/openai/v1"):
        return f"/{operation}"
    version = endpoint.options.get("api_version") or DEFAULT_AZURE_VERSION
    return f"/openai/deployments/{model}/{operation}?api-version={version}"
