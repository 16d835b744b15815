"""The files of agents: what they see of them, which are open when one more is, and what the file tools do with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from holdfast.core.records import Agent, AgentFile
from holdfast.core.system_prompt import MOST_LISTED, Directory, ShownFile, directories_section, file_limits
from holdfast.engine.archival import ArchivalMemory, Search
from holdfast.engine.clock import Clock
from holdfast.errors import ToolFailed
from holdfast.store import agents, attached_files, files, folders
from holdfast.store.attached_files import Window
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.documents.grep import TIMEOUT_S, grep
from holdfast.tools.files import File, FilePassage, Match, View


async def directories_in_view(tx: Transaction, agent: Agent) -> str:
    """The section of the system prompt; empty for an agent without folders."""
    attached = await folders.of_agent(tx, agent.id)
    if not attached:
        return ""
    limits = file_limits(agent)
    listed = await attached_files.of_agent(tx, agent.id, MOST_LISTED)
    hidden = await attached_files.count_hidden(tx, agent.id, listed)
    shown: dict[str, list[ShownFile]] = {}
    for file in listed:
        shown.setdefault(file.folder_id, []).append(await shown_file(tx, file, limits.characters))
    return directories_section(
        [Directory(folder, shown.get(folder.id, ()), hidden.get(folder.id, 0)) for folder in attached], limits
    )


async def shown_file(tx: Transaction, file: AgentFile, characters: int) -> ShownFile:
    """With so many characters of its text at least, if it is open."""
    text = await files.text_from(tx, file.file_id, file.first_line or 1, characters) if file.is_open else ""
    return ShownFile(
        name=file.name,
        status=file.status,
        error=file.error,
        lines=file.lines,
        is_open=file.is_open,
        first_line=file.first_line or 1,
        last_line=file.last_line,
        text=text,
    )


async def open_windows(tx: Transaction, agent_id: str, windows: Sequence[Window], now_us: int) -> list[AgentFile]:
    """As many as fit, the last ones: those that were closed for them are returned."""
    agent = await agents.get(tx, agent_id, lock=True)
    most = file_limits(agent).most_open
    fitting = windows[max(0, len(windows) - most) :] if most else ()
    return await attached_files.show(tx, agent_id, fitting, most, now_us) if fitting else []


class AttachedFiles:
    def __init__(
        self, database: Database, archival: ArchivalMemory, clock: Clock, grep_timeout_s: float = TIMEOUT_S
    ) -> None:
        self._database = database
        self._archival = archival
        self._clock = clock
        self._grep_timeout_s = grep_timeout_s

    async def attached(self, agent_id: str, /) -> Sequence[File]:
        found = await self._database.read_long(lambda tx: attached_files.of_agent(tx, agent_id))
        return [File(name=file.full_name, lines=file.lines, shown=_shown(file)) for file in found]

    async def show(self, agent_id: str, views: Sequence[View], /, *, only: bool) -> Sequence[str]:
        now_us = self._clock.now_us()

        async def write(tx: Transaction) -> list[str]:
            most = file_limits(await agents.get(tx, agent_id, lock=True)).most_open
            if len({view.name for view in views}) > most:
                raise ToolFailed(
                    f"{len(views)} files are too many: at most {most} can be open at once (max_files_open). Open fewer."
                )
            known = {file.full_name: file for file in await attached_files.of_agent(tx, agent_id)}
            windows = [_window(view, known[view.name]) for view in views if view.name in known]
            closed: list[AgentFile] = []
            if only:
                kept = {window.file_id for window in windows}
                closed = [file for file in await attached_files.open_files(tx, agent_id) if file.file_id not in kept]
                await attached_files.close(tx, agent_id, [file.file_id for file in closed])
            closed += await open_windows(tx, agent_id, windows, now_us)
            return [file.full_name for file in closed]

        return await self._database.write(write)

    async def grep(self, agent_id: str, pattern: str, include: str | None, context: int, /) -> Sequence[Match]:
        found = await self._database.read_long(lambda tx: attached_files.of_agent(tx, agent_id))
        names = [file.full_name for file in found]
        return await grep(
            names, lambda place: self._text(found[place].file_id), pattern, include, context, self._grep_timeout_s
        )

    async def _text(self, file_id: str) -> AsyncIterator[str]:
        number = 0
        while (part := await self._part(file_id, number)) is not None:
            yield part
            number += 1

    async def _part(self, file_id: str, number: int) -> str | None:
        return await self._database.read(lambda tx: files.text_part(tx, file_id, number))

    async def nearest(self, agent_id: str, query: str, limit: int, /) -> Sequence[FilePassage]:
        attached = await self._database.read(lambda tx: folders.of_agent(tx, agent_id))
        if not attached or not query.strip():
            return ()
        searched = tuple(folder.archive for folder in attached)
        hits = await self._archival.search(Search(query=query, archives=searched, limit=limit))
        found = await self._database.read_long(lambda tx: attached_files.of_agent(tx, agent_id))
        names = {file.file_id: file.full_name for file in found}
        return [
            FilePassage(names[hit.passage.file_id], hit.passage.text)
            for hit in hits
            if hit.passage.file_id in names  # else it has just been deleted
        ]


def _shown(file: AgentFile) -> tuple[int, int] | None:
    if not file.is_open or (file.first_line is None and file.last_line is None):
        return None
    return file.first_line or 1, file.last_line or file.lines


def _window(view: View, file: AgentFile) -> Window:
    if view.offset == 0 and view.length >= file.lines:
        return Window(file.file_id)
    return Window(file.file_id, view.offset + 1, view.offset + view.length)
