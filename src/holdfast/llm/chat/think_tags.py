"""Reasoning that a local server leaves in the text: `<think>…</think>` at its very beginning, and nowhere else."""

from __future__ import annotations

from typing import Final, Literal

from holdfast.core.deltas import Delta, ReasoningDelta, TextDelta

_OPENING: Final = "<think>"
_CLOSING: Final = "</think>"
_MOST_BLANKS: Final = 1_000  # before a tag; a model that goes on with them has lost its way, and is to be heard


class ThinkTags:
    """Fed with the pieces of a text. A piece that may be the beginning of a tag waits for the next one."""

    def __init__(self) -> None:
        self._state: Literal["beginning", "thinking", "thought", "text"] = "beginning"
        self._held = ""

    def split(self, piece: str) -> list[Delta]:
        if self._state == "text":
            return [TextDelta(piece)]
        held, self._held = self._held + piece, ""
        if self._state == "beginning":
            return self._begin(held)
        if self._state == "thinking":
            return self._think(held)
        return self._speak(held)

    def rest(self) -> list[Delta]:
        """What was still waiting when the reply ended."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [ReasoningDelta(held) if self._state == "thinking" else TextDelta(held)]

    def _begin(self, text: str) -> list[Delta]:
        stripped = text.lstrip()
        if stripped.startswith(_OPENING):
            self._state = "thinking"
            return self._think(stripped.removeprefix(_OPENING))
        if _OPENING.startswith(stripped) and len(text) <= _MOST_BLANKS:
            self._held = text
            return []
        self._state = "text"
        return [TextDelta(text)]

    def _think(self, text: str) -> list[Delta]:
        thought, closed, after = text.partition(_CLOSING)
        if not closed:
            kept = next(size for size in range(len(_CLOSING), -1, -1) if text.endswith(_CLOSING[:size]))
            thought, self._held = text[: len(text) - kept], text[len(text) - kept :]
        deltas: list[Delta] = [ReasoningDelta(thought)] if thought else []
        if closed:
            self._state = "thought"
            deltas += self._speak(after)
        return deltas

    def _speak(self, text: str) -> list[Delta]:
        """The blank lines between a thought and the answer belong to neither."""
        text = text.lstrip()
        if not text:
            return []
        self._state = "text"
        return [TextDelta(text)]
