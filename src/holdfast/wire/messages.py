"""One stored message, shown as none, one or several wire messages that share its id.

Every shown message has its own otid. It is the client's for what the client sent, the whole message id for a request
for approval, and otherwise derived from the message id and the place of the shown message within its row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    CompactionStats,
    Content,
    Decision,
    Deny,
    Image,
    Message,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Summary,
    Text,
    Thoughts,
    ToolCall,
    ToolReturn,
    content_text,
    text_of,
)
from holdfast.core.spec import Speaking, only_confirms_speech, spoken_text
from holdfast.wire.times import message_date, packed_time, timestamp

WireMessage = dict[str, Any]

_NEVER_LIVE: Final = frozenset({"system_message", "user_message", "approval_response_message"})
_COMPACTION: Final = frozenset({"summary_message", "event_message"})


def to_wire(
    message: Message,
    *,
    seq_id: int | None = None,
    is_err: bool | None = None,
    show_summaries: bool = False,
    speaking: Speaking | None = None,
) -> list[WireMessage]:
    """`show_summaries`: a summary that was asked for is a `summary_message`, not the `user_message` a model reads.

    `speaking`: calls of this tool are shown as what the agent says.
    """
    if show_summaries and _wants_showing(message):
        shown = _show_summary(message)
    else:
        shown = _SHOWN_AS[message.role](message, speaking)
    return [
        envelope(
            part.pop("message_type"),
            message.id,
            message.created_us,
            otid=part.pop("otid", None) or _otid(message, index),
            step_id=message.step_id,
            run_id=message.run_id,
            name=message.name,
            sender_id=message.sender_id,
            is_err=is_err,
            seq_id=seq_id,
        )
        | part
        for index, part in enumerate(shown)
    ]


def to_live(
    message: Message,
    *,
    include: Collection[str] | None,
    include_compaction: bool,
    seq_id: int | None = None,
    index: int | None = None,
    speaking: Speaking | None = None,
) -> list[WireMessage]:
    """What the caller of a run is shown of a message: never its own input, and compaction only when asked for.

    `index`: only this one of the messages that the row becomes.
    """
    everything = to_wire(message, seq_id=seq_id, show_summaries=True, speaking=speaking)
    return [
        shown
        for shown in filter_types(everything if index is None else everything[index : index + 1], include)
        if shown["message_type"] not in _NEVER_LIVE and (include_compaction or shown["message_type"] not in _COMPACTION)
    ]


def messages_view(
    rows: Iterable[Message], speaking: Speaking | None, include: Collection[str] | None = None
) -> list[WireMessage]:
    """A list of stored messages, each of which may show as several. `include`: as in `filter_types`."""
    return filter_types((wire for row in rows for wire in to_wire(row, speaking=speaking)), include)


def filter_types(messages: Iterable[WireMessage], include: Collection[str] | None) -> list[WireMessage]:
    """`None` means all types; an empty collection means none of them."""
    return [message for message in messages if include is None or message["message_type"] in include]


def envelope(
    message_type: str,
    id: str,
    at_us: int,
    *,
    otid: str | None = None,
    step_id: str | None = None,
    run_id: str | None = None,
    name: str | None = None,
    sender_id: str | None = None,
    is_err: bool | None = None,
    seq_id: int | None = None,
) -> WireMessage:
    return {
        "message_type": message_type,
        "id": id,
        "date": message_date(at_us),
        "name": name,
        "otid": otid,
        "sender_id": sender_id,
        "step_id": step_id,
        "is_err": is_err or None,  # the wire knows true and null only
        "seq_id": seq_id,
        "run_id": run_id,
    }


def wire_otid(message_id: str, index: int) -> str:
    # A row that shows more parts than otids can number is still shown; only its last otids repeat.
    return ids.part_otid(message_id, min(index, ids.MAX_PARTS - 1))


def _otid(message: Message, index: int) -> str:
    return message.otid if message.otid and index == 0 else wire_otid(message.id, index)


def _show_system(message: Message, _: Speaking | None) -> list[WireMessage]:
    return [{"message_type": "system_message", "content": text_of(message.parts)}]


def _show_user(message: Message, _: Speaking | None) -> list[WireMessage]:
    return [{"message_type": "user_message", "content": _user_content(message.parts)}]


def _user_content(parts: Sequence[AnyPart]) -> str | list[WireMessage]:
    shown = [part for part in parts if isinstance(part, (Text, Image))]
    if len(shown) == 1 and isinstance(shown[0], Text):
        return shown[0].text
    return [_part(part) for part in shown]


def _show_assistant(message: Message, speaking: Speaking | None) -> list[WireMessage]:
    shown = _spoken(message.parts)
    others: list[ToolCall] = []
    for call in message.calls:
        words = spoken_text(call, speaking)
        if words is None:
            others.append(call)
        else:
            shown.append({"message_type": "assistant_message", "content": words})
    if others:
        shown.append({"message_type": "tool_call_message", **_calls(others)})
    return shown


def _show_approval(message: Message, _: Speaking | None) -> list[WireMessage]:
    if not message.calls:
        return [_approval_response(message.decisions)]
    request = {"message_type": "approval_request_message", "otid": message.id, **_calls(message.calls)}
    return [*_spoken(message.parts), request]


def _show_tool(message: Message, speaking: Speaking | None) -> list[WireMessage]:
    """That words were said is not told as well; that they were not is."""
    told = [each for each in message.returns if not only_confirms_speech(each, speaking)]
    if not told:
        return []
    first = told[0]
    mirror = {**_tool_return(first), "tool_return": content_text(first.content)}
    del mirror["type"]
    returns = [_tool_return(each) for each in told]
    return [{"message_type": "tool_return_message", "name": first.name, **mirror, "tool_returns": returns}]


def _show_packed_summary(message: Message, _: Speaking | None) -> list[WireMessage]:
    return [{"message_type": "user_message", "content": packed_summary(message)}]


def _show_summary(message: Message) -> list[WireMessage]:
    stats = next((part.stats for part in message.parts if isinstance(part, Summary)), None)
    summary = {"message_type": "summary_message", "summary": text_of(message.parts)}
    return [summary | {"compaction_stats": _stats(stats)}]


def _wants_showing(message: Message) -> bool:
    return message.role == "summary" and any(part.shown for part in message.parts if isinstance(part, Summary))


_SHOWN_AS: Final[dict[str, Callable[[Message, Speaking | None], list[WireMessage]]]] = {
    "system": _show_system,
    "user": _show_user,
    "assistant": _show_assistant,
    "approval": _show_approval,
    "tool": _show_tool,
    "summary": _show_packed_summary,
}


def packed_summary(message: Message) -> str:
    """A summary as the JSON text that clients of listings know."""
    stats = next((part.stats for part in message.parts if isinstance(part, Summary)), None)
    packed: dict[str, Any] = {
        "type": "system_alert",
        "message": "Note: earlier messages are hidden from view because the context window is limited. "
        f"This is a summary of them:\n{text_of(message.parts)}",
        "time": packed_time(message.created_us),
    }
    if stats:
        packed["compaction_stats"] = _stats(stats)
    return msgspec.json.encode(packed).decode()


def _spoken(parts: Sequence[AnyPart]) -> list[WireMessage]:
    """Neighbouring texts are one message, and so are neighbouring reasonings: a vendor may cut them anywhere."""
    shown: list[WireMessage] = []
    for part in parts:
        last = shown[-1] if shown else None
        match part:
            case Text(text) if last and last["message_type"] == "assistant_message":
                last["content"] += text
            case Text(text):
                shown.append({"message_type": "assistant_message", "content": text})
            case Reasoning(text, signature) if last and last.get("source") == "reasoner_model":
                last["reasoning"] += text
                last["signature"] = signature or last["signature"]
            case Reasoning(text, signature):
                shown.append(_reasoning(text, signature))
            case Thoughts(text):
                shown.append(_reasoning(text, None, source="non_reasoner_model"))
            case RedactedReasoning(data):
                shown.append(hidden_reasoning("redacted", data))
            case OmittedReasoning():
                shown.append(hidden_reasoning("omitted", None))
            case _:
                continue
    return shown


def _reasoning(text: str, signature: str | None, source: str = "reasoner_model") -> WireMessage:
    return {
        "message_type": "reasoning_message",
        "source": source,
        "reasoning": text,
        "signature": signature,
    }


def hidden_reasoning(state: str, data: str | None) -> WireMessage:
    return {"message_type": "hidden_reasoning_message", "state": state, "hidden_reasoning": data}


def _calls(calls: Sequence[ToolCall]) -> WireMessage:
    shown = [{"name": call.name, "arguments": call.arguments, "tool_call_id": call.id} for call in calls]
    return {"tool_call": shown[0], "tool_calls": shown}


def _approval_response(decisions: Sequence[Decision]) -> WireMessage:
    spoken = next((each for each in decisions if not isinstance(each, ClientReturn)), None)
    return {
        "message_type": "approval_response_message",
        "approvals": [_decision(each) for each in decisions],
        "approve": None if spoken is None else isinstance(spoken, Approve),
        "approval_request_id": spoken and spoken.call_id,
        "reason": spoken and spoken.reason,
    }


def _decision(decision: Decision) -> WireMessage:
    if isinstance(decision, ClientReturn):
        return _tool_return(decision)
    approve = isinstance(decision, Approve)
    return {"type": "approval", "tool_call_id": decision.call_id, "approve": approve, "reason": decision.reason}


def _tool_return(given: ToolReturn | ClientReturn) -> WireMessage:
    return {
        "type": "tool",
        "tool_return": _content(given.content),
        "status": given.status,
        "tool_call_id": given.call_id,
        "stdout": _lines(given.stdout),
        "stderr": _lines(given.stderr),
    }


def _lines(lines: tuple[str, ...] | None) -> list[str] | None:
    return None if lines is None else list(lines)


def _content(content: Content) -> str | list[WireMessage]:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Text | Image) -> WireMessage:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text, "signature": part.signature}
    source = {"type": "base64", "media_type": part.media_type, "data": part.data, "detail": part.detail}
    return {"type": "image", "source": source}


def _stats(stats: CompactionStats | None) -> WireMessage | None:
    return None if stats is None else msgspec.to_builtins(stats)


def stored_view(message: Message, *, agent_id: str | None, conversation_id: str | None) -> WireMessage:
    """The row itself, by role: what a step lists under `messages`."""
    spoken = next((each for each in message.decisions if not isinstance(each, ClientReturn)), None)
    return {
        "id": message.id,
        "role": message.role,
        "agent_id": agent_id,
        "model": message.model,
        "content": _stored_content(message),
        "name": message.name,
        "tool_calls": [stored_call(call) for call in message.calls] or None,
        "tool_call_id": message.returns[0].call_id if message.returns else None,
        "tool_returns": [stored_return(each) for each in message.returns] or None,
        "approvals": [stored_decision(each) for each in message.decisions] or None,
        "approve": None if spoken is None else isinstance(spoken, Approve),
        "approval_request_id": spoken and spoken.call_id,
        "denial_reason": spoken.reason if isinstance(spoken, Deny) else None,
        "step_id": message.step_id,
        "run_id": message.run_id,
        "otid": message.otid,
        "group_id": message.group_id,
        "sender_id": message.sender_id,
        "batch_item_id": message.batch_item_id,
        "conversation_id": conversation_id,
        "is_err": None,
        "created_at": timestamp(message.created_us),
        "updated_at": None,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": None,
    }


def _stored_content(message: Message) -> list[WireMessage]:
    content: list[WireMessage] = []
    for part in message.parts:
        match part:
            case Thoughts(text):
                content.append(_part(Text(text)))
            case Summary():
                content.append(_part(Text(packed_summary(message))))
            case _:
                content += stored_part(part)
    return content


def stored_part(part: AnyPart) -> list[WireMessage]:
    """None of a call, a return or a decision, which have fields of their own."""
    match part:
        case Text() | Image():
            return [_part(part)]
        case Reasoning(text, signature):
            return [{"type": "reasoning", "is_native": True, "reasoning": text, "signature": signature}]
        case RedactedReasoning(data):
            return [{"type": "redacted_reasoning", "data": data}]
        case OmittedReasoning(signature):
            return [{"type": "omitted_reasoning", "signature": signature}]
        case _:
            return []


def stored_call(call: ToolCall) -> WireMessage:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def stored_return(given: ToolReturn | ClientReturn) -> WireMessage:
    shown = _tool_return(given)
    del shown["type"]
    return {"func_response": shown.pop("tool_return"), **shown}


def stored_decision(decision: Decision) -> WireMessage:
    return stored_return(decision) if isinstance(decision, ClientReturn) else _decision(decision)
