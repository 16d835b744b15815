"""A conversation with the offline model, turn by turn, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from holdfast.core import model_history
from holdfast.core.deltas import Delta, Reply, ReplyFolder
from holdfast.core.messages import Status, Text, ToolCall, ToolReturn, Turn
from holdfast.llm.base import ModelRequest, ToolSchema
from holdfast.llm.offline.model import OfflineModel


def tool(name: str, *, optional: Sequence[str] = (), **properties: str | dict[str, Any]) -> ToolSchema:
    """`tool("roll", sides="integer")`: each argument is a JSON type or a whole schema."""
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    required = [key for key in properties if key not in optional]
    return ToolSchema(name, f"Does {name}.", {"type": "object", "properties": schemas, "required": required})


SECRET = tool("get_secret_code_tool", input_text="string")
DICE = tool("roll_dice_tool", num_sides="integer")
PRINT = tool("print_tool", message="string")
BASH = tool("bash_tool", operation="string")
TOOLS = (SECRET, DICE, PRINT, BASH)


def request(
    *turns: Turn | str, tools: Sequence[ToolSchema] = TOOLS, parallel: bool = True, **more: Any
) -> ModelRequest:
    made = tuple(Turn("user", (Text(turn),)) if isinstance(turn, str) else turn for turn in turns)
    asked = ModelRequest(
        handle="holdfast/offline",
        system="Be kind.",
        turns=made,
        tools=tuple(tools),
        parallel_tool_calls=parallel,
    )
    return msgspec.structs.replace(asked, **more)


async def deltas_of(asked: ModelRequest, model: OfflineModel | None = None) -> list[Delta]:
    numbers = count(1)
    return [delta async for delta in (model or OfflineModel(lambda: f"call_{next(numbers)}")).stream(asked)]


async def reply_to(asked: ModelRequest, model: OfflineModel | None = None) -> Reply:
    folder = ReplyFolder()
    for delta in await deltas_of(asked, model):
        folder.add(delta)
    return folder.reply()


async def ask(*turns: Turn | str, **more: Any) -> Reply:
    return await reply_to(request(*turns, **more))


def calls_in(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.calls]


def said_in(reply: Reply) -> str:
    return "".join(part.text for part in reply.parts if isinstance(part, Text))


def called(*calls: ToolCall) -> Turn:
    return Turn("assistant", calls)


def results(*texts: str, name: str = "print_tool", status: Status = "success") -> Turn:
    wrapped = (model_history.tool_return_text(text, status, 0, "UTC") for text in texts)
    return Turn("tool", tuple(ToolReturn(f"c{index}", name, status, text) for index, text in enumerate(wrapped)))
