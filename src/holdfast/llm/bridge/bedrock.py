"""Models at Amazon Bedrock. Its SDK has a line of its own, which cannot be listened to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider

from holdfast.llm.base import ModelInfo
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.endpoint import Endpoint


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    provider = BedrockProvider(
        aws_access_key_id=endpoint.options.get("access_key"),
        aws_secret_access_key=endpoint.api_key,
        aws_session_token=endpoint.options.get("session_token"),
        region_name=endpoint.options.get("region"),
        base_url=endpoint.base_url,
        aws_read_timeout=client.timeout.read,
        aws_connect_timeout=client.timeout.connect,
    )
    model = BedrockConverseModel(info.name, provider=provider)
    return Vendor(
        model=model,
        settings=lambda request: common_settings(request, parallel=False),
        wants=_anything,
        bare="signature",
        redacts=True,
        marks_errors=True,
    )


def _anything(event: Mapping[str, Any]) -> bool:
    return True
