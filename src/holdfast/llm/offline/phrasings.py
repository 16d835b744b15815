"""Understands how people ask who were not told how: which sentences ask for something, and which tool they mean.

Consulted only where `instructions` finds nothing. A sentence asks for something if it neither states, asks back nor
denies. It means a tool if it begins with its name, does something *with* it, or says all words of the name beginning
with one of them: "roll a 16 sided dice" means `roll_dice`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.llm.base import ToolSchema
from holdfast.llm.offline.arguments import QUOTED, mask_quotes, name_words, stem
from holdfast.llm.offline.patterns import lazily, phrase

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
    pattern = _name_pattern(tools)
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


def _name_pattern(tools: Sequence[ToolSchema]) -> re.Pattern[str]:
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
