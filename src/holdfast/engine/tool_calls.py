"""Runs the tools that a model has called: a batch at a time, each in the sandbox or by a part of the server.

A batch only reports; the runner alone decides what a report means. A custom tool gets the agent's own secrets and
nothing else of the server's. A call that was held for approval runs the very tool that was approved, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from holdfast.core.arguments import arguments_of
from holdfast.core.fingerprint import ToolIdentity, calls_others, fingerprint, gets_secrets, identity_of
from holdfast.core.hold import NO_TOOLS, HeldTools
from holdfast.core.messages import ToolReturn
from holdfast.core.records import Tool
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.waiting import until_database_answers
from holdfast.errors import NotFound
from holdfast.store import agents, tools
from holdfast.store.transaction import Database, Transaction
from holdfast.tools import builtin
from holdfast.tools.base import Job, Sandbox
from holdfast.tools.code_with_tools import with_tools

# Runs one call outside this process. Cancelling it kills the tool before CancelledError comes back.
Execute = Callable[[], Awaitable[ToolReturn]]


class Executor(Protocol):
    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        """Whatever can be done before the call may be run; nothing of it can be seen outside."""
        ...


class Batch:
    """Reports arrive in the order in which the tools finish."""

    def __init__(
        self, task: asyncio.Task[None], reports: asyncio.Queue[ToolReturn | None], may_run: asyncio.Event
    ) -> None:
        self._task = task
        self._reports = reports
        self._may_run = may_run

    def run(self) -> None:
        """Their start is on record."""
        self._may_run.set()

    async def next(self) -> list[ToolReturn]:
        """At least one report and whatever else has come in; empty when all are told."""
        first = await self._reports.get()
        if first is None:
            await self._ended()
            return []
        return [first, *self.rest()]

    def rest(self) -> list[ToolReturn]:
        """Reports that nobody has taken yet."""
        taken: list[ToolReturn] = []
        while not self._reports.empty() and (report := self._reports.get_nowait()) is not None:
            taken.append(report)
        if self._task.done() and self._reports.empty():
            self._reports.put_nowait(None)
        return taken

    async def _ended(self) -> None:
        try:
            await self._task
        except ExceptionGroup as group:
            # One reason is enough to end the run, and it is the one that its error should name.
            raise group.exceptions[0] from group

    async def stop(self) -> None:
        """Returns when every tool of the batch is dead."""
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def preparing(executor: Executor, spec: RunSpec, calls: Sequence[OpenCall]) -> AsyncGenerator[Batch]:
    """Gets them ready, and no more, until the batch is told to run."""
    reports: asyncio.Queue[ToolReturn | None] = asyncio.Queue()
    may_run = asyncio.Event()
    task = asyncio.create_task(_run_all(executor, spec, calls, reports, may_run))
    batch = Batch(task, reports, may_run)
    try:
        yield batch
    finally:
        await batch.stop()


def next_batch(spec: RunSpec, calls: Sequence[OpenCall]) -> list[OpenCall]:
    """Tools marked parallel-safe first and together, then the others one by one in the order of the reply.

    A call whose turn has not come is not on record as started, so a cancel or a crash leaves no doubt about it.
    """
    together = [call for call in calls if (tool := spec.tool(call.call.name)) is not None and tool.parallel]
    return together or list(calls[:1])


async def _run_all(
    executor: Executor,
    spec: RunSpec,
    calls: Sequence[OpenCall],
    reports: asyncio.Queue[ToolReturn | None],
    may_run: asyncio.Event,
) -> None:
    async def run_one(call: OpenCall) -> None:
        # Waits here: by now its start is in the draft, and a read that fails must not look like a tool that did.
        execute = await until_database_answers(lambda: executor.prepare(spec, call), f"call {call.call.id}")
        await may_run.wait()
        reports.put_nowait(await execute())

    try:
        async with asyncio.TaskGroup() as together:
            for call in calls:
                together.create_task(run_one(call))
    finally:
        reports.put_nowait(None)


NOT_FOUND: Final = "Tool not found"


class SandboxExecutor:
    def __init__(
        self, database: Database, sandbox: Sandbox, open_secret: Callable[[bytes], str], timeout_s: float
    ) -> None:
        self._database = database
        self._sandbox = sandbox
        self._open_secret = open_secret
        self._timeout_s = timeout_s

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        job = await self._job(spec, call)

        async def execute() -> ToolReturn:
            if isinstance(job, str):
                return ToolReturn(call.call.id, call.call.name, "error", job)
            outcome = await self._sandbox.run(job)
            return ToolReturn(
                call.call.id, job.tool_name, outcome.status, outcome.content, outcome.stdout or (), outcome.stderr or ()
            )

        return execute

    async def _job(self, spec: RunSpec, call: OpenCall) -> Job | str:
        """What is to be run, or why nothing is."""
        tool = spec.tool(call.call.name)
        if tool is None or tool.tool_id is None:
            return NOT_FOUND
        tool_id = tool.tool_id
        found = await self._database.read(lambda tx: self._look_up(tx, tool_id, spec.agent_id))
        if found is None:
            return NOT_FOUND
        stored, attached, environment = found
        # What was read here is what runs: the database is not asked again.
        if call.approved is not None and identity_of(stored, environment, attached) != call.approved:
            return changed_text(stored.name, again=call.status == "started")
        job = Job(
            call_id=call.call.id,
            tool_name=stored.name,
            tool_id=stored.id,
            agent_id=spec.agent_id,
            agent_name=spec.agent_name,
            source_code=builtin.sandboxed_source(stored),
            arguments=arguments_of(call.call.arguments),  # judged before: what cannot be read has been refused
            args_schema=stored.args_json_schema,
            environment=environment if gets_secrets(stored) else {},
            timeout_s=self._timeout_s,
            return_char_limit=stored.return_char_limit,
            egress=stored.egress,
        )
        if not calls_others(stored):
            return job
        # One that was attached since is left out: the rules of this run do not know it.
        known = [other for other in attached if (told := spec.tool(other.name)) and told.tool_id == other.id]
        at_client = [other.name for other in spec.tools if other.effect == "client"]
        return with_tools(job, known, spec.rules, environment, at_client)

    async def _look_up(
        self, tx: Transaction, tool_id: str, agent_id: str
    ) -> tuple[Tool, list[Tool], dict[str, str]] | None:
        """The tool, the agent's tools if it calls them, and the agent's secrets."""
        try:
            tool = await tools.get(tx, tool_id)
        except NotFound:
            return None
        attached = await tools.of_agent(tx, agent_id) if calls_others(tool) else []
        secrets = (await agents.secrets_of(tx, [agent_id])).get(agent_id, [])
        return tool, attached, {secret.key: self._open_secret(secret.sealed) for secret in secrets}


class Executors:
    """The sandbox, but for the tools of MCP servers, and the shipped ones that are carried out by something else."""

    def __init__(self, usual: Executor, *, mcp: Executor) -> None:
        self._usual = usual
        self._mcp = mcp
        self.own: dict[str, Executor] = {}  # by the id of the tool

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        tool = spec.tool(call.call.name)
        if tool is not None and tool.mcp:
            return await self._mcp.prepare(spec, call)
        own = self.own.get(tool.tool_id) if tool is not None and tool.tool_id is not None else None
        return await (own or self._usual).prepare(spec, call)


def changed_text(name: str, *, again: bool) -> str:
    """`again`: a crash cut off a first try of the call."""
    text = f"Error: the tool '{name}' was changed after it was approved; it was not run"
    if again:
        return f"{text} again. Its first try was cut off: check whether it took effect."
    return f"{text}. Call it again to ask for approval of the tool as it is now."


async def find_held_tools(database: Database, spec: RunSpec, calls: Iterable[OpenCall]) -> HeldTools:
    asking = {call.call.name for call in calls if call.status == "held"}
    asked = {tool.tool_id: tool for tool in spec.tools if tool.name in asking and tool.tool_id is not None}
    if not asked:
        return NO_TOOLS

    async def read(tx: Transaction) -> HeldTools:
        stored = await tools.find_many(tx, list(asked))
        secrets = await agents.secret_ids_of(tx, spec.agent_id)
        attached = await tools.of_agent(tx, spec.agent_id) if any(map(calls_others, stored.values())) else []
        hashes = {tool_id: fingerprint(tool, secrets, attached) for tool_id, tool in stored.items()}
        # The version is the one that the model was shown: an edit since then must not pass for what was asked about.
        identities = {
            tool.name: ToolIdentity(tool_id, tool.version, hashes.get(tool_id)) for tool_id, tool in asked.items()
        }
        return HeldTools(identities, secrets if any(map(gets_secrets, (*stored.values(), *attached))) else None)

    return await database.read(read)
