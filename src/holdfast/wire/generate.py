"""One answer of an agent's model, without the agent: what is asked, and what is answered."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, StringConstraints
from typing_extensions import TypedDict

from holdfast.core.usage import Usage
from holdfast.wire.bounds import Handle, JsonObject
from holdfast.wire.message_shapes import UsageStatistics
from holdfast.wire.responses import usage_statistics


class GenerateRequest(BaseModel):
    prompt: Annotated[str, StringConstraints(pattern=r"\S")]
    system_prompt: str | None = None
    override_model: Handle | None = None
    response_schema: JsonObject | None = None


class GenerateResponse(TypedDict):
    content: str
    model: str
    usage: UsageStatistics


def generate_view(content: str, model: str, usage: Usage) -> dict[str, object]:
    return {"content": content, "model": model, "usage": usage_statistics(usage, step_count=1)}
