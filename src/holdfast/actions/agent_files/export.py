"""Writes an agent as an agent file: what there is at one moment, also while a run is under way. Calls that have not
returned by then are repaired when the file is imported.

The agents of the groups that it manages come along, among them the sleeptime agents that look after it; and the
folders, files, tools and MCP servers of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.actions.threads.find import thread_of
from holdfast.core import heartbeat_loop
from holdfast.core.messages import Message
from holdfast.core.records import Agent, Folder, Group, Identity, Tool
from holdfast.engine.mcp_servers import McpServers
from holdfast.engine.run_loading import blocks_in_view
from holdfast.errors import Invalid, NotFound
from holdfast.llm.catalog.presets import completed
from holdfast.store import (
    agents,
    archives,
    attached_files,
    files,
    folders,
    groups,
    identities,
    passages,
    threads,
    tools,
)
from holdfast.store import mcp_servers as server_rows
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction
from holdfast.version import VERSION
from holdfast.wire.agent_file_views import AgentContents, FileContents, Skill, StoredFile, StoredServer, agent_file_view

_ALL: Final = Page(limit=None, order="asc")
_UNREAD: Final = ("pending", "parsing")  # files of which no text is stored, or not all of it


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    conversation_id: str | None = None  # whose messages are written; None: those of the agent's default history
    scrub_messages: bool = False
    include_archives: bool = False
    include_identities: bool = False
    include_files: bool = True  # false: folders come without what is in them


class ExportAgent:
    def __init__(self, database: Database, servers: McpServers, most_text_bytes: int) -> None:
        """`most_text_bytes` of files; a server takes no larger file in."""
        self._database = database
        self._servers = servers
        self._most_text_bytes = most_text_bytes

    async def __call__(
        self, agent_id: str, options: ExportOptions, now_us: int, skills: Sequence[Skill] = ()
    ) -> dict[str, Any]:
        contents = await self._database.read_long(lambda tx: self._contents(tx, agent_id, options))
        return await asyncio.to_thread(agent_file_view, contents, skills, VERSION, now_us)

    async def _contents(self, tx: Transaction, agent_id: str, options: ExportOptions) -> FileContents:
        first = await agents.get(tx, agent_id)
        found, managed = await _with_groups(tx, first)
        of_others = msgspec.structs.replace(options, conversation_id=None)
        each = [await _agent_contents(tx, agent, of_others if agent.id != agent_id else options) for agent in found]
        attached = {folder.id: folder for one in each for folder in one.folders}
        oldest_first = sorted(attached.values(), key=lambda folder: (folder.created_us, folder.id))
        used = {tool.id: tool for one in each for tool in one.tools}
        return FileContents(
            agents=each,
            groups=managed,
            files=await self._files(tx, oldest_first) if options.include_files else (),
            servers=await self._stored_servers(tx, used.values()),
            identities=await _identities(tx, each) if options.include_identities else (),
        )

    async def _files(self, tx: Transaction, attached: Iterable[Folder]) -> list[StoredFile]:
        stored: list[StoredFile] = []
        size = 0
        for folder in attached:
            for file in await files.list_of_folder(tx, folder.id, _ALL):
                text = None if file.status in _UNREAD else await files.whole_text(tx, file.id)
                is_read = text or file.status != "error"  # of a file that could not be read there is none
                stored.append(StoredFile(file, text if is_read else None))
                size += len((text or "").encode())
                if size > self._most_text_bytes:
                    raise Invalid(
                        f"The files of its folders hold more than {self._most_text_bytes} bytes of text, up to "
                        f"{folder.name}/{file.name}: export it with include_files=false, and copy the folders apart."
                    )
        return stored

    async def _stored_servers(self, tx: Transaction, used: Iterable[Tool]) -> list[StoredServer]:
        server_ids = dict.fromkeys(tool.mcp_server_id for tool in used if tool.mcp_server_id is not None)
        found = [await server_rows.get(tx, server_id) for server_id in server_ids]
        return [StoredServer(server, self._servers.open(server)) for server in found]


async def _with_groups(tx: Transaction, first: Agent) -> tuple[list[Agent], list[Group]]:
    """The agent and those of the groups that it manages, and of the groups that these manage."""
    found: dict[str, Agent] = {first.id: first}
    managed: dict[str, Group] = {}
    waiting = [first.id]
    while waiting:
        agent_id = waiting.pop(0)
        for group in await groups.with_agent(tx, agent_id):
            if group.manager_agent_id != agent_id:
                continue
            managed[group.id] = group
            for member, agent in (await agents.find_many(tx, group.agent_ids)).items():
                if member not in found:
                    found[member] = agent
                    waiting.append(member)
    order = {agent_id: place for place, agent_id in enumerate(_met(first.id, managed.values()))}
    return sorted(found.values(), key=lambda agent: order[agent.id]), list(managed.values())


def _met(first_id: str, managed: Iterable[Group]) -> Iterable[str]:
    """In the order of the groups and of their members: the same agents give the same file."""
    return dict.fromkeys([first_id, *(agent_id for group in managed for agent_id in group.agent_ids)])


async def _agent_contents(tx: Transaction, agent: Agent, options: ExportOptions) -> AgentContents:
    thread = await threads.get(tx, thread_of(options.conversation_id or agent.id, agent.id))
    if thread.agent_id != agent.id:
        raise NotFound(f"Conversation {thread.id} not found")
    archive = await archives.of_agent(tx, agent.id) if options.include_archives else None
    whole = completed(agent.model, in_words=agent.agent_type in heartbeat_loop.AGENT_TYPES)
    return AgentContents(
        agent=msgspec.structs.replace(agent, model=whole),
        blocks=await blocks_in_view(tx, thread),
        tools=await tools.of_agent(tx, agent.id),
        tags=(await agents.tags_of(tx, (agent.id,))).get(agent.id, ()),
        secret_names=sorted(await agents.secret_ids_of(tx, agent.id)),
        messages=[] if options.scrub_messages else _shown(agent, await threads.window(tx, thread.id)),
        folders=await folders.of_agent(tx, agent.id),
        windows=await attached_files.list_files(tx, agent.id, _ALL, None) if options.include_files else (),
        archive=archive,
        passages=[] if archive is None else await passages.list_of_archive(tx, archive.id, _ALL, None),
    )


async def _identities(tx: Transaction, contents: Sequence[AgentContents]) -> list[Identity]:
    found = await identities.of_agents(tx, [each.agent.id for each in contents])
    each_once = {identity.id: identity for owned in found.values() for identity in owned}
    return sorted(each_once.values(), key=lambda identity: (identity.created_us, identity.id))


def _shown(agent: Agent, window: Sequence[Message]) -> list[Message]:
    """An agent that forgets after each turn has in view only what came before its first one."""
    return [row for row in window if row.run_id is None or not agent.message_buffer_autoclear]
