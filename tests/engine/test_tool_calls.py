"""An approved call runs the tool that was approved, or nothing: also when the tool changes after the answer came."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import bindparam, update

from holdfast.core.events import RunStarted
from holdfast.core.hold import identity_of
from holdfast.core.messages import Approve, ToolCall, content_text
from holdfast.core.records import Tool
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.tool_calls import Execute, SandboxExecutor
from holdfast.secretbox import SecretBox
from holdfast.store import agents, journal, runs, tools
from holdfast.store.agents import SealedSecret
from holdfast.store.tables import run_events
from holdfast.store.transaction import Transaction
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox

from ..scenario import LONG, Crash, Node, World

ASK = "call the guarded tool"
BOX = SecretBox.from_passphrases(["of the tests"])
REWRITE = update(run_events).where(run_events.c.run_id == bindparam("run")).values(event=bindparam("text"))
Change = Callable[[], Awaitable[None]]


def source(returned: str) -> str:
    return f'def guarded() -> str:\n    """Do it."""\n    return "{returned}"\n'


class ChangingFirst:
    """The real executor, before which somebody changes something: between the answer and the start of its tool."""

    def __init__(self, executor: SandboxExecutor, change: Change) -> None:
        self._executor = executor
        self._change = change

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        await self._change()
        return await self._executor.prepare(spec, call)


@pytest.fixture
async def executor(world: World, tmp_path: Path) -> AsyncIterator[SandboxExecutor]:
    sandbox = ForkServerSandbox(hidden=(tmp_path,))
    await edit(world, source_code=source("the approved code"))
    yield SandboxExecutor(world.database, sandbox, BOX.open, 60)
    await sandbox.aclose()


async def guarded(world: World) -> Tool:
    found = await world.database.read(lambda tx: tools.of_agent(tx, world.agent_id))
    return next(tool for tool in found if tool.name == "guarded")


async def edit(world: World, **fields: Any) -> None:
    tool = await guarded(world)
    changed = msgspec.structs.replace(tool, **fields, version=tool.version + ("source_code" in fields))
    await world.database.write(lambda tx: tools.update_tool(tx, changed))


async def change_code(world: World) -> None:
    await edit(world, source_code=source("other code"))


async def change_requirements(world: World) -> None:
    await edit(world, pip_requirements=[{"name": "other"}])


async def add_secret(world: World) -> None:
    sealed = SealedSecret("agent-env-1", "TOKEN", BOX.seal("hush"))
    await world.database.write(lambda tx: agents.add_secrets(tx, world.agent_id, [sealed]))


async def delete(world: World) -> None:
    tool = await guarded(world)
    await world.database.write(lambda tx: tools.delete_tool(tx, tool.id))


async def ask(world: World, node: Node) -> str:
    await node.ask(ASK)
    hold = await world.pending()
    assert hold is not None
    return hold.hold.asked_ids[0]


async def returned(world: World) -> list[tuple[str, str]]:
    return [(part.status, content_text(part.content)) for row in await world.window() for part in row.returns]


@pytest.mark.parametrize("change", [change_code, change_requirements, add_secret])
async def test_a_tool_that_is_changed_between_the_answer_and_its_start_is_not_run(
    world: World, executor: SandboxExecutor, change: Callable[[World], Awaitable[None]]
) -> None:
    node = Node(world, executor=ChangingFirst(executor, lambda: change(world)))
    run = await node.ask(decisions=[Approve(await ask(world, node))])
    ((status, text),) = await returned(world)
    assert status == "error"
    assert "was changed after it was approved; it was not run" in text
    assert run.stop_reason == "end_turn"
    await node.die()


async def test_a_tool_that_is_deleted_between_the_answer_and_its_start_is_not_found(
    world: World, executor: SandboxExecutor
) -> None:
    node = Node(world, executor=ChangingFirst(executor, lambda: delete(world)))
    await node.ask(decisions=[Approve(await ask(world, node))])
    assert await returned(world) == [("error", "Tool not found")]
    await node.die()


async def answer_and_crash(world: World, executor: SandboxExecutor) -> None:
    """The answer is stored, and the server is gone before it does anything about it."""
    node = Node(world, executor=executor)
    call_id = await ask(world, node)
    node.database.crash_at(1, "after")
    with pytest.raises(Crash):
        await node.send(decisions=[Approve(call_id)])
    await node.die()


async def carry_on(world: World, executor: SandboxExecutor) -> list[tuple[str, str]]:
    heir = Node(world, LONG, executor=executor)
    assert await heir.take_over_all() == 1
    await heir.settled()
    await heir.die()
    return await returned(world)


async def test_a_tool_that_is_changed_between_a_crash_and_the_recovery_is_not_run(
    world: World, executor: SandboxExecutor
) -> None:
    await answer_and_crash(world, executor)
    await change_code(world)
    ((status, text),) = await carry_on(world, executor)
    assert status == "error"
    assert "was changed after it was approved; it was not run" in text


async def test_a_tool_that_nobody_changed_is_run_after_a_crash(world: World, executor: SandboxExecutor) -> None:
    await answer_and_crash(world, executor)
    assert await carry_on(world, executor) == [("success", "the approved code")]


async def test_an_answer_that_an_earlier_version_has_stored_is_carried_out_as_it_was_then(
    world: World, executor: SandboxExecutor
) -> None:
    await answer_and_crash(world, executor)
    await world.database.write(lambda tx: forget_identities(tx, world.agent_id))
    await change_code(world)
    assert await carry_on(world, executor) == [("success", "other code")]


async def forget_identities(tx: Transaction, thread_id: str) -> None:
    """Writes the start of the active run as versions that knew of no identities have written it."""
    run = await runs.active_of_thread(tx, thread_id)
    assert run is not None
    (text,) = await journal.load(tx, run.id)
    started: dict[str, Any] = msgspec.json.decode(text)
    for call in started["resumes"]:
        del call["approved"]
    await tx.execute(REWRITE, {"run": run.id, "text": msgspec.json.encode(started).decode()})


async def test_a_retry_safe_tool_that_is_changed_after_its_first_try_is_not_run_again(
    world: World, executor: SandboxExecutor
) -> None:
    tool = await guarded(world)
    node = Node(world)
    accepted = await node.send("say hello")
    assert accepted.stream is not None
    await node.settled()
    events = await world.database.read(lambda tx: journal.load(tx, accepted.run.id))
    started = msgspec.json.decode(events[0], type=RunStarted)
    call = OpenCall(ToolCall("c1", "guarded", "{}"), "started", approved=identity_of(tool, ()))
    await change_code(world)
    answer = await (await executor.prepare(started.spec, call))()
    assert answer.status == "error"
    assert "it was not run again" in content_text(answer.content)
    await node.die()
