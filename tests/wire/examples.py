"""Values that the tests of this folder share, and the two judges of what we send: our shapes and the SDK's models."""

from __future__ import annotations

import json
from typing import Any, TypeVar, cast, get_args

from letta_client._models import validate_type
from letta_client.types.agents import Message as SdkMessage
from letta_client.types.agents.letta_streaming_response import LettaStreamingResponse
from pydantic import TypeAdapter

from holdfast.core.messages import AnyPart, Message, Role
from holdfast.wire import message_shapes

T = TypeVar("T")

UUID = "1b0e7c21-5d0c-4f40-8a3b-6c1d2e3f4a80"
MESSAGE = f"message-{UUID}"
RUN = "run-10cd5a6b-3c2d-4e1f-9a8b-7c6d5e4f3a00"
STEP = "step-33aa5a6b-3c2d-4e1f-9a8b-7c6d5e4f3a00"
AGENT = "agent-55ee5a6b-3c2d-4e1f-9a8b-7c6d5e4f3a00"
CONVERSATION = "conv-66ff5a6b-3c2d-4e1f-9a8b-7c6d5e4f3a00"
AT_US = 1_772_357_400_250_000
DATE = "2026-03-01T09:30:00+00:00"

_event = TypeAdapter[Any](message_shapes.StreamEvent)
_shapes: dict[str, Any] = {
    get_args(shape.__annotations__["message_type"])[0]: shape
    for shape in get_args(get_args(message_shapes.StreamEvent)[0])
}


def otid(index: int) -> str:
    return f"{UUID[:-2]}{0x80 | index:02x}"


def row(role: Role, *parts: AnyPart, **fields: Any) -> Message:
    given: dict[str, Any] = {"id": MESSAGE, "created_us": AT_US, "run_id": RUN, "step_id": STEP} | fields
    return Message(role=role, parts=parts, **given)


def envelope(message_type: str, **fields: Any) -> dict[str, Any]:
    """A whole wire message; what is not given is as it is for `row` without extras."""
    return {
        "message_type": message_type,
        "id": MESSAGE,
        "date": DATE,
        "name": None,
        "otid": otid(0),
        "sender_id": None,
        "step_id": STEP,
        "is_err": None,
        "seq_id": None,
        "run_id": RUN,
    } | fields


def check_shape(shown: dict[str, Any]) -> None:
    """It has the keys and types that our OpenAPI document promises, and no others."""
    shape = _shapes[shown["message_type"]]
    assert set(shown) - shape.__optional_keys__ == shape.__required_keys__
    _event.validate_python(shown, strict=True)


def through_sdk(type_: type[T], shown: Any) -> T:
    """What a client with strict response validation makes of it, after a journey as JSON."""
    return validate_type(type_=type_, value=json.loads(json.dumps(shown)))


def as_message(shown: dict[str, Any]) -> Any:
    return through_sdk(cast("type[Any]", SdkMessage), shown)


def as_event(shown: dict[str, Any]) -> Any:
    return through_sdk(cast("type[Any]", LettaStreamingResponse), shown)
