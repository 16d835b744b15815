"""The one seam to a model: a request goes out, deltas come in. Blocking callers collect the same stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from holdfast.core.context import estimate_context, size_of_turns
from holdfast.core.deltas import Delta
from holdfast.core.messages import Turn
from holdfast.core.usage import Price as Price  # adapters and catalogs find it beside ModelInfo
from holdfast.llm.endpoint import Endpoint

# What a user says to a model that would else have the last word, where the vendor refuses that.
CONTINUE: Final = "[Continue.]"


class ToolSchema(msgspec.Struct, frozen=True):
    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of the arguments object


class NamedTool(msgspec.Struct, frozen=True):
    name: str


ToolChoice = Literal["auto", "required", "none"] | NamedTool


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a vendor needs. `turns` never contains the system prompt and is always well-formed."""

    handle: str  # "provider/model"
    system: str
    turns: tuple[Turn, ...]
    turns_size: int | None = None  # bytes of `turns`, where whoever built them knows it
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = False
    context_window: int = 128_000
    max_output_tokens: int | None = None
    temperature: float | None = None
    response_format: dict[str, Any] | None = None
    settings: dict[str, Any] = {}  # the agent's model_settings, for what is peculiar to one vendor
    user: str | None = None  # the agent id, for vendors that want one

    def estimated_tokens(self) -> int:
        size = size_of_turns(self.turns) if self.turns_size is None else self.turns_size
        return estimate_context(self.system, size, self.tools)


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can do beyond text. Unknown models are taken to be able: the vendor says no soon enough."""

    tools: bool = True
    images: bool = True
    reasoning: bool = False
    strict_tools: bool = False


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    name: str  # as the vendor spells it
    provider_name: str
    provider_type: str
    context_window: int
    endpoint: str | None = None
    max_output_tokens: int | None = None
    provider_category: Literal["base", "byok"] = "base"
    abilities: Abilities = Abilities()
    price: Price | None = None


class ProviderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How it went when a provider was last asked for its models. `unlistable` ones are used without being asked."""

    name: str
    provider_type: str
    category: Literal["base", "byok"]
    endpoint: str
    status: Literal["ok", "failed", "not_asked", "unlistable"]
    since_us: int | None = None  # since when it has been so
    problem: str | None = None
    models: int = 0


class Model(Protocol):
    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        """Raises a ModelError. Closing the generator, or cancelling its reader, closes the vendor's socket."""
        ...

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        """What would be sent, for previews and traces. No I/O."""
        ...


class Catalog(Protocol):
    """Which models there are. Unknown handles raise NotFound."""

    async def models(self) -> list[ModelInfo]:
        """Those that can call tools, by provider in a fixed order, then by name."""
        ...

    async def embedding_models(self) -> list[dict[str, Any]]: ...

    async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text. Raises a ModelError; NotFound or Unsupported when the model cannot be used here."""
        ...

    async def find(self, handle: str) -> ModelInfo: ...

    def open(self, info: ModelInfo) -> Model: ...

    async def providers(self) -> list[ProviderStatus]: ...

    def is_reserved(self, provider_name: str) -> bool:
        """Whether the name belongs to a provider of the environment, and so to nobody else."""
        ...

    async def reload(self) -> None:
        """Providers that users brought were changed by this process."""
        ...

    async def refresh(self, provider_name: str) -> None:
        """List its models anew. Raises a ModelError when that fails, and NotFound for an unknown name."""
        ...

    async def check(self, endpoint: Endpoint) -> None:
        """Raises a ModelError unless the provider is there and takes the key."""
        ...

    async def aclose(self) -> None: ...
