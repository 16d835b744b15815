"""Runs the tools that a model has called: a batch at a time in the sandbox or on other servers, built-in ones here.

A batch only reports; the runner alone decides what a report means. A custom tool gets the agent's own secrets and
nothing else of the server's. A call that was held for approval runs the very tool that was approved, or none.
The effects of built-in tools commit together with their returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from holdfast import ids
from holdfast.core import memory
from holdfast.core.arguments import arguments_of
from holdfast.core.hold import NO_TOOLS, HeldTools, ToolIdentity, fingerprint, identity_of
from holdfast.core.memory import MemoryChange
from holdfast.core.messages import Content, Message, Status, ToolReturn, text_of
from holdfast.core.records import Agent, Block, Passage, Tool
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.archival import ArchivalMemory, ArchiveChanged, NewPassage, PassageWrite, Search, commit
from holdfast.engine.attached_files import AttachedFiles, directories_in_view
from holdfast.engine.checkpoint import BlockChanged
from holdfast.engine.clock import Clock
from holdfast.engine.database_retries import until_database_answers
from holdfast.engine.run_loading import blocks_in_view
from holdfast.engine.run_session import MemoryWrite, Session
from holdfast.engine.tracing import Spans
from holdfast.errors import Invalid, ToolFailed
from holdfast.store import agents, blocks, memory_edits, messages, tools
from holdfast.store.agents import SealedSecret
from holdfast.store.passage_search import PassageFilter
from holdfast.store.transaction import Database, TookTooLong, Transaction
from holdfast.tools import archival as archival_tools
from holdfast.tools import builtin, files, history, voice
from holdfast.tools.base import Job, Sandbox, cut_to_limit, failure_text
from holdfast.tools.code_with_tools import with_tools
from holdfast.tools.files import Files

# Runs one call outside this process. Cancelling it kills the tool before CancelledError comes back.
Execute = Callable[[], Awaitable[ToolReturn]]
NOT_FOUND: Final = "Tool not found"
Effect = MemoryWrite | PassageWrite
# Their returns are never cut.
_SEARCHES: Final = frozenset({history.NAME, archival_tools.SEARCH, voice.SEARCH, files.SEARCH})
_SEND_MESSAGE: Final = "send_message"  # the call itself is the message; clients are shown its argument
_NO_MESSAGE: Final = "send_message() missing 1 required positional argument: 'message'"


class Executor(Protocol):
    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        """Whatever can be done before the call may be run; nothing of it can be seen outside."""
        ...


def next_batch(spec: RunSpec, calls: Sequence[OpenCall]) -> list[OpenCall]:
    """Tools marked parallel-safe first and together, then the others one by one in the order of the reply.

    A call whose turn has not come is not on record as started, so a cancel or a crash leaves no doubt about it.
    """
    together = [call for call in calls if (tool := spec.tool(call.call.name)) is not None and tool.parallel]
    return together or list(calls[:1])


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
        found = await self._database.read_one(lambda tx: tools.find_with_secrets(tx, tool_id, spec.agent_id))
        attached: list[Tool] = []
        if found is not None and found[0].calls_others:
            found, attached = await self._database.read(lambda tx: _look_up_with_others(tx, tool_id, spec.agent_id))
        if found is None:
            return NOT_FOUND
        stored, secrets = found
        environment = {secret.key: self._open_secret(secret.sealed) for secret in secrets}
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
            environment=environment if stored.gets_secrets else {},
            timeout_s=self._timeout_s,
            return_char_limit=stored.return_char_limit,
            egress=stored.egress,
        )
        if not stored.calls_others:
            return job
        # One that was attached since is left out: the rules of this run do not know it.
        known = [other for other in attached if (told := spec.tool(other.name)) and told.tool_id == other.id]
        at_client = [other.name for other in spec.tools if other.effect == "client"]
        return with_tools(job, known, spec.rules, environment, at_client)


async def _look_up_with_others(
    tx: Transaction, tool_id: str, agent_id: str
) -> tuple[tuple[Tool, list[SealedSecret]] | None, list[Tool]]:
    """The tool again, as it is beside the agent's tools: all of them are read at one moment."""
    return await tools.find_with_secrets(tx, tool_id, agent_id), await tools.of_agent(tx, agent_id)


def changed_text(name: str, *, again: bool) -> str:
    """`again`: a crash cut off a first try of the call."""
    text = f"Error: the tool '{name}' was changed after it was approved; it was not run"
    if again:
        return f"{text} again. Its first try was cut off: check whether it took effect."
    return f"{text}. Call it again to ask for approval of the tool as it is now."


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


class SpannedExecutor:
    def __init__(self, inner: Executor, spans: Spans) -> None:
        self._inner = inner
        self._spans = spans

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        inner = await self._inner.prepare(spec, call)

        async def execute() -> ToolReturn:
            with self._spans.tool(call.call) as work:
                answer = await inner()
                work.returned(answer)
                return answer

        return execute


