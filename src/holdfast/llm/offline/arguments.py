"""Arguments for a tool, filled from its JSON schema and from what an instruction says in quotes, numbers and names.

Whoever made a tool wrote its schema, so nothing in it need be what it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeGuard, cast

import msgspec

from holdfast.llm.offline.patterns import lazily

Schema = Mapping[str, Any]

QUOTED = re.compile(r"(?<!\w)'([^'\n]*(?:'\w[^'\n]*)*)'(?!\w)|\"([^\"]*)\"|`([^`]*)`|“([^”]*)”|‘([^’]*)’")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,300}(?:\.\d+)?(?!\d)")  # with more digits it would be infinite
_COUNTED: Final = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen",
    "eighteen nineteen twenty",
)
NUMBER_WORDS: Final = {word: number for number, word in enumerate(" ".join(_COUNTED).split(), start=1)}
# "One" is more often no number.
_NUMBER_WORD = lazily(rf"\b(?:{'|'.join(word for word in NUMBER_WORDS if word != 'one')})\b", re.IGNORECASE)
_YES: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SWITCH = lazily(r"\b(\w++)\s*+(?:[=:]\s*+|(?:is|to)\s++)?(true|false|yes|no|on|off)\b", re.IGNORECASE)
_ADDRESSES: Final = (
    (lazily(r"\bhttps?://[^\s'\"<>)\]]*[^\s'\"<>)\].,;!?]"), ("url", "uri", "link", "href", "page", "site")),
    (
        lazily(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}\b"),
        ("email", "mail", "to", "recipient"),
    ),
)
_NAME_WORD = lazily(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_a-zA-Z]+")
_ITEM_END = lazily(r"\s*,\s*(?:and\s+)?|\s+and\s+")
_VALUE_END = lazily(r"[,;\n)]|\s+and\s")
# Of several arguments, those that words without quotes are for.
_CONTENT: Final = frozenset({"body", "content", "input", "message", "prompt", "query", "question", "text"})
_MOST_NUMBERS: Final = 200  # that are read: no call takes more
_NAME_CHARS: Final = 200  # that a name, and what stands between it and its value, may have
# What the server itself adds to the schemas of older kinds of agent; no user speaks of them.
_ADDED: Final = frozenset({"request_heartbeat", "thinking"})
_FALLBACK_TEXT: Final = "offline"
_MOST_DEPTH: Final = 8  # of references that lead to references
_MOST_VALUES: Final = 100  # in one example: schemas may contain themselves, more than once


class Hints(msgspec.Struct, frozen=True):
    """What an instruction offers: quoted texts and numbers not tied to a name, and values that are; and, if there are
    no quotes, the words that may be meant as one."""

    quotes: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    named: dict[str, Any] = {}
    words: str = ""


class Parameters(msgspec.Struct, frozen=True):
    """What is asked of a tool's schema again and again, read once."""

    schema: Schema
    properties: dict[str, Schema]
    required: list[str]
    kinds: dict[str, str]  # of the properties
    spoken: list[str]  # the properties an instruction may give a value for

    def allowed(self, name: str) -> list[Any]:
        """The values that the argument must be one of; none when it may be any."""
        return _list_of(_resolved(self.properties.get(name, {}), self.schema).get("enum"))

    def lists_numbers(self, name: str) -> bool:
        return _numeric(_resolved(self.properties[name], self.schema).get("items"), self.schema)


def parameters_of(schema: Schema) -> Parameters:
    properties = properties_of(schema)
    return Parameters(
        schema,
        properties,
        _required_of(schema),
        {name: kind_of(one, schema) for name, one in properties.items()},
        [name for name in properties if name not in _ADDED],
    )


def fill(tool_name: str, parameters: Parameters, hints: Hints) -> dict[str, Any]:
    """Every required argument, and optional ones that the instruction gives a value for; in the schema's order."""
    properties, required = parameters.properties, parameters.required
    values: dict[str, Any] = {name: value for name, value in hints.named.items() if name in properties}
    wanted = [name for name in required if name in properties] + [name for name in properties if name not in required]
    free = [name for name in wanted if name not in values and name not in _ADDED]
    if hints.quotes:
        _take_quotes(values, free, parameters, iter(hints.quotes))
    if hints.numbers:
        _take_numbers(values, free, parameters, iter(hints.numbers))
    if hints.words:
        _take_words(values, parameters, hints.words)
    for name in required:
        if name not in values:
            schema = properties.get(name, {})
            values[name] = _added(name, tool_name) if name in _ADDED else example(schema, parameters.schema)
    return {name: values[name] for name in (*properties, *values) if name in values}


def hints_in(text: str, parameters: Parameters) -> Hints:
    """Reads one stretch of an instruction. A name right before a value ties the value to it."""
    properties, kinds = parameters.properties, parameters.kinds
    masked = mask_quotes(text)
    named: dict[str, Any] = {}
    quotes: list[str] = []
    for match in QUOTED.finditer(text):
        owner = _owner(masked[: match.start()], properties, named)
        if owner is not None and kinds[owner] == "string":
            named[owner] = quoted_value(match)
        else:
            quotes.append(quoted_value(match))
    for match in _SWITCH().finditer(masked):
        if kinds.get(match[1]) == "boolean":
            named[match[1]] = _YES[match[2].lower()]
    for found_in in (_addresses_in, _choices_in, _said_in):
        named |= found_in(masked, parameters, named)
    return Hints(tuple(quotes), _numbers_in(masked, parameters, named), named)


