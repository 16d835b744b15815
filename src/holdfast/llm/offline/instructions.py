"""Reads plain instructions such as "call the roll_dice tool with 16 sides" as tool calls.

A tool is called when its name follows a verb of calling in the same sentence and the verb is not denied. What follows
the name, up to the next name or the end of the sentence, says how often and with what.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from holdfast.llm.base import ToolSchema
from holdfast.llm.offline import phrasings
from holdfast.llm.offline.arguments import (
    NUMBER_WORDS,
    Hints,
    fill,
    hints_in,
    mask_quotes,
    spoken_properties,
    without_named,
)
from holdfast.llm.offline.loose_schema import Schema, kind_of

_T = TypeVar("_T")
_VERB: Final = r"(?:call|run|use|invoke|execute|trigger)(?:s|ing)?|using"
_ASKS = re.compile(rf"\b(?:{_VERB})\b", re.IGNORECASE)
_DENIES = re.compile(rf"(?:\bnot|n['’]t|\bnever|\bwithout|\bstop)\s+(?:\w+\s+){{0,2}}(?:{_VERB})\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_LATER = re.compile(r"\b(?:then|afterwards|after that|finally)\b", re.IGNORECASE)
_TIMES = re.compile(rf"\b(?:(\d+|{'|'.join(NUMBER_WORDS)})\s+times|(once)|(twice)|(thrice))\b", re.IGNORECASE)
# A person's instruction is shorter; what is pasted below it would take minutes to look through.
_READ_CHARS: Final = 4_000
_MOST_TIMES: Final = 100
_MOST_CALLS: Final = 200  # fewer than a reply may make
_MUST_CALL = re.compile(r"\bmust call\b(.*)", re.IGNORECASE | re.DOTALL)


class PlannedCall(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any]
    stage: int = 0  # calls of a later stage wait for the results of the earlier ones


class _Mention(msgspec.Struct, frozen=True):
    tool: ToolSchema
    before: str
    after: str
    stage: int


def planned_calls(text: str, tools: Sequence[ToolSchema]) -> tuple[PlannedCall, ...]:
    calls = (call for mention in _mentions(text[:_READ_CHARS], tools) for call in _calls_of(mention))
    return tuple(islice(calls, _MOST_CALLS))


def understood_calls(text: str, tools: Sequence[ToolSchema]) -> tuple[PlannedCall, ...]:
    """Of a text in which nothing is asked for by verb and name."""
    meant = phrasings.meant_tools(text[:_READ_CHARS], tools)
    calls = (call for one in meant for call in _calls_of(_Mention(one.tool, one.before, one.after, 0), loosely=True))
    return tuple(islice(calls, _MOST_CALLS))


def demanded_tools(alert: str, tools: Sequence[ToolSchema]) -> tuple[str, ...]:
    """The tools an automatic message such as "You must call X at least once" insists on."""
    demand = _MUST_CALL.search(alert)
    if demand is None or not tools:
        return ()
    pattern, by_name = _name_pattern(tools)
    return tuple(dict.fromkeys(by_name[match[0]].name for match in pattern.finditer(demand[1])))


def loose_call(tool: ToolSchema, text: str) -> PlannedCall:
    """A call that must be made whether or not the text speaks of the tool."""
    hints = hints_in(_TIMES.sub(" ", text[:_READ_CHARS]), tool.parameters)
    return PlannedCall(tool.name, fill(tool.name, tool.parameters, hints))


def _mentions(text: str, tools: Sequence[ToolSchema]) -> list[_Mention]:
    if not tools:
        return []
    masked = mask_quotes(text)
    pattern, by_name = _name_pattern(tools)
    matches = list(pattern.finditer(masked))
    found: list[_Mention] = []
    is_request, end, stage = False, 0, 0
    for index, match in enumerate(matches):
        lead = masked[end : match.start()]
        sentence = _SENTENCE_END.split(lead)[-1]
        is_request = (is_request and sentence == lead) or _ASKS.search(sentence) is not None
        is_request = is_request and _DENIES.search(sentence) is None
        stage += bool(found) and _LATER.search(lead) is not None
        stop = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        stopped = _SENTENCE_END.search(masked, match.end(), stop)
        if is_request:
            before = text[match.start() - len(sentence) : match.start()] if not found else ""
            after = text[match.end() : stopped.start() if stopped else stop]
            found.append(_Mention(by_name[match[0]], before, after, stage))
        end = match.end()
    return found


def _name_pattern(tools: Sequence[ToolSchema]) -> tuple[re.Pattern[str], Mapping[str, ToolSchema]]:
    """Names as offered; `roll_dice` also answers to `roll_dice_tool`, and `roll_dice_tool` to `roll_dice tool`."""
    exact = {tool.name: tool for tool in tools}
    spellings: dict[str, ToolSchema] = {}
    for tool in tools:
        spellings[f"{tool.name}_tool"] = tool
        short = tool.name.removesuffix("_tool")
        if short not in exact:
            spellings[f"{short} tool"] = tool
    spellings |= exact
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"), spellings


def _calls_of(mention: _Mention, *, loosely: bool = False) -> list[PlannedCall]:
    tool = mention.tool
    if given := _json_objects(mention.after):
        return [PlannedCall(tool.name, arguments, mention.stage) for arguments in given]
    times = _TIMES.search(mask_quotes(mention.after))
    count = _times(times) if times else None
    after = mention.after if times is None else mention.after[: times.start()] + mention.after[times.end() :]
    hints = hints_in(after, tool.parameters)
    words = phrasings.spoken_value(without_named(after, hints), introduced=not loosely)
    if not hints.quotes and not hints.numbers and not hints.named and not words:
        hints = hints_in(mention.before, tool.parameters)
        words = phrasings.spoken_object(mention.before)
    spread = _spread(msgspec.structs.replace(hints, words=words), tool.parameters, count)
    return [PlannedCall(tool.name, fill(tool.name, tool.parameters, one), mention.stage) for one in spread]


def _spread(hints: Hints, parameters: Schema, count: int | None) -> list[Hints]:
    """One set of hints per call: more quoted texts than one call can take mean several calls."""
    strings = [
        name for name, schema in spoken_properties(parameters).items() if kind_of(schema, parameters) == "string"
    ]
    lists = any(kind_of(schema, parameters) == "array" for schema in spoken_properties(parameters).values())
    quotes, named = hints.quotes, hints.named
    if quotes and len(strings) == 1 and strings[0] in named:
        # `operations: 'ls', 'pwd'` ties the first value to the name although it speaks of all of them.
        quotes = (named[strings[0]], *quotes)
        named = {name: value for name, value in named.items() if name != strings[0]}
    takes = 0 if lists else len(strings)
    calls = count or max(1, -(-len(quotes) // takes) if takes else 1)
    return [
        Hints(_share(quotes, index, calls), _share(hints.numbers, index, calls), named, hints.words)
        for index in range(calls)
    ]


def _share(values: tuple[_T, ...], index: int, calls: int) -> tuple[_T, ...]:
    """The values of one call: the same for all of them when there are too few to go round."""
    if len(values) < calls:
        return values
    size = -(-len(values) // calls)
    return values[index * size : (index + 1) * size]


def _times(match: re.Match[str]) -> int:
    if match[1]:
        return min(int(match[1]), _MOST_TIMES) if match[1].isdigit() else NUMBER_WORDS[match[1].lower()]
    return 1 if match[2] else 2 if match[3] else 3


def _json_objects(text: str) -> list[dict[str, Any]]:
    decoder, found, at = json.JSONDecoder(), list[dict[str, Any]](), text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found.append(value)
        at = text.find("{", end)
    return found
