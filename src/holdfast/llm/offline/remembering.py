"""Understands what is to be remembered, and what is asked about it.

"Remember that I like tea" becomes a call of whichever memory tool the agent has. Questions about memory are answered
from the blocks in the system prompt, which is all that a model knows of them; archival memory and earlier messages are
searched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.llm.base import ToolSchema
from holdfast.llm.offline.arguments import QUOTED, Hints, fill, parameters_of, properties_of, quoted_value
from holdfast.llm.offline.instructions import READ_CHARS, PlannedCall, is_filler, sentences
from holdfast.llm.offline.patterns import lazily, phrase

_HUMAN: Final = "human"
_NEW_BLOCK: Final = "notes"
# What changes memory. A run that called nothing else has done what it was asked to.
KEEPING: Final = frozenset(
    {
        "archival_memory_insert",
        "core_memory_append",
        "memory",
        "memory_apply_patch",
        "memory_insert",
        "memory_rethink",
    }
)

_KEEP: Final = (
    r"remember|memori[sz]e|keep in mind|(?:do not|don['’]?t|never) forget|(?:make|take) a note|"
    r"note(?=\s+(?:that|down)\b)|write down|"
    r"(?:save|store|record|add|put|write|append|insert)(?=\s+(?:this|that|the following|it|in|to|into)\b)|"
    r"update your memory"
)
_PLACE: Final = (
    r"(?:to|in|into|for|of|with)\s+(?:your|the|my|our)?\s*(?:(?:core|archival|long[- ]?term|own)\s+)?"
    r"(?:memory|memories|archive|notes|(?:memory )?block\s+\w+|\w+\s+(?:memory )?block|later|me)"
)
# "remember that …", "note in your memory: …"
_SAID_AFTER = phrase(
    rf"(?:{_KEEP})(?:\s+(?:this|the following|it|down|{_PLACE}))*\s*(?:[:,–—-]|\bthat\b)\s*(?P<fact>\S.*)"
)
# "remember I like tea", "remember my name is Ada", "remember to water the plants"
_SAID_AT_ONCE = phrase(
    rf"(?:{_KEEP})\s+(?P<fact>[\"'`“‘].+|(?:i(?:['’]\w+)?|we|he|she|they|it|to|the user|user)\s+\S.*|"
    r"(?:my|our|his|her|their|the)\s+.*\b(?:is|are|was|were|has|have|likes?|lives?|wants?|=)\s+\S.*)"
)
# "add 'likes tea' to your memory", "save I like tea in the human block"
_SAID_BETWEEN = phrase(
    r"(?:remember|save|store|record|add|put|write|append|insert|keep)\s+(?P<fact>\S.*?)\s+"
    r"(?:to|in|into)\s+(?:your|the|my|our)?\s*(?:(?:core|archival|long[- ]?term|own)\s+)?"
    r"(?:memory|memories|archive|notes|memory block\b.*|\w+\s+(?:memory )?block)"
)
# "I like tea. Remember that!"
_SAID_BEFORE = phrase(
    r"(?P<fact>\S.*?)[\s.,;!–—-]++(?:(?:please|and|so)[\s,]++)*+(?:remember|note|memori[sz]e|keep|save|store)\s+(?:that|this|it)"
    rf"(?:\s+(?:down|please|in mind|{_PLACE}))*\W*"
)
_ARCHIVAL = lazily(r"\b(?:archiv\w+|long[- ]?term)\b", re.IGNORECASE)
_BLOCK = lazily(r"\bblock\s+[\"'`]?(\w+)|[\"'`]?(\w+)[\"'`]?\s+(?:memory )?block\b", re.IGNORECASE)

_LOOK: Final = r"(?:search|look|check|browse|query|recall|find)"
_SEARCHED = phrase(
    rf"{_LOOK}\s+(?:up\s+|in\s+|through\s+|into\s+)?(?:your\s+|the\s+|our\s+|my\s+)?(?P<where>[\w\s-]*?)\s*"
    r"\b(?:for|about)\s+(?P<query>\S.*)"
)
_RECALLED = phrase(
    r"(?:recall|do you (?:remember|recall)|what do you (?:remember|recall) (?:about|of))\s+(?P<query>\S.*)"
)
_SAID_EARLIER = phrase(
    r"(?:what|when) did (?:i|we|you) (?:say|tell you|talk|speak|discuss|mention)(?:\s+(?:about|of|on))?\s+"
    r"(?P<query>\S.*)"
)
_CONVERSATION = lazily(r"\b(?:conversations?|history|messages?|chats?|talks?)\b", re.IGNORECASE)
_MEMORY = lazily(r"\b(?:memory|memories|archive|archival|notes|passages?)\b", re.IGNORECASE)
_ABOUT_MEMORY = phrase(
    r"(?:what|which)\b.*\byou (?:still )?(?:remember|know|recall)\b|do you (?:still )?(?:remember|know|recall)\b|"
    r"(?:(?:what|show|read|tell me|list|print)\b.*\b)?your (?:core )?(?:memory|memories|memory blocks?)\W*$|"
    r"what(?:['’]s| is| are)\b.*\byour (?:core )?(?:memory|memories)\b|"
    r"(?:what|who|where)(?:['’]s| is| are| was) my\b|(?:who|what|where|how old) am i\b|"
    r"(?:what|who|where|which)\b.*\bdo i\b|(?:tell me|what)\b.*\babout me\b"
)
_OF_THE_PERSON = lazily(r"\b(?:i|me|my|mine)\b", re.IGNORECASE)
_SHOWN_BLOCKS = lazily(r"<memory_blocks>\n(.*?)\n</memory_blocks>", re.DOTALL)
_SHOWN_BLOCK = lazily(
    r"^<(?P<label>[^<>\s]+)>\n<description>\n.*?\n</description>\n<metadata>\n(?P<metadata>.*?)\n</metadata>\n"
    r"(?:<warning>\n.*?\n</warning>\n)?<value>\n(?P<value>.*?)\n</value>\n</(?P=label)>$",
    re.DOTALL | re.MULTILINE,
)
_LINE_NUMBER = lazily(r"^\d+→ ?", re.MULTILINE)


class ShownBlock(msgspec.Struct, frozen=True):
    label: str
    value: str
    read_only: bool


def shown_blocks(system: str) -> list[ShownBlock]:
    """The memory blocks as a system prompt shows them."""
    section = _SHOWN_BLOCKS().search(system)
    found = _SHOWN_BLOCK().finditer(section[1]) if section else ()
    return [ShownBlock(one["label"], _unnumbered(one["value"]), "read_only=true" in one["metadata"]) for one in found]


def fact_to_keep(text: str) -> str | None:
    """What a person wants remembered, in the person's words."""
    text = text[:READ_CHARS].strip()
    for sentence in sentences(text):
        for pattern in (_SAID_BETWEEN, _SAID_AFTER, _SAID_AT_ONCE):
            match = pattern().match(sentence.text)
            if match is not None and not is_filler(fact := _bare(match["fact"])):
                return fact
    behind = _SAID_BEFORE().fullmatch(text)
    return _bare(behind["fact"]) if behind and not is_filler(_bare(behind["fact"])) else None


