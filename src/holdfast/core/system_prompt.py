"""The system prompt: an agent's instructions with its memory blocks, tool rules, files and bookkeeping filled in.

The same inputs give the same bytes, and nothing in it changes by itself (there is no current date), so that a vendor's
prefix cache keeps serving it. `digest` tells whether a stored prompt is still what would be compiled now.

One section shows an agent its folders: which files are in them, and what is open of each, from the first wanted line
on, up to a number of characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.core import dates, default_texts, tool_rules
from holdfast.core.messages import Message, Text
from holdfast.core.records import Agent, Block, FileStatus, Folder

_BLOCKS_INTRO: Final = "These memory blocks are always in view:"
_LINE_NUMBER_WARNING: Final = (
    "<warning>\nThe line numbers (such as 1→) are shown to help you find lines. They are not part of a value: never "
    "write them in a memory tool's arguments.\n</warning>"
)
# (context window up to, files open, characters of each): what an agent gets that sets neither.
_FILE_LIMITS: Final = ((8_000, 3, 5_000), (32_000, 5, 15_000), (128_000, 10, 25_000), (200_000, 10, 40_000))
_FILE_LIMITS_BEYOND: Final = (15, 40_000)
MOST_LISTED: Final = 1_000  # files of an agent; a list of more would fill the window
_WITHOUT_MEMORY: Final = frozenset({"react_agent", "workflow_agent"})
_LINE_NUMBERED: Final = frozenset({"letta_v1_agent", "memgpt_v2_agent", "sleeptime_agent"})
_STRUCTURE: Final = (
    "memory_blocks|value|description|metadata|warning|tool_usage_rules|memory_metadata|directories|directory|file|"
    "file_limits|base_instructions|available_skills|skill"
)
# Written so that no space is looked at twice: a text may have as many as it likes.
_STRUCTURAL_TAG = re.compile(rf"<(?=\s*(?:/\s*)?(?:{_STRUCTURE})\b)", re.IGNORECASE)


class Sections(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a compiled prompt, each with its own tags, empty when absent. In order of appearance."""

    instructions: str
    memory_blocks: str = ""
    tool_usage_rules: str = ""
    directories: str = ""
    memory_metadata: str = ""

    @property
    def memory(self) -> str:
        parts = (self.memory_blocks, self.tool_usage_rules, self.directories, self.memory_metadata)
        return "\n\n".join(part for part in parts if part)

    def text(self) -> str:
        if default_texts.CORE_MEMORY in self.instructions:
            return self.instructions.replace(default_texts.CORE_MEMORY, self.memory)
        return f"{self.instructions}\n\n{self.memory}" if self.instructions else self.memory


def compile_system(
    agent: Agent,
    blocks: Sequence[Block],
    *,
    conversation_id: str | None,
    recompiled_at_text: str,
    previous_messages: int,
    archival_count: int = 0,
    archival_tags: Sequence[str] = (),
    directories: str = "",
) -> str:
    """The text a model gets as its system prompt.

    `recompiled_at_text` is a local time as `dates.local_time` writes it; `directories` a finished section or empty.
    """
    return compile_sections(
        agent,
        blocks,
        conversation_id=conversation_id,
        recompiled_at_text=recompiled_at_text,
        previous_messages=previous_messages,
        archival_count=archival_count,
        archival_tags=archival_tags,
        directories=directories,
    ).text()


