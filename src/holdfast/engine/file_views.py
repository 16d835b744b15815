"""What agents see of files: the section of their system prompt, and which files are open when one more is."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.directories import MOST_LISTED, Directory, ShownFile, directories_section, file_limits
from holdfast.core.records import Agent, AgentFile
from holdfast.store import agent_files, agents, files, folders
from holdfast.store.agent_files import Window
from holdfast.store.transaction import Transaction


async def directories_in_view(tx: Transaction, agent: Agent) -> str:
    """The section of the system prompt; empty for an agent without folders."""
    attached = await folders.of_agent(tx, agent.id)
    if not attached:
        return ""
    limits = file_limits(agent)
    listed = await agent_files.of_agent(tx, agent.id, MOST_LISTED)
    hidden = await agent_files.count_hidden(tx, agent.id, listed)
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
    return await agent_files.show(tx, agent_id, fitting, most, now_us) if fitting else []