def memory_calls(text: str, system: str, tools: Sequence[ToolSchema]) -> tuple[PlannedCall, ...]:
    """The call that keeps or looks for what the text speaks of; none if no tool can."""
    if not tools:
        return ()
    offered = {tool.name: tool for tool in tools}
    fact = fact_to_keep(text)
    ways = _ways_to_search(text[:READ_CHARS]) if fact is None else _ways_to_keep(fact, text, shown_blocks(system))
    for name, arguments in ways:
        tool = offered.get(name)
        if tool is not None and arguments.keys() <= properties_of(tool.parameters).keys():
            return (PlannedCall(name, fill(name, parameters_of(tool.parameters), Hints(named=dict(arguments)))),)
    return ()


def answer_from_memory(text: str, system: str) -> str | None:
    """The answer to a question about what is remembered; None if it is none, or nothing is."""
    known = [block for block in shown_blocks(system) if block.value]
    if not known or not any(_ABOUT_MEMORY().match(sentence.text) for sentence in sentences(text[:READ_CHARS])):
        return None
    return "My memory says: " + " ".join(f"{block.label}: {_ended(block.value)}" for block in known)


def _ways_to_keep(fact: str, text: str, blocks: Sequence[ShownBlock]) -> list[tuple[str, Mapping[str, Any]]]:
    """Tools and arguments, best first."""
    archival = ("archival_memory_insert", {"content": fact})
    block = _block_for(text, blocks)
    if block is None:
        new = {"command": "create", "path": f"/memories/{_NEW_BLOCK}", "description": "", "file_text": fact}
        return [archival, ("memory", new)]
    label = block.label
    core: list[tuple[str, Mapping[str, Any]]] = [
        ("memory_insert", {"label": label, "new_string": fact}),
        ("core_memory_append", {"label": label, "content": fact}),
        ("memory", {"command": "insert", "path": f"/memories/{label}", "insert_text": fact}),
        ("memory_apply_patch", {"label": label, "patch": f"+{fact}".replace("\n", "\n+")}),
        ("memory_rethink", {"label": label, "new_memory": f"{block.value}\n{fact}".strip()}),
    ]
    return [archival, *core] if _ARCHIVAL().search(text) else [*core, archival]


def _block_for(text: str, blocks: Sequence[ShownBlock]) -> ShownBlock | None:
    """The block that is named, else the one about the person, else the first that may be changed."""
    writable = {block.label: block for block in blocks if not block.read_only}
    named = next((writable[label] for pair in _BLOCK().findall(text) for label in pair if label in writable), None)
    return named or writable.get(_HUMAN) or next(iter(writable.values()), None)


def _ways_to_search(text: str) -> list[tuple[str, Mapping[str, Any]]]:
    archival, earlier = "archival_memory_search", "conversation_search"
    for sentence in sentences(text):
        if match := _SAID_EARLIER().match(sentence.text):
            return [(earlier, {"query": _bare(match["query"])})]
        if match := _SEARCHED().match(sentence.text):
            order = (earlier, archival) if _CONVERSATION().search(match["where"]) else (archival, earlier)
            if _CONVERSATION().search(match["where"]) or _MEMORY().search(match["where"]):
                return [(name, {"query": _bare(match["query"])}) for name in order]
        # What it knows of the person is in view.
        if (match := _RECALLED().match(sentence.text)) and not _OF_THE_PERSON().search(match["query"]):
            return [(archival, {"query": _bare(match["query"])})]
    return []


def _bare(words: str) -> str:
    """Without the quotes around it, if it is all in quotes."""
    words = words.strip().strip(" ,;:–—-")
    quoted = QUOTED.fullmatch(words)
    return (quoted_value(quoted) if quoted else words).strip()


def _unnumbered(value: str) -> str:
    return _LINE_NUMBER().sub("", value).strip()


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