def without_named(text: str, hints: Hints) -> str:
    """What is left of an instruction when words that were tied to a name are taken out, with the name."""
    for name, value in hints.named.items():
        if isinstance(value, str) and value:
            spelled, given = re.escape(name), re.escape(value)
            text = re.sub(rf"(?:\b{spelled}\s*(?:[:=]|\bis\b|\bas\b)?\s*)?{given}", " ", text, count=1)
    return text


def mask_quotes(text: str) -> str:
    """The same text with quoted stretches blanked out, so that nothing inside them is read as an instruction."""
    return QUOTED.sub(lambda match: " " * len(match[0]), text)


def quoted_value(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group is not None), "")


def _take_quotes(values: dict[str, Any], free: list[str], parameters: Parameters, quotes: Iterator[str]) -> None:
    for name in free:
        kind = parameters.kinds[name]
        if kind == "array" and (rest := list(quotes)):
            values[name] = rest
        elif kind == "string" and (quote := next(quotes, None)) is not None:
            allowed = parameters.allowed(name)
            values[name] = quote if not allowed or quote in allowed else allowed[0]


def _take_numbers(values: dict[str, Any], free: list[str], parameters: Parameters, numbers: Iterator[float]) -> None:
    for name in free:
        kind = parameters.kinds[name]
        if kind in ("integer", "number") and (number := next(numbers, None)) is not None:
            values[name] = int(number) if kind == "integer" or number.is_integer() else number
        elif kind == "array" and name not in values and parameters.lists_numbers(name) and (rest := list(numbers)):
            values[name] = [int(number) if number.is_integer() else number for number in rest]


def _take_words(values: dict[str, Any], parameters: Parameters, words: str) -> None:
    """Words without quotes go to the first argument that must have some, or that is there for words."""
    open_names: list[str] = []
    for name in parameters.required:
        kind = parameters.kinds.get(name, "string")
        takes = kind == "string" or (kind == "array" and not parameters.lists_numbers(name))
        if takes and name not in values and name not in _ADDED and not parameters.allowed(name):
            open_names.append(name)
    if open_names:
        name = next((name for name in open_names if _CONTENT & set(name_words(name))), open_names[0])
        is_list = parameters.kinds.get(name) == "array"
        values[name] = [one for one in _ITEM_END().split(words) if one] if is_list else words


def _numbers_in(masked: str, parameters: Parameters, named: dict[str, Any]) -> tuple[float, ...]:
    """Ties numbers to names where names stand beside them, and gives the rest in order."""
    matches = list(islice(_NUMBER.finditer(masked), _MOST_NUMBERS)) or list(_NUMBER_WORD().finditer(masked))
    if not matches:
        return ()
    properties, kinds = parameters.properties, parameters.kinds
    numeric = [name for name in properties if kinds[name] in ("integer", "number")]
    found: list[float] = []
    for match in matches:
        value = float(NUMBER_WORDS.get(match[0].lower(), match[0]))
        owner = _owner(masked[: match.start()], properties, named)
        if owner not in numeric and len(numeric) > 1:
            owner = _follower(masked[match.end() :], numeric, named)
        if owner is not None and owner in numeric:
            whole = kinds[owner] == "integer" or value.is_integer()
            named[owner] = int(value) if whole else value
        else:
            found.append(value)
    return tuple(found)


