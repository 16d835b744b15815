"""Opens the adapter that a provider's dialect needs, and the one pool of connections they share, on first use.

Adapters are imported here and nowhere else: aiohttp and pydantic-ai are slow to import, and a server that talks to no
vendor should not wait for them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal

from holdfast.errors import Unsupported
from holdfast.llm.base import Model, ModelInfo
from holdfast.llm.catalog.known_models import plain_name
from holdfast.llm.chat.dialects import thinks_only_without_tools
from holdfast.llm.endpoint import Endpoint, is_official, is_written_by_user
from holdfast.ssrf_guard import Guard

if TYPE_CHECKING:
    from holdfast.llm.http import Http

_log = logging.getLogger("holdfast.llm")

Responses = Literal["auto", "always", "never"]

# What pydantic-ai itself needs for each of these; all of it comes with the extra.
_BRIDGED: Final[Mapping[str, str]] = {
    "bedrock": "boto3",
    "cohere": "cohere",
    "google_ai": "google.genai",
    "google_vertex": "google.genai",
}
_WILL_NOT_REASON: Final = (
    "%s will not reason where it has tools: OpenAI lets it only through its Responses API. For that, install "
    "'holdfast[vendors]', and behind a gateway set HOLDFAST_OPENAI_RESPONSES=always."
)
_REASONING_AT_OPENAI: Final = re.compile(r"(?:o\d|gpt-[5-9])(?!.*-chat)")


class Vendors:
    """`first_byte_s` and `total_s`: how long a vendor may stay silent, and how long a reply may take.

    `guard` judges every connection to an address that a user wrote; without one, users are trusted.
    """

    def __init__(
        self,
        *,
        first_byte_s: float = 60.0,
        total_s: float = 600.0,
        openai_responses: Responses = "auto",
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._first_byte_s = first_byte_s
        self._total_s = total_s
        self._openai_responses: Responses = openai_responses
        self._http: Http | None = None

    @property
    def http(self) -> Http:
        if self._http is None:
            from holdfast.llm import http  # noqa: PLC0415 - aiohttp is slow to import

            self._http = http.Http(first_byte_s=self._first_byte_s, total_s=self._total_s, guard=self._guard)
        return self._http

    def open(self, endpoint: Endpoint, info: ModelInfo) -> Model:
        if endpoint.provider_type == "anthropic":
            from holdfast.llm.anthropic import adapter  # noqa: PLC0415 - aiohttp is slow to import

            return adapter.AnthropicModel(endpoint, self.http, info)
        if endpoint.provider_type in _BRIDGED or self._wants_responses(endpoint, info):
            return self._bridged(endpoint, info)
        if endpoint.provider_type == "openai" and thinks_only_without_tools(info):
            _log.warning(_WILL_NOT_REASON, info.handle)
        from holdfast.llm.chat import adapter  # noqa: PLC0415 - aiohttp is slow to import

        return adapter.ChatModel(endpoint, self.http, info)

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _bridged(self, endpoint: Endpoint, info: ModelInfo) -> Model:
        if not _is_installed(_BRIDGED.get(endpoint.provider_type, "openai")):
            raise Unsupported(_needs_extra(endpoint))
        from holdfast.llm.bridge import adapter  # noqa: PLC0415 - optional and slow

        guard = self._guard if is_written_by_user(endpoint) else None
        return adapter.BridgedModel(endpoint, info, first_byte_s=self._first_byte_s, total_s=self._total_s, guard=guard)

    def _wants_responses(self, endpoint: Endpoint, info: ModelInfo) -> bool:
        """Reasoning models of OpenAI think on from call to call only through its newer interface."""
        if endpoint.provider_type != "openai" or self._openai_responses == "never":
            return False
        if self._openai_responses == "always":
            return True
        reasons = _REASONING_AT_OPENAI.match(plain_name(info.name)) is not None
        return reasons and is_official("openai", endpoint.base_url) and _is_installed("openai")


def missing(endpoint: Endpoint) -> str | None:
    """What must be installed before any model of this provider can be used, in a sentence."""
    library = _BRIDGED.get(endpoint.provider_type)
    return None if library is None or _is_installed(library) else _needs_extra(endpoint)


def _needs_extra(endpoint: Endpoint) -> str:
    return (
        f"Models of {endpoint.provider_name} need an extra that is not installed here: pip install 'holdfast[vendors]'"
    )


def _is_installed(library: str) -> bool:
    """pydantic-ai and, below it, the vendor's own library. Only looked for: importing takes a second."""
    outer = library.partition(".")[0]
    if find_spec("pydantic_ai") is None or find_spec(outer) is None:
        return False
    return outer == library or find_spec(library) is not None
