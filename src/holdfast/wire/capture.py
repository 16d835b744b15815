"""A turn that a program had with a model of its own, and sends here to be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.wire.bounds import MAX_ITEMS, Many, Name

_TEXTS = frozenset({"text", "input_text", "output_text"})  # as the APIs of vendors call a part that is text


class CapturedPart(BaseModel):
    """As the vendor has it. What is no text is not kept."""

    type: Name = "text"
    text: str | None = None


CapturedContent = str | Many[CapturedPart] | None


class CapturedMessage(BaseModel):
    role: Name
    content: CapturedContent = None


class CapturedAnswer(BaseModel):
    content: CapturedContent = None


class CaptureRequest(BaseModel):
    provider: Name
    model: Name
    request_messages: Annotated[list[CapturedMessage], Field(max_length=MAX_ITEMS, fail_fast=True)]
    response_dict: CapturedAnswer

    @property
    def handle(self) -> str:
        """Of the model that answered, as handles of models are written here."""
        return f"{self.provider}/{self.model}"

    def asked(self) -> Iterator[str]:
        """The texts of the user. What else the model was sent is its instructions, or earlier turns."""
        for message in self.request_messages:
            if message.role == "user" and (text := _text(message.content)):
                yield text

    def answered(self) -> str:
        """Empty when the model said nothing, but called tools."""
        return _text(self.response_dict.content)


class CaptureAnswer(TypedDict):
    success: bool
    messages_created: int
    run_ids: list[str]


def capture_view(created: int, run_ids: tuple[str, ...]) -> CaptureAnswer:
    return {"success": True, "messages_created": created, "run_ids": list(run_ids)}


def _text(content: CapturedContent) -> str:
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        text = "\n".join(part.text for part in content if part.type in _TEXTS and part.text)
    return text if text.strip() else ""
