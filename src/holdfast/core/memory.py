"""What the memory tools do, as functions of the blocks in view. Nothing is written here.

A tool call becomes an ordered list of operations and the text that the model gets back, or a ToolFailed whose text it
gets instead. All operations of a call happen, or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from holdfast.core import patching
from holdfast.core.records import LONGEST_NAME, Block
from holdfast.errors import ToolFailed

# A line of the banner that the system prompt shows over numbered lines.
LINE_NUMBER_BANNER: Final = "The line numbers (such as 1→) are shown to help you find lines."
_LINE_NUMBER = re.compile(r"^[ \t]*\d+→", re.MULTILINE)
_PATCH_LINE_NUMBER = re.compile(r"^[ +-]?[ \t]*\d+→", re.MULTILINE)
_QUOTED_CHARS: Final = 200
_NOTHING: Final = "None"
_USER_LABEL: Final = "human"  # of the block about the person that an agent speaks with
_T = TypeVar("_T")


class Created(msgspec.Struct, frozen=True):
    """A new block, to be attached to the agent."""

    block: Block


class Edited(msgspec.Struct, frozen=True):
    """The block as it will be, one version on."""

    block: Block
    label_before: str

    @property
    def renamed(self) -> bool:
        return self.block.label != self.label_before


class Detached(msgspec.Struct, frozen=True):
    """Taken from the agent. The block itself stays."""

    block: Block


Operation = Created | Edited | Detached


class MemoryChange(msgspec.Struct, frozen=True):
    returned: str = ""
    operations: tuple[Operation, ...] = ()

    def versions(self) -> dict[str, int]:
        """Of the blocks that were there before, as they were when the change was computed."""
        created = {operation.block.id for operation in self.operations if isinstance(operation, Created)}
        found: dict[str, int] = {}
        for operation in self.operations:
            block = operation.block
            if block.id not in created:
                found.setdefault(block.id, block.version - isinstance(operation, Edited))
        return found


class CoreMemoryAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    content: str


class CoreMemoryReplace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    old_content: str
    new_content: str


class MemoryReplace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    old_string: str
    new_string: str


class MemoryInsert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    new_string: str
    insert_line: int | None = None


class MemoryRethink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    new_memory: str


class MemoryApplyPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    patch: str
    label: str | None = None  # not needed by a patch that names its blocks


class MemoryCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    path: str | None = None
    file_text: str | None = None
    description: str | None = None
    old_string: str | None = None
    new_string: str | None = None
    insert_line: int | None = None
    insert_text: str | None = None
    old_path: str | None = None
    new_path: str | None = None

    def need(self, name: str) -> str:
        value = getattr(self, name)
        if value is None:
            raise ToolFailed(f"Error: {name} is required for {self.command} command")
        return value


class RethinkUserMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    new_memory: str


class FinishEdits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def edit(
    tool_name: str,
    arguments: Mapping[str, Any],
    blocks: Sequence[Block],
    *,
    new_id: Callable[[], str],
    now_us: int,
    private_ids: Collection[str] = (),
) -> tuple[MemoryChange, list[Block]]:
    """The change that a call makes, and all blocks in view once it is made.

    `private_ids`: a conversation's own copies. They stand in for the agent's blocks of the same labels, so they can be
    edited but neither renamed nor deleted.
    """
    memory = _Memory(blocks, new_id, now_us, private_ids)
    returned = TOOLS[tool_name](memory, arguments)
    return MemoryChange(returned, tuple(memory.operations)), list(memory.blocks)


class _Memory:
    """The blocks as the call has left them so far."""

    def __init__(
        self, blocks: Sequence[Block], new_id: Callable[[], str], now_us: int, private_ids: Collection[str]
    ) -> None:
        self.blocks = list(blocks)
        self.operations: list[Operation] = []
        self._new_id = new_id
        self._now_us = now_us
        self._private_ids = private_ids

    def has(self, label: str) -> bool:
        return any(block.label == label for block in self.blocks)

    def editable(self, label: str) -> Block:
        block = next((block for block in self.blocks if block.label == label), None)
        if block is None:
            known = ", ".join(block.label for block in self.blocks)
            raise ToolFailed(f"Block field {label} does not exist (available sections = {known})")
        if block.read_only:
            raise ToolFailed("This block is read-only and cannot be edited.")
        return block

    def rewrite(self, block: Block, value: str) -> str:
        value = _storable(value)
        # A value that is over its limit already may be shortened step by step.
        if len(value) > block.limit and len(value) >= len(block.value):
            _too_long(block.label, len(value), block.limit)
        self._edit(block, value=value)
        return value

    def describe(self, label: str, description: str) -> None:
        self._edit(self.editable(label), description=_storable(description))

    def rename(self, label: str, to: str) -> None:
        block = self.editable(label)
        self._refuse_private(block, "renamed")
        if to != label:
            self._edit(block, label=self._free_label(to))

    def create(self, label: str, description: str | None, value: str) -> None:
        block = Block(
            id=self._new_id(),
            label=self._free_label(label),
            value=_storable(value),
            description=None if description is None else _storable(description),
            created_us=self._now_us,
            updated_us=self._now_us,
        )
        if len(block.value) > block.limit:
            _too_long(label, len(block.value), block.limit)
        self.blocks.append(block)
        self.operations.append(Created(block))

    def detach(self, label: str) -> None:
        block = self.editable(label)
        self._refuse_private(block, "deleted")
        self.blocks.remove(block)
        self.operations.append(Detached(block))

    def _free_label(self, label: str) -> str:
        label = _storable(label).strip()
        if not label:
            raise ToolFailed("Error: a memory block needs a label")
        if len(label) > LONGEST_NAME:
            raise ToolFailed(f"Error: a label of {len(label)} characters is too long; the limit is {LONGEST_NAME}")
        if self.has(label):
            raise ToolFailed(f"Error: memory block '{label}' already exists")
        return label

    def _edit(self, block: Block, **changes: str) -> None:
        """Only a real change makes a new version."""
        if all(getattr(block, name) == value for name, value in changes.items()):
            return
        changed = msgspec.structs.replace(block, **changes, version=block.version + 1, updated_us=self._now_us)
        self.blocks[self.blocks.index(block)] = changed
        self.operations.append(Edited(changed, block.label))

    def _refuse_private(self, block: Block, what: str) -> None:
        if block.id in self._private_ids:
            raise ToolFailed(
                f"Block '{block.label}' is this conversation's own copy: it can be edited, but not {what}."
            )


def _core_memory_append(memory: _Memory, given: CoreMemoryAppend) -> str:
    block = memory.editable(given.label)
    return memory.rewrite(block, f"{block.value}\n{given.content}")


def _core_memory_replace(memory: _Memory, given: CoreMemoryReplace) -> str:
    block = memory.editable(given.label)
    _refuse_empty("old_content", given.old_content, block)
    if given.old_content not in block.value:
        raise ToolFailed(f"Old content '{_brief(given.old_content)}' not found in memory block '{given.label}'")
    return memory.rewrite(block, block.value.replace(given.old_content, given.new_content))


def _memory_replace(memory: _Memory, given: MemoryReplace) -> str:
    return _replace_one(memory, given.label, given.old_string, given.new_string)


def _memory_insert(memory: _Memory, given: MemoryInsert) -> str:
    return _insert_lines(memory, given.label, "new_string", given.new_string, given.insert_line)


def _memory_rethink(memory: _Memory, given: MemoryRethink) -> str:
    block = memory.editable(given.label)
    _refuse_line_numbers("new_memory", given.new_memory)
    return memory.rewrite(block, given.new_memory)


def _rethink_user_memory(memory: _Memory, given: RethinkUserMemory) -> str:
    return _memory_rethink(memory, MemoryRethink(_USER_LABEL, given.new_memory))


def _memory_apply_patch(memory: _Memory, given: MemoryApplyPatch) -> str:
    _refuse_line_numbers("patch", given.patch, _PATCH_LINE_NUMBER)
    sections = patching.sections_of(given.patch)
    if sections:
        return "\n".join(f"- {_apply_section(memory, section)}" for section in sections)
    if given.label is None:
        raise ToolFailed("Error: label is required for a patch that names no blocks")
    block = memory.editable(given.label)
    return memory.rewrite(block, patching.apply_hunks(block.value, patching.hunks_of(given.patch)))


def _apply_section(memory: _Memory, section: patching.Section) -> str:
    if section.action == "Add":
        memory.create(section.label, section.description, patching.added_text(section))
        return f"Added block '{section.label}'"
    if section.action == "Delete":
        memory.detach(section.label)
        return f"Deleted block '{section.label}'"
    block = memory.editable(section.label)
    if section.body:
        memory.rewrite(block, patching.apply_hunks(block.value, patching.hunks_of("\n".join(section.body))))
    if section.move_to is None:
        return f"Updated block '{section.label}'"
    memory.rename(section.label, section.move_to)
    return f"Updated block '{section.label}' and renamed it to '{section.move_to}'"


def _memory_command(memory: _Memory, given: MemoryCommand) -> str:
    act = _COMMANDS.get(given.command)
    if act is None:
        raise ToolFailed(f"Error: unknown command '{given.command}'. Commands: {', '.join(_COMMANDS)}")
    return act(memory, given)


def _create(memory: _Memory, given: MemoryCommand) -> str:
    label, description = _label_in(memory, given.need("path")), given.need("description")
    value = given.file_text or ""
    _refuse_line_numbers("file_text", value)
    memory.create(label, description, value)
    return f"Created memory block '{label}'"


def _str_replace(memory: _Memory, given: MemoryCommand) -> str:
    label = _label_in(memory, given.need("path"))
    return _replace_one(memory, label, given.need("old_string"), given.need("new_string"))


def _insert(memory: _Memory, given: MemoryCommand) -> str:
    label = _label_in(memory, given.need("path"))
    return _insert_lines(memory, label, "insert_text", given.need("insert_text"), given.insert_line)


def _delete(memory: _Memory, given: MemoryCommand) -> str:
    label = _label_in(memory, given.need("path"))
    memory.detach(label)
    return f"Deleted memory block '{label}'"


def _rename(memory: _Memory, given: MemoryCommand) -> str:
    if given.path is not None and given.description is not None and given.old_path is None:
        label = _label_in(memory, given.path)
        memory.describe(label, given.description)
        return f"Updated the description of memory block '{label}'"
    old, new = _label_in(memory, given.need("old_path")), _label_in(memory, given.need("new_path"))
    memory.rename(old, new)
    return f"Renamed memory block '{old}' to '{new}'"


def _finish_edits(memory: _Memory, given: FinishEdits) -> str:
    return _NOTHING


def _replace_one(memory: _Memory, label: str, old: str, new: str) -> str:
    block = memory.editable(label)
    _refuse_line_numbers("old_string", old)
    _refuse_line_numbers("new_string", new)
    _refuse_empty("old_string", old, block)
    value = block.value
    if old not in value:
        # A model often sees or writes a tab as spaces. Only then is it worth losing the tabs of the whole block.
        value, old, new = value.expandtabs(), old.expandtabs(), new.expandtabs()
    match value.count(old):
        case 0:
            raise ToolFailed(
                f"No replacement was performed: old_string `{_brief(old)}` did not appear verbatim in memory block "
                f"with label `{label}`."
            )
        case 1:
            return memory.rewrite(block, value.replace(old, new))
        case _:
            lines = [value.count("\n", 0, found.start()) + 1 for found in re.finditer(re.escape(old), value)]
            raise ToolFailed(
                f"No replacement was performed. Multiple occurrences of old_string `{_brief(old)}` in lines {lines}. "
                "Make it unique by including more of the text around it."
            )


def _insert_lines(memory: _Memory, label: str, argument: str, text: str, after_line: int | None) -> str:
    block = memory.editable(label)
    _refuse_line_numbers(argument, text)
    lines = block.value.split("\n") if block.value else []
    at = len(lines) if after_line is None or after_line == -1 else after_line
    if not 0 <= at <= len(lines):
        raise ToolFailed(
            f"Invalid `insert_line` parameter: {after_line}. It must be from 0 to {len(lines)}, the number of lines of "
            f"memory block '{label}', or -1 for its end."
        )
    return memory.rewrite(block, "\n".join([*lines[:at], text, *lines[at:]]))


def _label_in(memory: _Memory, path: str) -> str:
    """`/memories/<label>`, `/<label>` or the label itself, which may hold slashes of its own."""
    return path if memory.has(path) else path.strip().removeprefix("/memories/").removeprefix("/")


def _refuse_line_numbers(argument: str, text: str, pattern: re.Pattern[str] = _LINE_NUMBER) -> None:
    if pattern.search(text) or LINE_NUMBER_BANNER in text:
        raise ToolFailed(
            f"{argument} contains a line number prefix, which is not allowed. Line numbers are only shown to you; they "
            "are no part of the memory. Leave them out."
        )


def _refuse_empty(argument: str, text: str, block: Block) -> None:
    if not text and block.value:
        raise ToolFailed(f"{argument} is empty: give the text that is to be replaced, or insert text instead.")


def _too_long(label: str, length: int, limit: int) -> NoReturn:
    raise ToolFailed(
        f"Edit failed: memory block '{label}' would have {length} characters, which exceeds its limit of {limit}. "
        "Shorten it and try again."
    )


def _brief(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}…"


def _storable(text: str) -> str:
    return text.replace("\0", "")


def _taking(kind: type[_T], act: Callable[[_Memory, _T], str]) -> Callable[[_Memory, Mapping[str, Any]], str]:
    def call(memory: _Memory, arguments: Mapping[str, Any]) -> str:
        try:
            given = msgspec.convert(dict(arguments), kind, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"The arguments do not fit the tool: {error}") from error
        return act(memory, given)

    return call


_COMMANDS: Final[dict[str, Callable[[_Memory, MemoryCommand], str]]] = {
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
    "delete": _delete,
    "rename": _rename,
}
TOOLS: Final[dict[str, Callable[[_Memory, Mapping[str, Any]], str]]] = {
    "core_memory_append": _taking(CoreMemoryAppend, _core_memory_append),
    "core_memory_replace": _taking(CoreMemoryReplace, _core_memory_replace),
    "memory_replace": _taking(MemoryReplace, _memory_replace),
    "memory_insert": _taking(MemoryInsert, _memory_insert),
    "memory_rethink": _taking(MemoryRethink, _memory_rethink),
    "memory_apply_patch": _taking(MemoryApplyPatch, _memory_apply_patch),
    "memory": _taking(MemoryCommand, _memory_command),
    "memory_finish_edits": _taking(FinishEdits, _finish_edits),
    "rethink_user_memory": _taking(RethinkUserMemory, _rethink_user_memory),
    "finish_rethinking_memory": _taking(FinishEdits, _finish_edits),
}
