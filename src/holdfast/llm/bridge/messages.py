"""Turns out: our history and tools as pydantic-ai's messages and parameters."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as LibraryRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from holdfast.core.context import EMPTY_MESSAGE
from holdfast.core.messages import (
    AnyPart,
    Image,
    OmittedReasoning,
    Parts,
    Reasoning,
    RedactedReasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
    content_text,
)
from holdfast.llm.anthropic.turns import NO_OUTPUT, call_names
from holdfast.llm.base import CONTINUE, ModelRequest, ToolSchema
from holdfast.llm.bridge import signatures
from holdfast.llm.bridge.signatures import Proof
from holdfast.llm.bridge.vendor import Vendor
from holdfast.llm.chat.payload import IMAGE_OF, IMAGE_OMITTED, IMAGES_FOLLOW
from holdfast.llm.json_prompt import json_in_words, schema_in
from holdfast.llm.tool_calls import sent_name, sent_text

# Between the summaries of one piece of reasoning, which we hold as one text.
BETWEEN_SUMMARIES: Final = "\n\n"
# The ids by which pydantic-ai knows such reasoning; the first is understood for every vendor.
REDACTED: Final = ("redacted_thinking", "redacted_content")


def parameters(request: ModelRequest, vendor: Vendor) -> ModelRequestParameters:
    # Left open, a tool is strict only where that changes nothing of its schema.
    strict = None if request.settings.get("strict") else False
    wanted = request.response_format or {}
    able = _is_able(wanted, request, vendor)
    system = "\n\n".join(filter(None, (request.system, _in_words(wanted, able))))
    return ModelRequestParameters(
        function_tools=[_tool(tool, strict) for tool in request.tools],
        instruction_parts=[InstructionPart(content=system)] if system else None,
        **_output(wanted if able else {}),
    )


def messages(request: ModelRequest, vendor: Vendor) -> list[ModelMessage]:
    made: list[ModelMessage] = []
    waiting: list[ModelRequestPart] = []
    for turn in request.turns:
        if turn.role != "assistant":
            waiting += _request_parts(turn, vendor)
        elif reply := _ReplyParts(vendor, own=turn.model == request.handle).parts(turn.parts):
            made += [LibraryRequest(parts=waiting), ModelResponse(parts=reply, provider_name=vendor.system)]
            waiting = []
    if not waiting and not vendor.prefills:
        waiting = [UserPromptPart(content=CONTINUE)]
    if waiting:
        made.append(LibraryRequest(parts=waiting))
    return made


def with_called_tools(request: ModelRequest, vendor: Vendor) -> ModelRequest:
    """A vendor that refuses calls of tools it is not offered is offered them, and told to call none."""
    if vendor.knows_called or request.tools or not (names := call_names(request.turns)):
        return request
    tools = tuple(ToolSchema(name, "No longer available.", {"type": "object", "properties": {}}) for name in names)
    return msgspec.structs.replace(request, tools=tools, tool_choice="none")


def _tool(tool: ToolSchema, strict: bool | None) -> ToolDefinition:
    return ToolDefinition(
        name=sent_name(tool.name), description=tool.description, parameters_json_schema=tool.parameters, strict=strict
    )


def _is_able(response_format: dict[str, Any], request: ModelRequest, vendor: Vendor) -> bool:
    """Whether the library can hold the model to it."""
    if request.tools and not vendor.shapes_with_tools:
        return False
    is_schema = response_format.get("type") == "json_schema"
    return bool(vendor.model.profile.get("supports_json_schema_output" if is_schema else "supports_json_object_output"))


def _in_words(response_format: dict[str, Any], able: bool) -> str:
    """For models that cannot be held to it. OpenAI insists on the word JSON even where it has an option for it."""
    return "" if able and response_format.get("type") == "json_schema" else json_in_words(response_format)


def _output(response_format: dict[str, Any]) -> dict[str, Any]:
    match response_format.get("type"):
        case "json_schema":
            wanted: dict[str, Any] = response_format.get("json_schema") or {}
            shape = OutputObjectDefinition(
                json_schema=schema_in(response_format),
                name=wanted.get("name"),
                description=wanted.get("description"),
                strict=wanted.get("strict"),
            )
            return {"output_mode": "native", "output_object": shape}
        case "json_object":
            return {"output_mode": "prompted", "prompted_output_template": False}
        case _:
            return {}


def _request_parts(turn: Turn, vendor: Vendor) -> Iterator[ModelRequestPart]:
    if turn.role == "user":
        yield UserPromptPart(content=_content(turn.parts, vendor) or EMPTY_MESSAGE)
        return
    apart: list[UserContent] = []
    for part in turn.parts:
        if not isinstance(part, ToolReturn):
            continue
        call_id, content = vendor.sent_id(part.call_id), _returned(part, vendor)
        images = [] if isinstance(content, str) else [one for one in content if isinstance(one, BinaryContent)]
        if images and not vendor.returns_images:
            apart += [f"{IMAGE_OF}{call_id}:", *images]
            content = "\n".join([*(one for one in content if isinstance(one, str)), IMAGES_FOLLOW])
        # Text comes in an envelope that says whether it is an error; images do not.
        failed = part.status == "error" and (vendor.marks_errors or not isinstance(part.content, str))
        if not vendor.takes_blanks:
            content = content or NO_OUTPUT
        yield ToolReturnPart(
            sent_name(part.name), content, tool_call_id=call_id, outcome="failed" if failed else "success"
        )
    if apart:
        yield UserPromptPart(content=apart)


def _returned(part: ToolReturn, vendor: Vendor) -> str | list[UserContent]:
    if isinstance(part.content, str) or (part.status == "error" and vendor.fails_in_words):
        return _content((Text(content_text(part.content)),), vendor)
    return _content(part.content, vendor)


def _content(parts: tuple[AnyPart, ...], vendor: Vendor) -> str | list[UserContent]:
    content: list[UserContent] = []
    for part in parts:
        if isinstance(part, Text):
            if vendor.takes_blanks or part.text.strip():
                content.append(part.text)
        elif isinstance(part, Image):
            content.append(_image(part) if vendor.sees else IMAGE_OMITTED)
    return content[0] if len(content) == 1 and isinstance(content[0], str) else content


def _image(part: Image) -> BinaryContent:
    detail = {"detail": part.detail} if part.detail is not None else None
    return BinaryContent(base64.b64decode(part.data), media_type=part.media_type, vendor_metadata=detail)


class _ReplyParts:
    """An assistant's turn. Only a turn of the very model that is asked keeps its reasoning and its proofs."""

    def __init__(self, vendor: Vendor, *, own: bool) -> None:
        self._vendor = vendor
        self._own = own
        self._reasoned: set[str] = set()  # the ids of the reasoning that is sent

    def parts(self, parts: Parts) -> list[ModelResponsePart]:
        made: list[ModelResponsePart] = []
        for part in parts:
            match part:
                case Text() if part.text if self._vendor.takes_blanks else part.text.strip():
                    made.append(TextPart(part.text, **self._marks(self._proof(part.signature))))
                case Reasoning() | OmittedReasoning() | RedactedReasoning() if self._own:
                    made += self._thinking(part)
                case ToolCall():
                    self._place(made, part)
                case _:
                    pass
        while made and isinstance(made[-1], ThinkingPart):
            # A reply that was cut off there. Vendors refuse a thought that leads to nothing.
            made.pop()
        return made

    def _thinking(self, part: Reasoning | OmittedReasoning | RedactedReasoning) -> Iterator[ModelResponsePart]:
        """Reasoning without a proof is left out: a vendor would take it for something that was said."""
        system = self._vendor.system
        if isinstance(part, RedactedReasoning):
            if self._vendor.redacts:
                yield ThinkingPart("", id=REDACTED[0], signature=part.data, provider_name=system)
            return
        proof = self._proof(part.signature)
        if proof is None:
            return
        text = part.text if isinstance(part, Reasoning) else ""
        if not text and self._vendor.bare == "thought_signature":
            # Gemini signs empty parts; the library would drop one that is marked as a thought.
            yield TextPart("", provider_name=system, provider_details=dict(proof.details))
            return
        if proof.id is not None:
            self._reasoned.add(proof.id)
        for index, piece in enumerate(_summaries(text, proof.pieces)):
            mark = proof if index == 0 else Proof(proof.by, proof.id)
            yield ThinkingPart(piece, signature=mark.signature, **self._marks(mark))

    def _place(self, made: list[ModelResponsePart], call: ToolCall) -> None:
        """After the reasoning that led to it: we hold a turn's calls behind all that was said, vendors may not."""
        proof = self._proof(call.signature)
        part = ToolCallPart(
            sent_name(call.name), sent_text(call.arguments), self._vendor.sent_id(call.id), **self._marks(proof)
        )
        led_to = proof.after if proof is not None else None
        if led_to is None or led_to not in self._reasoned:
            made.append(part)
            return
        at = max(index for index, one in enumerate(made) if isinstance(one, ThinkingPart) and one.id == led_to) + 1
        while at < len(made) and not isinstance(made[at], ThinkingPart):
            at += 1
        made.insert(at, part)

    def _proof(self, signature: str | None) -> Proof | None:
        proof = signatures.read(signature, self._vendor.system, self._vendor.bare) if self._own else None
        if proof is not None and proof.after is not None and proof.after not in self._reasoned:
            # The vendor would look for the reasoning that the id belongs to, and refuse the request.
            return msgspec.structs.replace(proof, id=None)
        return proof

    def _marks(self, proof: Proof | None) -> dict[str, Any]:
        if proof is None:
            return {}
        details = dict(proof.details) or None
        marked = proof.id is not None or proof.signature is not None or details is not None
        return {"id": proof.id, "provider_name": proof.by if marked else None, "provider_details": details}


def _summaries(text: str, lengths: tuple[int, ...]) -> list[str]:
    if sum(lengths) + len(BETWEEN_SUMMARIES) * (len(lengths) - 1) != len(text):
        return [text]
    pieces, start = list[str](), 0
    for length in lengths:
        pieces.append(text[start : start + length])
        start += length + len(BETWEEN_SUMMARIES)
    return pieces