def _addresses_in(masked: str, parameters: Parameters, taken: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pattern, words in _ADDRESSES:
        match = pattern().search(masked)
        for name in parameters.spoken if match else ():
            if name not in taken and parameters.kinds[name] == "string" and set(name_words(name)) & set(words):
                found[name] = match[0] if match else ""
                break
    return found


def _choices_in(masked: str, parameters: Parameters, taken: Mapping[str, Any]) -> dict[str, Any]:
    """Of an argument that must be one of a few words, the one that is said."""
    found: dict[str, Any] = {}
    for name in parameters.required:
        if not (allowed := parameters.allowed(name)):
            continue
        candidates = (one for one in allowed if isinstance(one, str) and one and name not in taken)
        for one in candidates:
            if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", masked, re.IGNORECASE):
                found[name] = one
                break
    return found


def _said_in(masked: str, parameters: Parameters, taken: Mapping[str, Any]) -> dict[str, Any]:
    """`city: Paris`, `with city Paris`: words behind a name, up to the next name, comma or `and`."""
    names = [name for name in parameters.spoken if name and name not in taken]
    texts = {name for name in names if parameters.kinds[name] == "string"}
    if not texts:
        return {}
    any_name = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    opening = re.compile(
        rf"(?:(?<![\w-])({any_name})\s*[:=]|(?:\b(?:with|and)|,)\s+(?:the\s+)?({any_name})\b(?!\s*[,;)]))\s*"
    )
    found: dict[str, Any] = {}
    for match in opening.finditer(masked):
        name = match[1] or match[2]
        end = _VALUE_END().search(masked, match.end())
        value = masked[match.end() : end.start() if end else len(masked)].strip()
        value = value.removeprefix("is ").removeprefix("as ").strip(" .!?:=()")
        allowed = parameters.allowed(name)
        if name in texts and value and (not allowed or value in allowed):
            found.setdefault(name, value)
    return found


def name_words(name: str) -> list[str]:
    """`roll_dice`, `roll-dice` and `rollDice` are all roll, dice."""
    return [word.lower() for word in _NAME_WORD().findall(name)]


def stem(word: str) -> str:
    """Sides, side, sided; dice, die."""
    word = word.lower()
    return "dice" if word == "die" else word.removesuffix("s").removesuffix("d") if len(word) > 3 else word


def _follower(after: str, numeric: list[str], taken: Mapping[str, Any]) -> str | None:
    """`16 sides` speaks of `num_sides`."""
    match = re.match(r"[\s-]{0,3}(\w{1,64})", after)
    if match is None:
        return None
    word = stem(match[1])
    return next((name for name in numeric if name not in taken and word == stem((name_words(name) or [""])[-1])), None)


def _owner(before: str, properties: Mapping[str, Schema], taken: Mapping[str, Any]) -> str | None:
    """The argument whose name stands right before this place: `operation 'x'`, `num_sides=6`, `inputs: 'a'`."""
    match = re.search(r"(\w+)['\"`]?\s*(?:[=:]|\bis|\bas|\bto|\bof)?\s*$", before[-_NAME_CHARS:])
    if match is None:
        return None
    word = match[1]
    for name in (word, word.removesuffix("s")):
        if name in properties and name not in taken:
            return name
    last = stem(word)
    free = (name for name in properties if name not in taken and name not in _ADDED)
    return next((name for name in free if len(parts := name_words(name)) > 1 and stem(parts[-1]) == last), None)


def _added(name: str, tool_name: str) -> Any:
    return tool_name != "send_message" if name == "request_heartbeat" else "Doing what was asked."


def properties_of(parameters: Schema) -> dict[str, Schema]:
    found = parameters.get("properties")
    if not _is_object(found):
        return {}
    return {name: schema if _is_object(schema) else {} for name, schema in found.items()}


def _required_of(parameters: Schema) -> list[str]:
    return [name for name in _list_of(parameters.get("required")) if isinstance(name, str)]


def kind_of(schema: Schema, root: Schema) -> str:
    """The JSON type that would be sent; of several, the first that is not null."""
    schema = _resolved(schema, root)
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((str(one) for one in cast("list[object]", kind) if one != "null"), "null")
    return kind if kind and isinstance(kind, str) else ("object" if "properties" in schema else "string")


def example(schema: Schema, root: Schema) -> Any:
    """A value that the schema allows, always the same one."""
    return _Example(root).of(schema)


class _Example:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _MOST_VALUES

    def of(self, schema: Schema) -> Any:
        self._left -= 1
        schema = _resolved(schema, self._root)
        for key in ("default", "const"):
            if key in schema:
                return schema[key]
        for key in ("examples", "enum"):
            if known := _list_of(schema.get(key)):
                return known[0]
        match kind_of(schema, self._root):
            case "integer" | "number":
                least = schema.get("minimum")
                return least if isinstance(least, int | float) and not isinstance(least, bool) else 1
            case "boolean":
                return True
            case "array":
                return self._list(schema)
            case "object":
                return self._object(schema)
            case "null":
                return None
            case _:
                return _FALLBACK_TEXT

    def _list(self, schema: Schema) -> list[Any]:
        least, items = schema.get("minItems"), schema.get("items")
        made: list[Any] = []
        while isinstance(least, int) and len(made) < least and self._left > 0:
            made.append(self.of(items if _is_object(items) else {}))
        return made

    def _object(self, schema: Schema) -> dict[str, Any]:
        inner = properties_of(schema)
        return {name: self.of(inner.get(name, {})) for name in _required_of(schema) if self._left > 0}


def _resolved(schema: Schema, root: Schema, depth: int = 0) -> Schema:
    if depth > _MOST_DEPTH:
        return {}
    if not ("$ref" in schema or "anyOf" in schema or "oneOf" in schema):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for key in reference[2:].split("/"):
            target = target.get(key) if _is_object(target) else None
        return _resolved(target, root, depth + 1) if _is_object(target) else {}
    choices = [one for one in _list_of(schema.get("anyOf") or schema.get("oneOf")) if _is_object(one)]
    if choices:
        chosen = next((one for one in choices if one.get("type") != "null"), choices[0])
        outer = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        return {**_resolved(chosen, root, depth + 1), **outer}
    return schema


def _numeric(schema: object, root: Schema) -> bool:
    return _is_object(schema) and kind_of(schema, root) in ("integer", "number")


def _is_object(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def _list_of(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
