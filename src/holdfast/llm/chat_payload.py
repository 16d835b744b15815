"""A request in the shape of the chat completions API, which most vendors understand."""

from __future__ import annotations

from typing import Any

from holdfast.core.messages import Image, Text, ToolCall, ToolReturn, Turn, content_text, text_of
from holdfast.llm.base import ModelRequest, NamedTool, ToolChoice


def chat_payload(request: ModelRequest) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "model": request.handle.partition("/")[2],
        "messages": [
            {"role": "system", "content": request.system},
            *(message for turn in request.turns for message in _messages(turn)),
        ],
    }
    if request.tools:
        payload["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in request.tools
        ]
        payload["tool_choice"] = _tool_choice(request.tool_choice)
        payload["parallel_tool_calls"] = request.parallel_tool_calls
    optional = {
        "temperature": request.temperature,
        "max_completion_tokens": request.max_output_tokens,
        "response_format": request.response_format,
        "user": request.user,
    }
    return payload | {name: value for name, value in optional.items() if value is not None}


def _messages(turn: Turn) -> list[dict[str, Any]]:
    match turn.role:
        case "user":
            return [{"role": "user", "content": _user_content(turn)}]
        case "assistant":
            return [_assistant(turn)]
        case "tool":
            return [
                {"role": "tool", "tool_call_id": part.call_id, "content": content_text(part.content)}
                for part in turn.parts
                if isinstance(part, ToolReturn)
            ]


def _user_content(turn: Turn) -> str | list[dict[str, Any]]:
    if len(turn.parts) == 1 and isinstance(turn.parts[0], Text):
        return turn.parts[0].text
    content: list[dict[str, Any]] = []
    for part in turn.parts:
        if isinstance(part, Text):
            content.append({"type": "text", "text": part.text})
        elif isinstance(part, Image):
            shown: dict[str, Any] = {"url": f"data:{part.media_type};base64,{part.data}"}
            if part.detail is not None:
                shown["detail"] = part.detail
            content.append({"type": "image_url", "image_url": shown})
    return content


def _assistant(turn: Turn) -> dict[str, Any]:
    calls = [
        {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}
        for part in turn.parts
        if isinstance(part, ToolCall)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text_of(turn.parts) or None}
    return message | {"tool_calls": calls} if calls else message


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedTool) else choice
