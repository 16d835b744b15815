"""Models at Amazon Bedrock. Its SDK signs and understands; what it would send goes through our HTTP client."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import takewhile
from typing import Any, Final, cast

import boto3
import httpx2
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider
from pydantic_ai.settings import ModelSettings

from holdfast.core.messages import Reasoning, RedactedReasoning
from holdfast.errors import AuthRejected, Refused
from holdfast.llm.anthropic.traits import DEFAULT_BUDGET, LEAST_BUDGET, Traits, traits_of
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.bridge.bedrock_stream import Carrier, SignedTap
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.endpoint import Endpoint

# A provider brings its keys and its region; the profiles of whoever runs the server have no part in it.
_NOBODYS: Final = {"profile": (None, None, None, None)}
_EVENTS: Final = frozenset(
    {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    model = BedrockConverseModel(info.name, provider=BedrockProvider(bedrock_client=_sdk(endpoint, client)))
    return Vendor(
        model=model,
        settings=lambda request: _settings(request, traits_of(info.name)),
        wants=_is_event,
        tap=SignedTap,
        errors={BotoCoreError: Refused},
        bare="signature",
        redacts=True,
        marks_errors=True,
        fails_in_words=True,
        takes_blanks=False,
        prefills=False,
        knows_called=False,
    )


def _sdk(endpoint: Endpoint, client: httpx2.AsyncClient) -> Any:
    if not (endpoint.options.get("access_key") and endpoint.api_key):
        # Without keys the SDK would look for the server's own, wherever they may be.
        raise AuthRejected(f"{endpoint.provider_name} needs the id of an AWS key and its secret.")
    core: Any = Session(_NOBODYS)
    core.register_component("data_loader", _descriptions())
    session = boto3.Session(
        botocore_session=core,
        aws_access_key_id=endpoint.options.get("access_key"),
        aws_secret_access_key=endpoint.api_key,
        aws_session_token=endpoint.options.get("session_token"),
        region_name=endpoint.options.get("region"),
    )
    # The signature is named because a token in the server's environment would else be shown instead of these keys.
    config = Config(signature_version="v4", retries={"total_max_attempts": 1, "mode": "standard"})
    sdk = cast("Any", session).client("bedrock-runtime", config=config, endpoint_url=endpoint.base_url)
    sdk.meta.events.register("before-send.bedrock-runtime", Carrier(client))
    return sdk


@cache
def _descriptions() -> Any:
    """What the SDK knows of Amazon's services: the same for everyone, and slow to read."""
    core: Any = Session(_NOBODYS)
    return core.get_component("data_loader")


def _settings(request: ModelRequest, traits: Traits) -> ModelSettings:
    settings: dict[str, Any] = {**common_settings(request, parallel=False)}
    wanted = _thinking(request, traits) if _may_think(request) else None
    if wanted is not None:
        settings["bedrock_additional_model_requests_fields"] = {"thinking": wanted}
    if wanted is not None or not traits.sampling:
        settings.pop("temperature", None)  # refused while it thinks, and by newer models always
    return cast("ModelSettings", settings)


def _thinking(request: ModelRequest, traits: Traits) -> dict[str, Any] | None:
    """None: not asked for, or no room for it in the longest reply that is asked for."""
    thinking: dict[str, Any] = request.settings.get("thinking") or {}
    if thinking.get("type") != "enabled":
        return None
    budget = thinking.get("budget_tokens") or 0
    if traits.adaptive and not (budget and traits.budgets):
        return {"type": "adaptive"}
    budget = max(LEAST_BUDGET, budget or DEFAULT_BUDGET)
    if request.max_output_tokens is not None:
        budget = min(budget, request.max_output_tokens - 1)
    return {"type": "enabled", "budget_tokens": budget} if budget >= LEAST_BUDGET else None


def _may_think(request: ModelRequest) -> bool:
    """Claude refuses to while a tool is demanded, and in the rest of a turn whose calls it made without."""
    if request.tools and request.tool_choice not in ("auto", "none"):
        return False
    current = takewhile(lambda turn: turn.role != "user", reversed(request.turns))
    replies = [turn for turn in current if turn.role == "assistant"]
    return all(any(isinstance(part, Reasoning | RedactedReasoning) for part in turn.parts) for turn in replies)


def _is_event(event: Mapping[str, Any]) -> bool:
    return event.get("type") in _EVENTS
