"""A server that dies at a given commit, and what is compared once another has carried on.

The client does what clients do: it sends the same request again, with the same otid, once a server is there to take it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.actions.messages.send import SendMessage
from holdfast.core.deltas import Delta
from holdfast.core.messages import Message, ToolReturn
from holdfast.core.transitions import OUTCOME_UNKNOWN
from holdfast.engine.model_call import TokenRatios
from holdfast.engine.streams import Streams
from holdfast.engine.worker import Worker
from holdfast.llm.base import Model, ModelInfo, ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.wire.messages import to_wire
from tests.invariants import Snapshot
from tests.scenario import LONG, Crash, Moment, Node, World, runner_of

from .scenes import Mode, Scene, lead_up, pending_hold, play

CrashPoint = tuple[int, Moment]  # of which write
_IDS = re.compile(r"(?:message|run|step)-[0-9a-f-]{36}|call_[0-9a-f]{24}")
_OF_THE_MOMENT = ("date", "otid")
# After a call whose outcome nobody knows, the model is told that it failed.
_REASON = re.compile(r"Function call(?:ed using request_heartbeat=true| failed), returning control")
_TIME = re.compile(r'\\"time\\":\\"[^"]*\\"')  # within the text of a heartbeat


class FlushingCatalog(ModelCatalog):
    """The flusher stores frames at any moment; here at every token, so that each such commit can be the last."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    def open(self, info: ModelInfo) -> Model:
        return _FlushingModel(super().open(info), self._streams)


class _FlushingModel:
    def __init__(self, inner: Model, streams: Streams) -> None:
        self._inner = inner
        self._streams = streams

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        async with aclosing(self._inner.stream(request)) as deltas:
            async for delta in deltas:
                yield delta
                await self._streams.flush(list(self._streams._live))

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return self._inner.payload(request)


class MortalNode(Node):
    def __init__(self, world: World, *, flushes: bool) -> None:
        super().__init__(world, LONG)
        clock = world.clock
        self.streams = Streams(self.database)
        self.catalog = FlushingCatalog(self.streams) if flushes else ModelCatalog()
        runner = runner_of(
            self.database, self.catalog, world.tools, TokenRatios(self.database), clock, world.retry_policy
        )
        self.worker = Worker(self.database, runner, self.streams, clock, LONG)
        retries = world.retry_policy.retries
        self._send = SendMessage(self.database, self.catalog, self.worker, clock, retries)


async def outlive(world: World, scene: Scene, mode: Mode, crashes: Sequence[CrashPoint]) -> int:
    """Plays the scene on one server after another, each dying at its own point. How many of them died."""
    flushes = mode.background and mode.tokens
    await lead_up(MortalNode(world, flushes=False), scene)
    hold = await pending_hold(world)
    died = 0
    while True:
        node = MortalNode(world, flushes=flushes)
        if died < len(crashes):
            node.database.crash_at(*crashes[died])
        try:
            if died:
                await node.take_over_all()
                await node.settled()
            accepted = await play(node, scene.act, mode, otid="the-act", hold=hold)
            await node.worker.stopped(accepted.run.id)
        except Crash:
            assert node.database.dead
        if not node.database.dead:
            await node.settled()
            return died
        await node.die()
        died += 1


class Story(msgspec.Struct, frozen=True):
    """What is left of a scene, without ids and times."""

    messages: list[dict[str, Any]]
    runs: list[tuple[Any, ...]]
    steps: list[tuple[Any, ...]]
    unknown: set[str]  # ids of calls whose outcome nobody knows


def tell(snapshot: Snapshot, thread_id: str) -> Story:
    rows = [snapshot.messages[message_id] for message_id in snapshot.threads[thread_id].history]
    unknown = {part.call_id for row in rows for part in row.returns if part.content == OUTCOME_UNKNOWN}
    told = [wire for row in rows if row.role != "system" for wire in to_wire(_as_if_known(row), show_summaries=True)]
    runs = sorted(snapshot.runs.values(), key=lambda run: run.created_us)
    order = {run.id: number for number, run in enumerate(runs)}
    steps = sorted(snapshot.steps.values(), key=lambda step: (order[step.run_id], step.number))
    return Story(
        messages=_without_ids(told),
        runs=[(run.status, run.stop_reason, run.background) for run in runs],
        # What a prompt costs depends on what the returns in it say, which may be that nobody knows.
        steps=[
            (order[s.run_id], s.number, s.status, s.stop_reason, s.usage.completion_tokens, s.error_type) for s in steps
        ],
        unknown=unknown,
    )


def _as_if_known(row: Message) -> Message:
    """Nothing but the return itself may differ when an outcome is unknown."""
    parts = tuple(
        msgspec.structs.replace(part, status="success", content=f"{part.name} was run")
        if isinstance(part, ToolReturn) and part.content == OUTCOME_UNKNOWN
        else part
        for part in row.parts
    )
    return msgspec.structs.replace(row, parts=parts)


def _without_ids(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = [{key: value for key, value in wire.items() if key not in _OF_THE_MOMENT} for wire in told]
    text = _REASON.sub("returning control", _TIME.sub("", msgspec.json.encode(kept).decode()))
    numbers = {found: f"id {number}" for number, found in enumerate(dict.fromkeys(_IDS.findall(text)))}
    return msgspec.json.decode(_IDS.sub(lambda found: numbers[found.group()], text))