def compile_sections(
    agent: Agent,
    blocks: Sequence[Block],
    *,
    conversation_id: str | None,
    recompiled_at_text: str,
    previous_messages: int,
    archival_count: int = 0,
    archival_tags: Sequence[str] = (),
    directories: str = "",
) -> Sections:
    rules = tool_rules.explain(agent.tool_rules)
    metadata = [
        f"- AGENT_ID: {agent.id}",
        f"- CONVERSATION_ID: {conversation_id or 'default'}",
        f"- System prompt last recompiled: {recompiled_at_text}",
        f"- {previous_messages} previous messages with the user are not in view; search them with your tools",
    ]
    if archival_count > 0:
        metadata.append(f"- {archival_count} memories are stored in your archival memory; search them with your tools")
    if archival_tags:
        metadata.append(f"- Tags in your archival memory: {', '.join(map(escape, archival_tags))}")
    return Sections(
        instructions=agent.system,
        memory_blocks=_memory_blocks(agent, blocks),
        tool_usage_rules=f"<tool_usage_rules>\n{rules}\n</tool_usage_rules>" if rules else "",
        directories=directories,
        memory_metadata="\n".join(["<memory_metadata>", *metadata, "</memory_metadata>"]),
    )


def digest(agent: Agent, blocks: Sequence[Block], conversation_id: str | None, directories: str = "") -> str:
    """Equal when a compilation would give the same text, but for the time and the counts."""
    compiled = compile_system(
        agent,
        blocks,
        conversation_id=conversation_id,
        recompiled_at_text="",
        previous_messages=0,
        directories=directories,
    )
    return hashlib.blake2b(compiled.encode(), digest_size=16).hexdigest()


def recompiled(
    known: Message,
    agent: Agent,
    blocks: Sequence[Block],
    *,
    conversation_id: str | None,
    hidden: int,
    archived: int,
    now_us: int,
    directories: str = "",
) -> Message:
    """The thread's system message compiled anew; it keeps its id."""
    compiled = compile_system(
        agent,
        blocks,
        conversation_id=conversation_id,
        recompiled_at_text=dates.local_time(now_us, agent.timezone),
        previous_messages=hidden,
        archival_count=archived,
        directories=directories,
    )
    return msgspec.structs.replace(known, parts=(Text(compiled),))


def _memory_blocks(agent: Agent, blocks: Sequence[Block]) -> str:
    if not blocks or agent.agent_type in _WITHOUT_MEMORY:
        return ""
    numbered = agent.agent_type in _LINE_NUMBERED and agent.model.handle.startswith("anthropic/")
    shown = "\n\n".join(_block(block, numbered) for block in blocks)
    return f"<memory_blocks>\n{_BLOCKS_INTRO}\n\n{shown}\n</memory_blocks>"


def _block(block: Block, numbered: bool) -> str:
    tag = _tag_name(block.label)
    closing = re.compile(rf"<(?=\s*(?:/\s*)?{re.escape(tag)}\s*>)", re.IGNORECASE)
    value = closing.sub("&lt;", escape(block.value))
    lines = [f"<{tag}>", "<description>", closing.sub("&lt;", escape(block.description or "")), "</description>"]
    lines += ["<metadata>"]
    if block.read_only:
        lines.append("- read_only=true")
    lines += [f"- chars_current={len(block.value)}", f"- chars_limit={block.limit}", "</metadata>"]
    if numbered:
        lines.append(_LINE_NUMBER_WARNING)
        value = "\n".join(f"{number}→ {line}" for number, line in enumerate(value.split("\n"), start=1))
    return "\n".join([*lines, "<value>", value, "</value>", f"</{tag}>"])


def _tag_name(label: str) -> str:
    return re.sub(r"[<>\s]+", "_", label)


def skills_section(client_skills: Sequence[Mapping[str, str]]) -> str:
    """What the client offers for this request only; appended to the system prompt and never stored."""
    if not client_skills:
        return ""
    lines = [
        f'<skill name="{attribute(skill["name"])}" location="{attribute(skill["location"])}">\n'
        f"{escape(skill['description'])}\n</skill>"
        for skill in client_skills
    ]
    return "\n".join(["<available_skills>", *lines, "</available_skills>"])


def file_limits(agent: Agent) -> FileLimits:
    window = agent.model.context_window
    files, characters = next(
        ((files, characters) for size, files, characters in _FILE_LIMITS if window <= size), _FILE_LIMITS_BEYOND
    )
    return FileLimits(
        files if agent.max_files_open is None else agent.max_files_open,
        characters if agent.per_file_view_window_char_limit is None else agent.per_file_view_window_char_limit,
    )


