"""Records journals of real runs: `python -m tests.journals.record DIRECTORY`, once per release."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from holdfast.core.messages import Approve, ClientReturn, Deny
from holdfast.core.tool_rules import ExitLoop, RequiredBeforeExit
from holdfast.store import journal, runs
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.transaction import Transaction

from ..scenario import HASTY, RULES, Node, World, sqlite_at, world_at
from .expectation import expectation_of

Story = Callable[[World, Node], Awaitable[None]]


async def answered(world: World, node: Node) -> None:
    await node.ask("hello")


async def tools(world: World, node: Node) -> None:
    await node.ask("call the note tool and the failing tool [[call:explode {}]]")


async def budget(world: World, node: Node) -> None:
    await node.ask("call the note tool [[repeat]]", max_steps=2)


async def cut_short(world: World, node: Node) -> None:
    await node.ask("[[finish:length]] hello")


async def model_failed(world: World, node: Node) -> None:
    await node.ask("call the note tool [[error:rate_limit@2]]")


async def retried(world: World, node: Node) -> None:
    world.retry_policy = HASTY
    await world.node().ask("call the note tool [[error:overloaded@2]][[error_times:2]][[usage:40,2]]")


async def rules(world: World, node: Node) -> None:
    await world.change_rules((*RULES, RequiredBeforeExit(tool_name="note"), ExitLoop(tool_name="finish")))
    await node.ask("call the finish tool")


async def approved(world: World, node: Node) -> None:
    await node.ask("call the guarded tool and the note tool")
    await node.ask("and now?", decisions=[Approve(call_id) for call_id in await _asked(world)])


async def denied(world: World, node: Node) -> None:
    await node.ask("call the guarded tool")
    await node.ask(decisions=[Deny(call_id, "too dear") for call_id in await _asked(world)])


async def client_tool(world: World, node: Node) -> None:
    await node.ask("call the camera tool", client_tools=[{"name": "camera"}])
    await node.ask(decisions=[ClientReturn(call_id, "snap") for call_id in await _asked(world)])


async def withdrawn(world: World, node: Node) -> None:
    await node.ask("call the guarded tool and the note tool")
    await node.cancel.of_thread(world.agent_id)


async def cancelled(world: World, node: Node) -> None:
    await node.send("call the slow tool and the note tool")
    await world.tools.waiting.wait()
    await node.cancel.of_thread(world.agent_id)


async def recovered(world: World, node: Node) -> None:
    accepted = await node.send("call the slow tool and the slow_lookup tool")
    await world.tools.waiting.wait()
    await node.die()
    world.tools.let_go.set()
    after = world.node()
    await after.take_over_all()
    await after.worker.stopped(accepted.run.id)


async def compacted(world: World, node: Node) -> None:
    await node.ask("call the note tool [[usage:127000,10]]")


async def overflowed(world: World, node: Node) -> None:
    await node.ask("remember this")
    await node.ask("[[error:context]][[error_times:1]] hello")


STORIES: tuple[Story, ...] = (
    answered,
    tools,
    budget,
    cut_short,
    model_failed,
    retried,
    rules,
    approved,
    denied,
    client_tool,
    withdrawn,
    cancelled,
    recovered,
    compacted,
    overflowed,
)


async def record(story: Story, into: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with world_at(sqlite_at(Path(directory))) as world:
            node = world.node()
            await story(world, node)
            await node.die()
            journals = await world.database.read(_journals)
    for number, events in enumerate(journals, 1):
        name = f"{story.__name__}-{number}"
        (into / f"{name}.jsonl").write_text("".join(f"{event}\n" for event in events))
        shown = msgspec.json.format(msgspec.json.encode(expectation_of(events)), indent=2)
        (into / f"{name}.expected.json").write_bytes(shown + b"\n")


async def _asked(world: World) -> tuple[str, ...]:
    hold = await world.pending()
    assert hold is not None
    return hold.hold.asked_ids


async def _journals(tx: Transaction) -> list[list[str]]:
    ordered = await runs.list_runs(tx, RunFilter(), Page(limit=None, order="asc"))
    return [await journal.load(tx, run.id) for run in ordered]


def main(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for story in STORIES:
        asyncio.run(record(story, into))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
