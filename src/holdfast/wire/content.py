"""Content parts as clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from holdfast.wire.bounds import JsonObject, Many, Name


class TextContent(BaseModel):
    type: Literal["text"] = "text"
    text: str
    signature: str | None = None


class UrlImage(BaseModel):
    type: Literal["url"] = "url"
    url: str


class Base64Image(BaseModel):
    type: Literal["base64"] = "base64"
    media_type: str = Field(max_length=256)
    data: str
    detail: Name | None = None


class LettaImage(BaseModel):
    type: Literal["letta"] = "letta"
    file_id: str
    media_type: Name | None = None
    data: str | None = None
    detail: Name | None = None


class ImageContent(BaseModel):
    type: Literal["image"] = "image"
    source: Annotated[UrlImage | Base64Image | LettaImage, Field(discriminator="type")]


class ToolCallContent(BaseModel):
    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: JsonObject
    signature: str | None = None


class ToolReturnContent(BaseModel):
    type: Literal["tool_return"] = "tool_return"
    tool_call_id: str
    content: str
    is_error: bool


class ReasoningContent(BaseModel):
    type: Literal["reasoning"] = "reasoning"
    is_native: bool
    reasoning: str
    signature: str | None = None


class RedactedReasoningContent(BaseModel):
    type: Literal["redacted_reasoning"] = "redacted_reasoning"
    data: str


class OmittedReasoningContent(BaseModel):
    type: Literal["omitted_reasoning"] = "omitted_reasoning"
    signature: str | None = None


class SummarizedReasoningPart(BaseModel):
    index: int
    text: str


class SummarizedReasoningContent(BaseModel):
    type: Literal["summarized_reasoning"] = "summarized_reasoning"
    id: str
    summary: Many[SummarizedReasoningPart]
    encrypted_content: str | None = None


AnyContent = Annotated[
    TextContent
    | ImageContent
    | ToolCallContent
    | ToolReturnContent
    | ReasoningContent
    | RedactedReasoningContent
    | OmittedReasoningContent
    | SummarizedReasoningContent,
    Field(discriminator="type"),
]
ReturnContent = Annotated[TextContent | ImageContent, Field(discriminator="type")]