class FileLimits(msgspec.Struct, frozen=True):
    most_open: int
    characters: int  # that are shown of each


class Directory(msgspec.Struct, frozen=True):
    folder: Folder
    files: Sequence[ShownFile]  # in the order of their names
    more: int = 0  # files that are not among them


class ShownFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # within its folder
    status: FileStatus
    error: str | None
    lines: int
    is_open: bool
    first_line: int = 1
    last_line: int | None = None  # that is wanted; None: the last of the file
    text: str = ""  # from the first line on, at least as many characters as are shown, or all there are


def directories_section(directories: Sequence[Directory], limits: FileLimits) -> str:
    """Empty when no folder is attached."""
    if not directories:
        return ""
    open_now = sum(file.is_open for directory in directories for file in directory.files)
    lines = [
        "<directories>",
        "<file_limits>",
        f"- current_files_open={open_now}",
        f"- max_files_open={limits.most_open}",
        "</file_limits>",
    ]
    for directory in directories:
        lines += _directory(directory, limits.characters)
    return "\n".join([*lines, "</directories>"])


def _directory(directory: Directory, characters: int) -> list[str]:
    folder = directory.folder
    lines = [f'<directory name="{attribute(folder.name)}">']
    if folder.description:
        lines.append(f"<description>{escape(folder.description)}</description>")
    if folder.instructions:
        lines.append(f"<instructions>{_within_tag('instructions', folder.instructions)}</instructions>")
    for file in directory.files:
        lines += _file(folder, file, characters)
    if directory.more:
        lines.append(f"[{directory.more} more files, which grep_files and semantic_search_files find]")
    return [*lines, "</directory>"]


def _file(folder: Folder, file: ShownFile, characters: int) -> list[str]:
    """The shape is that of the server that Holdfast replaces: programs look for it."""
    status = "open" if file.is_open else "closed"
    opening = f'<file status="{status}" name="{attribute(f"{folder.name}/{file.name}")}">'
    if not file.is_open:
        return [f"{opening}{file.lines} lines</file>"]
    text = visible_text(file, characters)
    metadata = ["<metadata>", "- read_only=true", f"- chars_current={len(text)}", f"- chars_limit={characters}"]
    return [opening, *metadata, "</metadata>", "<value>", escape(text), "</value>", "</file>"]


def visible_text(file: ShownFile, limit: int) -> str:
    """Numbered lines, with what is left out said before or after them."""
    if file.status == "error" and not file.text:
        return f"[This file could not be read: {file.error}]"
    if file.status in ("pending", "parsing"):
        return "[This file is still being read; look again later]"
    last = file.lines if file.last_line is None else min(file.last_line, file.lines)
    wanted = file.text.split("\n")[: last - file.first_line + 1]
    whole = "\n".join(f"{number}: {line}" for number, line in enumerate(wanted, start=file.first_line))
    is_part = file.first_line > 1 or last < file.lines
    place = f"lines {file.first_line} to {last}" if is_part else "file start"
    head = f"[Viewing {place} (out of {file.lines} lines)]"
    if len(whole) <= limit:
        return f"{head}\n{whole}"
    cut = whole[:limit]
    shown_to = file.first_line + cut.count("\n")
    note = f"[Cut after {limit} characters, in line {shown_to}: open the file with an offset to see what follows]"
    return "\n".join([head, cut, note])


def _within_tag(tag: str, text: str) -> str:
    """For a tag that is none of the prompt's own elsewhere: text that cannot close it."""
    return escape(text).replace(f"</{tag}", f"&lt;/{tag}")


def escape(text: str) -> str:
    """Text that cannot open or close a section of the prompt. All else, other markup too, stays as written."""
    return _STRUCTURAL_TAG.sub("&lt;", text)


def attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
