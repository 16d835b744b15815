"""What the vendor of the bench says, in the words of each protocol, cut into the packets it sends."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec


class Words(NamedTuple):
    """`path`: where it is asked. `call`: a whole reply that calls the tool of the bench."""

    path: str
    opening: bytes
    token: bytes
    ending: bytes
    call: bytes


def _packet(*events: bytes) -> bytes:
    body = b"".join(events)
    return b"%x\r\n%b\r\n" % (len(body), body)


def _data(said: Any) -> bytes:
    return b"data: " + (said if isinstance(said, bytes) else msgspec.json.encode(said)) + b"\n\n"


def _named(said: dict[str, Any]) -> bytes:
    return b"event: " + said["type"].encode() + b"\n" + _data(said)


_LAST = b"0\r\n\r\n"
_ARGUMENTS = '{"text": "hi"}'


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _data({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": [choice]})


_CHAT_USAGE = _data({"id": "c", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 10}})
_CHAT_CALL = {"index": 0, "id": "call_1", "function": {"name": "bench_echo", "arguments": _ARGUMENTS}}
CHAT = Words(
    path="/chat/completions",
    opening=b"",
    token=_packet(_chunk({"content": " token"})),
    ending=_packet(_chunk({}, "stop"), _CHAT_USAGE, _data(b"[DONE]")) + _LAST,
    call=_packet(_chunk({"tool_calls": [_CHAT_CALL]}), _chunk({}, "tool_calls"), _CHAT_USAGE, _data(b"[DONE]")) + _LAST,
)


def _delta(delta: dict[str, Any]) -> bytes:
    return _named({"type": "content_block_delta", "index": 0, "delta": delta})


def _block(block: dict[str, Any]) -> bytes:
    return _named({"type": "content_block_start", "index": 0, "content_block": block})


def _stop(reason: str) -> bytes:
    return (
        _named({"type": "content_block_stop", "index": 0})
        + _named({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 10}})
        + _named({"type": "message_stop"})
    )


_MESSAGE = _named(
    {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 10}}}
)
ANTHROPIC = Words(
    path="/messages",
    opening=_packet(_MESSAGE, _block({"type": "text", "text": ""})),
    token=_packet(_delta({"type": "text_delta", "text": " token"})),
    ending=_packet(_stop("end_turn")) + _LAST,
    call=_packet(
        _MESSAGE,
        _block({"type": "tool_use", "id": "call_1", "name": "bench_echo", "input": {}}),
        _delta({"type": "input_json_delta", "partial_json": _ARGUMENTS}),
        _stop("tool_use"),
    )
    + _LAST,
)
