"""How fast streams and listings are written, on one core. Run: python bench/wire.py"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from holdfast import ids
from holdfast.core.frames import CallFrame, Frame, MessageFrame, ReasoningFrame, TextFrame
from holdfast.core.messages import Message, Reasoning, Text, ToolCall, ToolReturn
from holdfast.wire.messages import to_wire
from holdfast.wire.responses import FrameEncoder

RUN, STEP, MESSAGE = ids.new("run"), ids.new("step"), ids.new("message")
START_US = 1_772_357_400_000_000
COUNT = 200_000


def measure(name: str, count: int, work: Callable[[], object]) -> None:
    best = min(_timed(work) for _ in range(5))
    print(f"{name:<32} {count / best:>12,.0f} /s   {best / count * 1e6:6.2f} µs each")


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def encoding(frames: list[Frame], background: bool) -> Callable[[], object]:
    numbered = list(enumerate(frames, 1))
    return lambda: FrameEncoder(RUN, background=background).encode_all(numbered)


def main() -> None:
    texts: list[Frame] = [TextFrame(MESSAGE, 1, STEP, START_US + i * 20, " token") for i in range(COUNT)]
    foreign: list[Frame] = [TextFrame(MESSAGE, 1, STEP, START_US + i * 20, " žluť") for i in range(COUNT)]
    # Frames read back from a store share no strings, so equal ids are compared by their characters.
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(texts), type=list[TextFrame])
    reasoning: list[Frame] = [ReasoningFrame(MESSAGE, 0, STEP, START_US + i * 20, " so") for i in range(COUNT)]
    calls: list[Frame] = [CallFrame(MESSAGE, 2, STEP, START_US, "call_1", None, '{"q', False) for _ in range(COUNT)]
    spoken = Message(
        id=MESSAGE,
        role="assistant",
        parts=(Reasoning("because"), Text("here it is"), ToolCall("call_1", "find_item", '{"q": "key"}')),
        created_us=START_US,
        run_id=RUN,
        step_id=STEP,
    )
    returned = msgspec.structs.replace(
        spoken, role="tool", parts=(ToolReturn("call_1", "find_item", "success", "under the mat"),)
    )
    rows = [spoken, returned] * 5_000
    wholes: list[Frame] = [MessageFrame(row) for row in rows]

    measure("text fragments", COUNT, encoding(texts, background=False))
    measure("text fragments, numbered", COUNT, encoding(texts, background=True))
    measure("text fragments, from the store", COUNT, encoding(list(stored), background=True))
    measure("text fragments, not ASCII", COUNT, encoding(foreign, background=True))
    measure("reasoning fragments", COUNT, encoding(reasoning, background=True))
    measure("tool call fragments", COUNT, encoding(calls, background=True))
    measure("whole messages as events", len(wholes), encoding(wholes, background=True))
    measure("stored rows to wire dicts", len(rows), lambda: [to_wire(row) for row in rows])


if __name__ == "__main__":
    main()
