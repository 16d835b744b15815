"""Built-in tools: they run here, and their effects commit together with their returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core import memory
from holdfast.core.arguments import arguments_of
from holdfast.core.memory import MemoryChange
from holdfast.core.messages import Content, Message, Status, ToolReturn, text_of
from holdfast.core.records import Agent, Block, Passage, Tool
from holdfast.core.run import OpenCall
from holdfast.engine.archival import ArchivalMemory, ArchiveChanged, NewPassage, PassageWrite, Search, commit
from holdfast.engine.attached_files import AttachedFiles
from holdfast.engine.checkpoint import BlockChanged
from holdfast.engine.clock import Clock
from holdfast.engine.file_views import directories_in_view
from holdfast.engine.run_loading import blocks_in_view
from holdfast.engine.session import MemoryWrite, Session
from holdfast.errors import Invalid, ToolFailed
from holdfast.store import agents, blocks, memory_edits, messages
from holdfast.store.passage_search import PassageFilter
from holdfast.store.transaction import Database, TookTooLong, Transaction
from holdfast.tools import archival as archival_tools
from holdfast.tools import files, history, voice
from holdfast.tools.base import cut_to_limit, failure_text
from holdfast.tools.files import Files

Effect = MemoryWrite | PassageWrite

# Their returns are never cut.
_SEARCHES: Final = frozenset({history.NAME, archival_tools.SEARCH, voice.SEARCH, files.SEARCH})
_SEND_MESSAGE: Final = "send_message"  # the call itself is the message; clients are shown its argument
_NO_MESSAGE: Final = "send_message() missing 1 required positional argument: 'message'"


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


class InlineTools:
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

        return await self._database.read(read)

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


async def _seen(tx: Transaction, agent_id: str) -> tuple[list[Block], str]:
    """The blocks of the agent, and what it was given last."""
    last = await messages.search(tx, agent_id, roles=("user",), limit=1, thread_id=agent_id)
    return await blocks.of_agent(tx, agent_id), "".join(text_of(row.parts) for row in last)
