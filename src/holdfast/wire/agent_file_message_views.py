"""Messages in agent files as they are written. Returns and summaries stand there in the envelopes that a model is shown
them in: readers of these files know them so.

What the format has no place for, such as which rows came from one reply, stands in keys of its own, which other readers
ignore.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from holdfast import ids
from holdfast.core import model_history
from holdfast.core.messages import Approve, ClientReturn, Deny, Message, Summary, Thoughts, ToolCall, ToolReturn
from holdfast.core.model_history import are_one_reply
from holdfast.wire.agent_file_ids import LocalIds
from holdfast.wire.messages import stored_call, stored_decision, stored_part, stored_return
from holdfast.wire.times import timestamp


class MessageWriter:
    """Writes the rows of one agent under numbers that count through the whole file."""

    def __init__(self, timezone: str, agent: str, local: LocalIds) -> None:
        self._timezone = timezone
        self._agent = agent
        self._local = local
        self._steps: dict[str, str] = {}

    def written(self, rows: Sequence[Message]) -> list[dict[str, Any]]:
        paired = {row.step_id for before, row in pairwise(rows) if are_one_reply(before, row)}
        return [self._message(row, row.step_id if row.step_id in paired else None) for row in rows]

    def _message(self, row: Message, step_id: str | None) -> dict[str, Any]:
        returns = [self._returned(row, each) for each in row.returns]
        verdict = next((each for each in row.decisions if not isinstance(each, ClientReturn)), None)
        shown: dict[str, Any] = {
            "type": "message",
            "otid": row.otid,
            "group_id": self._named("group", row.group_id),
            "role": row.role,
            # Returns stand in it a second time, as text.
            "content": self._content(row)
            + [_text(each["func_response"]) for each in returns if isinstance(each["func_response"], str)],
            "name": row.name,
            "sender_id": self._named("agent", row.sender_id),
            "batch_item_id": row.batch_item_id,
            "id": self._local.of("message", row.id),
            "model": row.model,
            "agent_id": self._agent,
            "tool_calls": [_call(call) for call in row.calls] or None,
            "tool_call_id": row.returns[0].call_id if row.returns else None,
            "tool_returns": returns,
            "created_at": timestamp(row.created_us),
            "approve": None if verdict is None else isinstance(verdict, Approve),
            "approval_request_id": verdict and verdict.call_id,
            "denial_reason": verdict.reason if isinstance(verdict, Deny) else None,
            "approvals": [stored_decision(each) for each in row.decisions],
        }
        if step_id is not None:
            shown["step_id"] = self._steps.setdefault(step_id, f"step-{len(self._steps)}")
        for part in row.parts:
            if isinstance(part, Summary):
                shown |= {"compaction": msgspec.to_builtins(part.stats), "shown": part.shown}
        return shown

    def _named(self, prefix: str, id: str | None) -> str | None:
        """Whom a message is from may be told by a name that is no id of this server."""
        if id is None or not ids.is_id(prefix, id):
            return id
        return self._local.find(prefix, id)

    def _content(self, row: Message) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = []
        for part in row.parts:
            match part:
                case Summary(text, stats):
                    content.append(_text(model_history.summary_text(text, stats, row.created_us, self._timezone)))
                case Thoughts(text):
                    content.append({"type": "reasoning", "is_native": False, "reasoning": text, "signature": None})
                case _:
                    content += stored_part(part)
        return content

    def _returned(self, row: Message, given: ToolReturn) -> dict[str, Any]:
        shown = stored_return(given)
        if isinstance(given.content, str):
            packed = model_history.tool_return_text(given.content, given.status, row.created_us, self._timezone)
            shown["func_response"] = packed
        return shown


def _call(call: ToolCall) -> dict[str, Any]:
    return stored_call(call) | ({} if call.signature is None else {"signature": call.signature})


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "signature": None}
