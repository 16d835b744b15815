"""Turns as Anthropic's messages: two roles that alternate, made of blocks.

What a tool returned is said by the user, before anything else the user says. Reasoning goes back only as it came, with
its signature; without one it is not the vendor's, or was cut off, and stays here.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypedDict
from zlib import crc32

from holdfast.core.context import EMPTY_MESSAGE
from holdfast.core.messages import (
    AnyPart,
    Content,
    Image,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
    content_text,
)
from holdfast.llm.tool_calls import sent_name, sent_object

Block = dict[str, Any]


class Message(TypedDict):
    role: str
    content: list[Block]


NO_OUTPUT: Final = "[no output]"
_THINKING: Final = ("thinking", "redacted_thinking")
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NOT_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")


def messages_of(turns: tuple[Turn, ...], *, with_thinking: bool, with_images: bool) -> list[Message]:
    messages: list[Message] = []
    for turn in turns:
        role = "assistant" if turn.role == "assistant" else "user"
        if len(turn.parts) == 1 and isinstance(only := turn.parts[0], Text) and only.text.strip():
            blocks = [text(only.text)]
        elif turn.role == "assistant":
            blocks = _assistant(turn, with_thinking)
        elif turn.role == "tool":
            blocks = [_result(part, with_images) for part in turn.parts if isinstance(part, ToolReturn)]
        else:
            blocks = _content_blocks(turn.parts, with_images) or [text(EMPTY_MESSAGE)]
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return messages or [{"role": "user", "content": [text(EMPTY_MESSAGE)]}]


def text(content: str) -> Block:
    return {"type": "text", "text": content}


def is_thinking(block: Block) -> bool:
    return block["type"] in _THINKING


def put_thinking_first(messages: list[Message]) -> None:
    """For models with a budget, which want it there. Where several replies became one turn it may stand elsewhere."""
    for message in messages:
        blocks = message["content"]
        if message["role"] == "assistant" and not is_thinking(blocks[0]):
            blocks.sort(key=lambda block: not is_thinking(block))


def thinks_in_this_turn(messages: list[Message]) -> bool:
    """Whether the calls that are being answered now began with thinking; a model with a budget insists on it.

    They may have been made by another model, or by this one before it was told to think.
    """
    for index in range(len(messages) - 2, 0, -2):
        called, before = messages[index]["content"], messages[index - 1]["content"]
        if not any(block["type"] == "tool_use" for block in called):
            return True
        answers = [block["type"] == "tool_result" for block in before]
        if not all(answers) and not is_thinking(called[0]):
            return False
        if not any(answers):
            return True
    return True


def call_names(turns: tuple[Turn, ...]) -> list[str]:
    found = [part.name for turn in turns for part in turn.parts if isinstance(part, ToolCall)]
    return list(dict.fromkeys(found))


def clean_id(call_id: str) -> str:
    """The same for a call and its return, and different for different ids, without remembering any."""
    if _ID.fullmatch(call_id):
        return call_id
    return f"{_NOT_ID.sub('_', call_id)}_{crc32(call_id.encode()):08x}"


def _assistant(turn: Turn, with_thinking: bool) -> list[Block]:
    blocks = [block for part in turn.parts if (block := _reply_block(part)) is not None]
    if not with_thinking:
        blocks = [block for block in blocks if not is_thinking(block)]
    # Thinking that led to nothing is refused as the end of a message.
    while blocks and is_thinking(blocks[-1]):
        blocks.pop()
    return blocks


def _reply_block(part: AnyPart) -> Block | None:
    match part:
        case Text() if part.text.strip():
            return text(part.text)
        case ToolCall():
            shown = sent_object(part.arguments)
            return {"type": "tool_use", "id": clean_id(part.id), "name": sent_name(part.name), "input": shown}
        case Reasoning(thought, signature) if signature:
            return {"type": "thinking", "thinking": thought, "signature": signature}
        case OmittedReasoning(signature) if signature:
            return {"type": "thinking", "thinking": "", "signature": signature}
        case RedactedReasoning(data):
            return {"type": "redacted_thinking", "data": data}
        case _:
            return None


def _content_blocks(parts: tuple[AnyPart, ...], with_images: bool) -> list[Block]:
    blocks: list[Block] = []
    for part in parts:
        if isinstance(part, Text):
            if part.text.strip():
                blocks.append(text(part.text))
        elif isinstance(part, Image):
            blocks.append(_image(part) if with_images else text("[Image omitted]"))
    return blocks


def _image(part: Image) -> Block:
    if part.media_type not in _IMAGES:
        return text(f"[Image omitted: {part.media_type} cannot be shown to this model]")
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}


def _result(part: ToolReturn, with_images: bool) -> Block:
    result: Block = {"type": "tool_result", "tool_use_id": clean_id(part.call_id)}
    if part.status == "error":
        # An error is text, and never empty: the vendor refuses anything else.
        return result | {"content": _text_only(part.content), "is_error": True}
    if isinstance(part.content, str):
        return result | {"content": part.content} if part.content.strip() else result
    blocks = _content_blocks(part.content, with_images)
    return result | {"content": blocks} if blocks else result


def _text_only(content: Content) -> str:
    output = content_text(content)
    return output if output.strip() else NO_OUTPUT
