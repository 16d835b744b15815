"""Where a provider listens, and what it must be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec


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
