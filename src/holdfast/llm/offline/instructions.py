"""Reads instructions such as "call the roll_dice tool with 16 sides" as tool calls, and others as people phrase them.

A tool is called when its name follows a verb of calling in the same sentence and the verb is not denied. What follows
the name, up to the next name or the end of the sentence, says how often and with what.

Where nothing is found in this way, sentences are looked for that ask for something: they neither state, ask back nor
deny. Such a sentence means a tool if it begins with its name, does something *with* it, or says all words of the name
beginning with one of them: "roll a 16 sided dice" means `roll_dice`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from holdfast.llm.base import ToolSchema
from holdfast.llm.offline.arguments import (
    NUMBER_WORDS,
    QUOTED,
    Hints,
    Parameters,
    fill,
    hints_in,
    mask_quotes,
    name_words,
    parameters_of,
    stem,
    without_named,
)
from holdfast.llm.offline.patterns import lazily, phrase

_T = TypeVar("_T")
_VERB: Final = r"(?:call|run|use|invoke|execute|trigger)(?:s|ing)?|using"
_ASKS_TO_CALL = re.compile(rf"\b(?:{_VERB})\b", re.IGNORECASE)
_DENIES_CALLING = re.compile(
    rf"(?:\bnot|n['’]t|\bnever|\bwithout|\bstop)\s+(?:\w+\s+){{0,2}}(?:{_VERB})\b", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_LATER = re.compile(r"\b(?:then|afterwards|after that|finally)\b", re.IGNORECASE)
_TIMES = re.compile(rf"\b(?:(\d+|{'|'.join(NUMBER_WORDS)})\s+times|(once)|(twice)|(thrice))\b", re.IGNORECASE)
# A person's instruction is shorter; what is pasted below it would take minutes to look through.
READ_CHARS: Final = 4_000
_MOST_TIMES: Final = 100
_MOST_CALLS: Final = 200  # fewer than a reply may make
_MUST_CALL = re.compile(r"\bmust call\b(.*)", re.IGNORECASE | re.DOTALL)
# Which tools are asked for in words of their own (see `remembering`), or not by people at all.
_SET_APART = lazily(r"send_message\w*|(?:core_|archival_)?memory(?:_\w+)?|conversation_search", re.IGNORECASE)
_SENTENCE = lazily(r"[^.!?\n]+(?:[.!?](?!\s|$)[^.!?\n]*)*[.!?]*")
_COURTESY: Final = (
    r"please|pls|ok|okay|hey|hi|hello|now|then|so|and|also|next|first|just|great|thanks|thank you|yes|sure|alright|"
    r"well|kindly|maybe|again|finally|go ahead and|go ahead"
)
_REQUEST: Final = (
    r"(?:can|could|would|will|won['’]t|may) you|can we|(?:i['’]d|i would) (?:like|love) (?:you )?to|"
    r"i (?:want|need) (?:you )?to|you (?:should|must|can|may|could|have to|need to)|let['’]?s|let us|try to|try and|"
    r"feel free to|(?:make|be) sure to|(?:it['’]s )?time to|why don['’]?t you|don['’]?t forget to|i want|i need|"
    r"i['’]d like|give me|show me"
)
_LEAD = lazily(rf"[^\w'\"`“‘]*(?:(?:{_COURTESY}|{_REQUEST})\b[\s,:;!–—-]*){{1,8}}", re.IGNORECASE)
_STATES = lazily(
    r"(?:i|we|he|she|it|they|you|there|this|that|these|those|my|your|our|his|her|their|thank|thanks|sorry|if|because|"
    r"when|while|what|why|how|who|whom|where|which|whose|is|are|was|were|am|do (?:i|we|you|they)|does|did|has|have|had|"
    r"should|explain|describe|define|document|ignore|forget|skip|avoid|stop|remove|delete|detach|disable|list|compare|"
    r"mention|discuss|tell me (?:about|what|how|why|when|who)|no|not|never|don['’]?t|won['’]?t|nothing)\b",
    re.IGNORECASE,
)
_DENIES = lazily(r"\b(?:not|never|without|stop|avoid|refrain|instead of)\b|n['’]t\b", re.IGNORECASE)
_MEANS = lazily(
    r"(?:\b(?:with|via|by|through|using|from|on)|[:→])\s+(?:(?:the|your|our|my|a|an|tool|function)\s+){0,2}$",
    re.IGNORECASE,
)
_CALLING: Final = "call|run|use|invoke|execute|trigger|try|test"
_TRIES = lazily(
    rf"\b(?:{_CALLING}|do|start|launch|perform|make|fire|apply|query|ask|check|let|have|give|show|get)"
    r"\s+(?:\w+\s+){0,3}$",
    re.IGNORECASE,
)
_STATED_OF = lazily(
    r"\s+(?:is|was|are|were|has|had|does|did|do|can|could|should|will|would|might|must|seems?|looks?|returns?|returned|"
    r"fails?|failed|works?|worked|means?|isn['’]t|doesn['’]t|won['’]t)\b",
    re.IGNORECASE,
)
_THE_TOOL = lazily(rf"\b(?:{_CALLING})\s+(?:the|your|a|that|this|my|one)\s+(?:tool|function)\b", re.IGNORECASE)
_ASKED_FOR = lazily(_REQUEST, re.IGNORECASE)
_ARTICLE = lazily(r"\b(?:the|an?|your|some)\b", re.IGNORECASE)
_WORD = lazily(r"\w+")
_GETTING: Final = frozenset({"get", "fetch", "find", "show", "check", "read"})
_DICE = lazily(r"\b(\d*)d(\d{1,4})\b", re.IGNORECASE)
_INTRODUCES = lazily(r"(?:^|\s)(?:with|for|about|saying|that says|of|in|on|at|to|from|as)\s+|[:=(]\s*", re.IGNORECASE)
_CALLED_THAT = lazily(
    r"(?:the\s+)?(?:following\s+)?(?:message|text|query|input|argument|parameter|word|string|value|phrase)s?\b\s*(?::|=|of|is|as)?\s*",
    re.IGNORECASE,
)
_AFTERTHOUGHT = phrase(
    r"\b(?:(?:and|then|so)\s+(?:then\s+)?(?:reply|tell|report|show|give|let|return|say|answer|send|print|call|run|use|"
    r"explain|what)\b.*|(?:please|thanks|thank you|for me|right now|now|again|immediately|once|twice))$"
)
_EDGES: Final = " \t\r\n,;:()"
_NEAR_CHARS: Final = 80  # before a name, in which it is told what is done with it
_EMPTY_WORDS = lazily(
    r"(?:\W|(?<!\w)(?:it|this|that|me|us|the|a|an|and|or|then|to|tool|function|parallel|turn|order|once|twice|again|now|please|"
    r"fun|test|testing|any|some|whatever|default|defaults|arguments?|parameters?|no|both|all|everything)(?!\w))*+",
    re.IGNORECASE,
)


class PlannedCall(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any]
    stage: int = 0  # calls of a later stage wait for the results of the earlier ones


class _Mention(msgspec.Struct, frozen=True):
    tool: ToolSchema
    before: str
    after: str
    stage: int


class Sentence(msgspec.Struct, frozen=True):
    text: str  # without courtesies before it, and marks behind
    masked: str  # the same with quotes blanked out
    requested: bool  # "can you …", "give me …"

    @property
    def asks(self) -> bool:
        """For something to be done. What it begins with tells, and whether anything in it denies."""
        return _STATES().match(self.text) is None and _DENIES().search(self.masked) is None


class Meant(msgspec.Struct, frozen=True):
    """A tool that a sentence means, and what else it says."""

    tool: ToolSchema
    before: str
    after: str


def planned_calls(text: str, tools: Sequence[ToolSchema]) -> tuple[PlannedCall, ...]:
    calls = (call for mention in _mentions(text[:READ_CHARS], tools) for call in _calls_of(mention))
    return tuple(islice(calls, _MOST_CALLS))


def understood_calls(text: str, tools: Sequence[ToolSchema]) -> tuple[PlannedCall, ...]:
    """Of a text in which nothing is asked for by verb and name."""
    meant = meant_tools(text[:READ_CHARS], tools)
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
    parameters = parameters_of(tool.parameters)
    hints = hints_in(_TIMES.sub(" ", text[:READ_CHARS]), parameters)
    return PlannedCall(tool.name, fill(tool.name, parameters, hints))


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
        is_request = (is_request and sentence == lead) or _ASKS_TO_CALL.search(sentence) is not None
        is_request = is_request and _DENIES_CALLING.search(sentence) is None
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
    parameters = parameters_of(tool.parameters)
    hints = hints_in(after, parameters)
    words = spoken_value(without_named(after, hints), introduced=not loosely)
    if not hints.quotes and not hints.numbers and not hints.named and not words:
        hints = hints_in(mention.before, parameters)
        words = spoken_object(mention.before)
    spread = _spread(msgspec.structs.replace(hints, words=words), parameters, count)
    return [PlannedCall(tool.name, fill(tool.name, parameters, one), mention.stage) for one in spread]


def _spread(hints: Hints, parameters: Parameters, count: int | None) -> list[Hints]:
    """One set of hints per call: more quoted texts than one call can take mean several calls."""
    kinds = {name: parameters.kinds[name] for name in parameters.spoken}
    strings = [name for name, kind in kinds.items() if kind == "string"]
    lists = "array" in kinds.values()
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


def sentences(text: str) -> list[Sentence]:
    masked = mask_quotes(text)
    found: list[Sentence] = []
    for match in _SENTENCE().finditer(masked):
        lead = _LEAD().match(text, match.start(), match.end())
        begin = lead.end() if lead else match.start()
        start = match.end() - len(text[begin : match.end()].lstrip())
        end = start + len(text[start : match.end()].rstrip(" \t\r\n.!?"))
        if start < end:
            requested = lead is not None and _ASKED_FOR().search(lead[0]) is not None
            found.append(Sentence(text[start:end], masked[start:end], requested))
    return found


def meant_tools(text: str, tools: Sequence[ToolSchema]) -> list[Meant]:
    if not tools:
        return []
    pattern = _spelled_loosely(tools)
    found = [meant for one in sentences(text) if one.asks for meant in _meant_in(one, tools, pattern)]
    first = dict[str, Meant]()
    for meant in found:  # who names a tool again goes on about the first time
        first.setdefault(meant.tool.name, meant)
    return list(first.values())


def spoken_value(words: str, *, introduced: bool) -> str:
    """What an instruction gives a tool without quotes: "hello world" of "with hello world, please". `introduced`: only
    behind a word such as `with`."""
    if QUOTED.search(words):
        return ""
    opening = _INTRODUCES().search(words)
    if opening is None and introduced:
        return ""
    value = words[opening.end() :] if opening else words
    while (opening := _INTRODUCES().match(value)) is not None:  # "to … saying …", when whom it goes to is known
        value = value[opening.end() :]
    value = _CALLED_THAT().sub("", value.strip(), count=1)
    for _ in range(3):  # "and tell me, please"
        value = _AFTERTHOUGHT().sub("", value.strip(_EDGES), count=1)
    value = value.strip(_EDGES)
    return "" if is_filler(value) else value


def is_filler(words: str) -> bool:
    """Whether they say nothing by themselves: "it, please"."""
    return _EMPTY_WORDS().fullmatch(words) is not None


def spoken_object(before: str) -> str:
    """What stands between a verb and the tool that it is done with: "hello" of "say hello with"."""
    words = _MEANS().sub("", before.strip() + " ")
    return spoken_value(words.partition(" ")[2] if _INTRODUCES().search(words) is None else words, introduced=False)


def _meant_in(sentence: Sentence, tools: Sequence[ToolSchema], pattern: re.Pattern[str]) -> Iterator[Meant]:
    masked = sentence.masked
    by_name = [match for match in pattern.finditer(masked) if _is_asked_of(masked, match)]
    for index, match in enumerate(by_name):
        stop = by_name[index + 1].start() if index + 1 < len(by_name) else len(masked)
        before = sentence.text[: match.start()] if index == 0 else ""
        yield Meant(tools[int((match.lastgroup or "")[1:])], before, sentence.text[match.end() : stop])
    if by_name:
        return
    if (tool := _tool_in_words(sentence, tools)) is not None:
        yield Meant(tool, "", _besides_words(sentence.text, tool))
    elif _THE_TOOL().search(masked):
        own = [tool for tool in tools if not _SET_APART().fullmatch(tool.name)]
        if len(own) == 1:
            yield Meant(own[0], "", _THE_TOOL().sub(" ", sentence.text))


def _is_asked_of(masked: str, match: re.Match[str]) -> bool:
    before = masked[max(0, match.start() - _NEAR_CHARS) : match.start()]
    if match.start() < _NEAR_CHARS and not _ARTICLE().sub("", before).strip():
        return _STATED_OF().match(masked, match.end()) is None
    return _MEANS().search(before) is not None or _TRIES().search(before) is not None


def _spelled_loosely(tools: Sequence[ToolSchema]) -> re.Pattern[str]:
    """`roll_dice`, `Roll-Dice`, `roll dice`, `rollDice`, each with or without `tool` behind it. Groups tell which."""
    forms: list[tuple[int, str]] = []
    for index, tool in enumerate(tools):
        spelled = re.escape(tool.name)
        words = _words_of(tool)
        if words and not _SET_APART().fullmatch(tool.name):
            spelled += "|" + r"[\s_-]?".join(map(re.escape, words))
        forms.append((index, rf"(?P<t{index}>(?:{spelled})(?:[\s_-](?:tool|function))?)"))
    forms.sort(key=lambda form: -len(tools[form[0]].name))
    return re.compile(rf"(?<!\w)(?:{'|'.join(form for _, form in forms)})(?!\w)", re.IGNORECASE)


def _words_of(tool: ToolSchema) -> list[str]:
    words = name_words(tool.name)
    return words[:-1] if len(words) > 1 and words[-1] in ("tool", "function") else words


def _tool_in_words(sentence: Sentence, tools: Sequence[ToolSchema]) -> ToolSchema | None:
    """The one most of whose words are said, if all are; what only says that something is fetched may be left out by
    who says "give me"."""
    words = [stem(word) for word in _WORD().findall(_DICE().sub(r"\1 dice \2", _ARTICLE().sub(" ", sentence.masked)))]
    best: tuple[int, ToolSchema] | None = None
    for tool in tools:
        wanted = {stem(word) for word in _words_of(tool)}
        if sentence.requested and len(wanted) > 1:
            wanted -= _GETTING
        elif len(wanted) < 2:
            continue
        complete = words[:1] and words[0] in wanted and wanted <= set(words)
        if complete and not _SET_APART().fullmatch(tool.name) and len(wanted) > (best[0] if best else 0):
            best = len(wanted), tool
    return best[1] if best else None


def _besides_words(text: str, tool: ToolSchema) -> str:
    """What is said besides the words of the name."""
    own = {stem(word) for word in _words_of(tool)}
    if "dice" in own:
        text = _DICE().sub(r"\1 dice \2", text)
    return _WORD().sub(lambda match: " " if stem(match[0]) in own else match[0], text)