async def find_held_tools(database: Database, spec: RunSpec, calls: Iterable[OpenCall]) -> HeldTools:
    asking = {call.call.name for call in calls if call.status == "held"}
    asked = {tool.tool_id: tool for tool in spec.tools if tool.name in asking and tool.tool_id is not None}
    if not asked:
        return NO_TOOLS

    async def read(tx: Transaction) -> HeldTools:
        stored = await tools.find_many(tx, list(asked))
        secrets = await agents.secret_ids_of(tx, spec.agent_id)
        attached = await tools.of_agent(tx, spec.agent_id) if any(tool.calls_others for tool in stored.values()) else []
        hashes = {tool_id: fingerprint(tool, secrets, attached) for tool_id, tool in stored.items()}
        # The version is the one that the model was shown: an edit since then must not pass for what was asked about.
        identities = {
            tool.name: ToolIdentity(tool_id, tool.version, hashes.get(tool_id)) for tool_id, tool in asked.items()
        }
        uses_secrets = any(tool.gets_secrets for tool in (*stored.values(), *attached))
        return HeldTools(identities, secrets if uses_secrets else None)

    return await database.read(read)


class InlineTools:
    """The built-in tools. What one of them changes is drafted, and commits together with its return."""

    def __init__(
        self, database: Database, clock: Clock, archival: ArchivalMemory, attached: Files | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._archival = archival
        self._files = attached or AttachedFiles(database, archival, clock)

    async def current_view(self, session: Session) -> tuple[list[Block], str]:
        """The blocks and the files that the agent sees now. A first folder that it was given meanwhile is for its next
        run, as tools are."""

        async def read(tx: Transaction) -> tuple[list[Block], str]:
            directories = await directories_in_view(tx, session.agent) if session.directories else ""
            return await blocks_in_view(tx, session.thread), directories

        has_more = session.directories or session.thread.isolated_block_ids
        return await (self._database.read(read) if has_more else self._database.read_one(read))

    async def call(self, session: Session, call: OpenCall) -> tuple[ToolReturn, Effect | None]:
        """The return and the effect of a call within a run; the next checkpoint commits both."""
        tool = session.spec.tool(call.call.name)
        caller = _Caller(
            agent_id=session.agent.id,
            timezone=session.spec.timezone,
            blocks=session.blocks,
            private_ids=session.thread.isolated_block_ids,
            transcript=next((text_of(row.parts) for row in reversed(session.window) if row.role == "user"), ""),
        )
        arguments = arguments_of(call.call.arguments)  # judged before: what cannot be read has been refused
        outcome = await self._run(caller, call.call.name, arguments, tool.return_char_limit if tool else None)
        answer = ToolReturn(call.call.id, call.call.name, outcome.status, outcome.content, stdout=(), stderr=())
        return answer, outcome.write

    async def run_by_hand(self, agent: Agent, tool: Tool, arguments: Mapping[str, Any]) -> Performed:
        """Outside any run: the effect, if any, is committed before this returns."""
        while True:
            in_view, given = await self._database.read(lambda tx: _seen(tx, agent.id))
            caller = _Caller(agent_id=agent.id, timezone=agent.timezone, blocks=in_view, transcript=given)
            outcome = await self._run(caller, tool.name, arguments, tool.return_char_limit)
            if outcome.write is None:
                return outcome
            try:
                await self._database.write(partial(self._commit, agent.id, outcome.write))
            except (BlockChanged, ArchiveChanged):
                continue
            return outcome

    async def _run(
        self, caller: _Caller, name: str, arguments: Mapping[str, Any], return_char_limit: int | None
    ) -> Performed:
        try:
            text, write = await self._carry_out(caller, name, arguments)
        except ToolFailed as failed:
            return Performed("error", failure_text(name, "ValueError", failed.message))
        except TookTooLong as error:
            # A search that was too much for the database once is too much for it again. All else reads little, and
            # finds the time when the database answers again.
            if name not in _SEARCHES:
                raise
            return Performed("error", failure_text(name, "TimeoutError", f"{error.message} Search for less."))
        if return_char_limit is None or name in _SEARCHES:
            return Performed("success", text, write)
        return Performed("success", cut_to_limit(text, return_char_limit), write)

    async def _carry_out(self, caller: _Caller, name: str, arguments: Mapping[str, Any]) -> tuple[str, Effect | None]:
        if name in memory.TOOLS:
            return await self._edit_memory(caller, name, arguments)
        if name == archival_tools.INSERT:
            asked = archival_tools.parse_insertion(arguments)
            return await self._archive(caller, [NewPassage(text=asked.content, tags=tuple(asked.tags or ()))])
        if name == voice.STORE:
            texts = voice.parse_memories(arguments, caller.transcript)
            return await self._archive(caller, [NewPassage(text=text) for text in texts])
        if name == voice.SEARCH:
            return await self._search_all(caller, arguments), None
        if name in files.NAMES:
            return await files.run_file_tool(name, arguments, self._files, caller.agent_id), None
        if name == archival_tools.SEARCH:
            return await self._search_archive(caller, arguments), None
        if name == history.NAME:
            search = partial(self._search, caller.agent_id)
            now_us = self._clock.now_us()
            text = await history.conversation_search(arguments, search, timezone=caller.timezone, now_us=now_us)
            return text, None
        if name == _SEND_MESSAGE:
            if arguments.get("message") is None:
                raise ToolFailed(_NO_MESSAGE)
            return "Sent message successfully.", None
        raise ToolFailed(f"Tool not found: this server has no built-in tool {name!r}.")

    async def _archive(self, caller: _Caller, new: Sequence[NewPassage]) -> tuple[str, Effect]:
        try:
            return "None", await self._archival.prepared_for_agent(caller.agent_id, new)
        except Invalid as error:
            raise ToolFailed(error.message) from error

    async def _search_archive(self, caller: _Caller, arguments: Mapping[str, Any]) -> str:
        asked = archival_tools.parse_search(arguments, caller.timezone)
        wanted = PassageFilter(
            tags=asked.tags, match_all_tags=asked.match_all_tags, start_us=asked.start_us, end_us=asked.end_us
        )
        found = await self._passages(caller.agent_id, asked.query, wanted, asked.limit)
        return archival_tools.results_text(found, caller.timezone)

    async def _passages(self, agent_id: str, query: str, wanted: PassageFilter, limit: int) -> list[Passage]:
        archive = await self._archival.of_agent(agent_id)
        if archive is None or not query.strip():
            return []
        found = await self._archival.search(Search(query=query, archives=(archive,), filter=wanted, limit=limit))
        return [hit.passage for hit in found]

    async def _search_all(self, caller: _Caller, arguments: Mapping[str, Any]) -> str:
        """What was said, for any of the keywords, and what archival memory has of them and of the user's last words."""
        now_us = self._clock.now_us()
        wanted = voice.parse_search(arguments, now_us)
        search = partial(self._search, caller.agent_id)
        said: dict[str, tuple[Message, str]] = {}
        for keyword in wanted.keywords or (None,):
            query = history.Query(text=keyword, roles=history.SPOKEN, start_us=wanted.start_us, end_us=wanted.end_us)
            said |= {row.id: (row, text) for row, text in await history.newest_visible(voice.RESULTS, query, search)}
        newest = sorted(said.values(), key=lambda one: one[0].created_us, reverse=True)
        times = PassageFilter(start_us=wanted.start_us, end_us=wanted.end_us)
        about = " ".join((caller.transcript[: archival_tools.LONGEST_QUERY], *wanted.keywords))
        stored = await self._passages(caller.agent_id, about, times, voice.RESULTS)
        return msgspec.json.encode(
            {
                "conversation": history.search_results(newest, caller.timezone, now_us),
                "archival_memory": archival_tools.search_results(stored, caller.timezone),
            }
        ).decode()

    async def _edit_memory(
        self, caller: _Caller, name: str, arguments: Mapping[str, Any]
    ) -> tuple[str, MemoryWrite | None]:
        change, after = memory.edit(
            name,
            arguments,
            caller.blocks,
            new_id=partial(ids.new, "block"),
            now_us=self._clock.now_us(),
            private_ids=caller.private_ids,
        )
        if not change.operations:
            return change.returned, None
        await self._check_renames(caller.agent_id, change)
        return change.returned, MemoryWrite(change, change.versions(), after)

    async def _check_renames(self, agent_id: str, change: MemoryChange) -> None:
        if not any(isinstance(operation, memory.Edited) and operation.renamed for operation in change.operations):
            return
        refused = await self._database.read(lambda tx: memory_edits.refused_rename(tx, agent_id, change))
        if refused is not None:
            raise ToolFailed(
                f"Memory block '{refused.label_before}' is shared with an agent that already has a block labelled "
                f"'{refused.block.label}'. Choose another label."
            )

    async def _search(self, agent_id: str, query: history.Query, limit: int) -> list[Message]:
        return await self._database.read_long(
            lambda tx: messages.search(
                tx,
                agent_id,
                text=query.text,
                roles=query.roles,
                start_us=query.start_us,
                end_us=query.end_us,
                limit=limit,
            )
        )

    async def _commit(self, agent_id: str, write: Effect, tx: Transaction) -> None:
        await agents.require(tx, agent_id)
        if isinstance(write, PassageWrite):
            await commit(tx, write)
        elif not await memory_edits.apply(tx, agent_id, write.change, write.versions, self._clock.now_us()):
            raise BlockChanged("a block changed under a memory tool")


class Performed(msgspec.Struct, frozen=True):
    status: Status
    content: Content
    write: Effect | None = None  # not yet committed


class _Caller(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    timezone: str
    blocks: Sequence[Block]
    private_ids: Sequence[str] = ()
    transcript: str = ""  # what it was given last


async def _seen(tx: Transaction, agent_id: str) -> tuple[list[Block], str]:
    """The blocks of the agent, and what it was given last."""
    last = await messages.search(tx, agent_id, roles=("user",), limit=1, thread_id=agent_id)
    return await blocks.of_agent(tx, agent_id), "".join(text_of(row.parts) for row in last)
