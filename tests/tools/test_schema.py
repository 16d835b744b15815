"""Schemas read from a tool's source: what is understood, and what is refused with a sentence that helps."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import Invalid
from holdfast.tools.schema import derive_schema

TYPES = '''
import datetime as dt
import enum
import typing as t
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum, auto
from typing import Annotated, Any, Dict, List, Literal, NotRequired, Optional, Required, TypeAlias, TypedDict, Union
from typing import Optional as Maybe
from uuid import UUID
from pydantic import BaseModel, Field

Colour = Literal["red", "green"]
Size: TypeAlias = "int | None"

class Mood(Enum):
    GOOD = "good"
    BAD = "bad"
    _ignore_ = []

class Level(IntEnum):
    LOW = auto()
    HIGH = auto()

class Word(StrEnum):
    YES = auto()

class Address(BaseModel):
    """Where somebody lives.

    Attributes:
        street: The street.
    """
    model_config = {}
    kind: t.ClassVar[str] = "address"
    _private: int = 0
    street: str
    number: int = Field(1, description="The house number.", ge=1, title="No")

class Person(BaseModel):
    name: str = Field(..., description="Full name.")
    address: Address
    moods: list[Mood] = Field(default_factory=list)
    nick: str | None

class Employee(Person):
    name: str = "nobody"
    boss: bool = Field(default=False)

@dataclass
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)

@dataclasses.dataclass(frozen=True)
class Pair(t.Generic[T]):
    left: int

class Movie(TypedDict):
    title: Required[str]
    year: NotRequired[int]

class Loose(TypedDict, total=False):
    a: Required[int]
    b: str
'''


def schema_of(annotation: str) -> dict[str, Any]:
    """The schema of one parameter with that annotation, without the description."""
    source = f'{TYPES}\ndef tool(value: {annotation}):\n    """Do.\n\n    Args:\n        value: It.\n    """\n'
    derived = derive_schema(source)
    value = derived["parameters"]["properties"]["value"]
    assert value.pop("description") == "It."
    return value


ADDRESS = {
    "type": "object",
    "description": "Where somebody lives.",
    "properties": {
        "street": {"type": "string", "description": "The street."},
        "number": {"type": "integer", "description": "The house number.", "minimum": 1},
    },
    "required": ["street"],
}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        ("str", {"type": "string"}),
        ("int", {"type": "integer"}),
        ("float", {"type": "number"}),
        ("bool", {"type": "boolean"}),
        ("'str'", {"type": "string"}),
        ("Any", {}),
        ("t.Any", {}),
        ("list", {"type": "array", "items": {"type": "string"}}),
        ("List", {"type": "array", "items": {"type": "string"}}),
        ("set", {"type": "array", "items": {"type": "string"}}),
        ("dict", {"type": "object"}),
        ("list[int]", {"type": "array", "items": {"type": "integer"}}),
        ("List[List[int]]", {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        ("list[int | None]", {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}),
        ("set[str]", {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        ("dict[str, int]", {"type": "object", "additionalProperties": {"type": "integer"}}),
        ("Dict[str, Any]", {"type": "object"}),
        ("tuple[int, ...]", {"type": "array", "items": {"type": "integer"}}),
        (
            "tuple[int, str]",
            {
                "type": "array",
                "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        ("Optional[int]", {"type": "integer"}),
        ("Maybe[int]", {"type": "integer"}),
        ("int | None", {"type": "integer"}),
        ("Optional[Any]", {}),
        ("Union[int, NoneType]", {"type": "integer"}),
        ("Pair", {"type": "object", "properties": {"left": {"type": "integer"}}, "required": ["left"]}),
        ("Union[int, str]", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ("int | str | int", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ("int | Any", {}),
        ("Literal['a', 'b']", {"type": "string", "enum": ["a", "b"]}),
        ("Literal[1, -1]", {"type": "integer", "enum": [1, -1]}),
        ("Literal['a', 1, None]", {"enum": ["a", 1]}),
        ("Colour", {"type": "string", "enum": ["red", "green"]}),
        ("Size", {"type": "integer"}),
        ("Mood", {"type": "string", "enum": ["good", "bad"]}),
        ("Level", {"type": "integer", "enum": [1, 2]}),
        ("Word", {"type": "string", "enum": ["yes"]}),
        ("datetime", {"type": "string", "format": "date-time"}),
        ("dt.date", {"type": "string", "format": "date"}),
        ("time", {"type": "string", "format": "time"}),
        ("UUID", {"type": "string", "format": "uuid"}),
        ("Decimal", {"type": "number"}),
        ("t.Final[int]", {"type": "integer"}),
        ("Annotated[int, Field(gt=0, lt=9), 3]", {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9}),
        ("Annotated[str, Field(min_length=2, pattern='a+')]", {"type": "string", "minLength": 2, "pattern": "a+"}),
        ("Annotated[list[int], Field(max_length=3)]", {"type": "array", "items": {"type": "integer"}, "maxItems": 3}),
        ("Annotated[int, other(ge=1), Field(ge=limit, **more)]", {"type": "integer"}),
        ("Address", {key: value for key, value in ADDRESS.items() if key != "description"}),
        ("list[Address]", {"type": "array", "items": ADDRESS}),
        (
            "Point",
            {
                "type": "object",
                "properties": {
                    "x": {"type": "integer"},
                    "y": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["x"],
            },
        ),
        (
            "Movie",
            {
                "type": "object",
                "properties": {"title": {"type": "string"}, "year": {"type": "integer"}},
                "required": ["title"],
            },
        ),
        (
            "Loose",
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
        ),
        (
            "Employee",
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "address": ADDRESS,
                    "moods": {"type": "array", "items": {"type": "string", "enum": ["good", "bad"]}},
                    "nick": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "boss": {"type": "boolean"},
                },
                "required": ["address", "nick"],
            },
        ),
    ],
)
def test_an_annotation_becomes_its_schema(annotation: str, schema: dict[str, Any]) -> None:
    assert schema_of(annotation) == schema


GOOGLE = '''
def roll(sides: int, times: int = 1, *rest, note: str | None, loud: bool = False, **more) -> str:
    """Roll dice.

    Says what came up.

    Args:
        sides (int): How many sides
            each die has.
        times: How often to roll.
        note: What to write down.
        loud: Whether to shout.

    Returns:
        str: The numbers.

    Examples:
        roll(6) -> "4"
    """
'''
NUMPY = '''
def roll(sides: int, times: int = 1) -> str:
    """Roll dice.

    Parameters
    ----------
    sides : int
        How many sides each die has.
    times : int, optional
        How often to roll.

    Examples
    --------
    >>> roll(6)
    "4"
    """
'''
REST = '''
def roll(sides: int, times: int = 1) -> str:
    """Roll dice.

    :param sides: How many sides each die has.
    :param int times: How often to roll.
    :returns: The numbers.
    """
'''


def test_a_google_docstring_gives_all_descriptions() -> None:
    derived = derive_schema(GOOGLE)
    assert derived["name"] == "roll"
    assert derived["description"] == 'Roll dice.\n\nSays what came up.\n\nExamples:\nroll(6) -> "4"'
    assert derived["parameters"] == {
        "type": "object",
        "properties": {
            "sides": {"type": "integer", "description": "How many sides\neach die has."},
            "times": {"type": "integer", "description": "How often to roll."},
            "note": {"type": "string", "description": "What to write down."},
            "loud": {"type": "boolean", "description": "Whether to shout."},
        },
        "required": ["sides"],
    }


@pytest.mark.parametrize("source", [NUMPY, REST])
def test_numpy_and_rest_docstrings_are_read_too(source: str) -> None:
    derived = derive_schema(source)
    assert derived["description"].startswith("Roll dice.")
    assert derived["parameters"]["properties"] == {
        "sides": {"type": "integer", "description": "How many sides each die has."},
        "times": {"type": "integer", "description": "How often to roll."},
    }
    assert derived["parameters"]["required"] == ["sides"]


def test_numpy_examples_are_kept() -> None:
    assert ">>> roll(6)" in derive_schema(NUMPY)["description"]


def test_the_last_top_level_function_is_the_tool() -> None:
    source = '''
def helper(x):
    return x

async def tool(a: str):
    """Do.

    Args:
        a: It.
    """
    def nested(b):
        return b
    return nested(helper(a))

class After:
    def method(self):
        pass
'''
    assert derive_schema(source)["name"] == "tool"


def test_a_function_can_be_named() -> None:
    source = 'def one():\n    """First."""\n\ndef two():\n    """Second."""\n'
    assert derive_schema(source, "one") == {
        "name": "one",
        "description": "First.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    }


def test_what_the_server_passes_is_not_asked_of_the_model() -> None:
    source = tool_with("str").replace("(a: str)", '(self, agent_state: "AgentState", a: str)')
    assert list(derive_schema(source)["parameters"]["properties"]) == ["a"]


def test_what_a_source_leaves_out_is_left_open() -> None:
    bare = derive_schema("def add_two(a, b: int, c=1, d='x', *, e=True, f=None, g=[]): ...")
    assert bare["description"] == "Add two"
    assert bare["parameters"] == {
        "type": "object",
        "properties": {
            "a": {},
            "b": {"type": "integer"},
            "c": {"type": "integer"},
            "d": {"type": "string"},
            "e": {"type": "boolean"},
            "f": {},
            "g": {},
        },
        "required": ["a", "b"],
    }


def test_blank_lines_of_a_docstring_are_kept() -> None:
    derived = derive_schema(
        'def f(a: int, b: int):\n    """Do.\n\n    One.\n\n    Two.\n\n    Args:\n        a: It.\n\n            '
        'More of it.\n\n            Even more.\n        b: That.\n    """\n'
    )
    assert derived["description"] == "Do.\n\nOne.\n\nTwo."
    described = [about["description"] for about in derived["parameters"]["properties"].values()]
    assert described == ["It.\n\nMore of it.\n\nEven more.", "That."]


def test_a_description_can_stand_in_the_annotation() -> None:
    source = (
        'def tool(a: Annotated[int, "How many."], b: Annotated[int, Field(description="How much.")]):\n    """Do."""\n'
    )
    properties = derive_schema(source)["parameters"]["properties"]
    assert [value["description"] for value in properties.values()] == ["How many.", "How much."]


def test_given_arguments_replace_those_of_the_signature() -> None:
    given = {
        "type": "object",
        "properties": {
            "who": {"$ref": "#/$defs/Person", "description": "Whom."},
            "all": {"items": [{"type": "string"}]},
        },
        "required": ["who"],
        "$defs": {"Person": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    derived = derive_schema('def greet(anything):\n    """Greet."""\n', args_schema=given)
    assert (derived["name"], derived["description"]) == ("greet", "Greet.")
    assert derived["parameters"] == {
        "type": "object",
        "properties": {
            "who": {"type": "object", "properties": {"name": {"type": "string"}}, "description": "Whom."},
            "all": {"items": [{"type": "string"}]},
        },
        "required": ["who"],
    }


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        ({"properties": []}, "must be an object"),
        ({"properties": {"a": {"$ref": "#/$defs/None"}}}, "does not contain"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "does not contain"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}}, "itself"),
    ],
)
def test_given_arguments_that_make_no_sense_are_refused(given: dict[str, Any], fragment: str) -> None:
    with pytest.raises(Invalid, match=fragment):
        derive_schema('def greet():\n    """Greet."""\n', args_schema=given)


def tool_with(annotation: str, before: str = "") -> str:
    return f'{before}\ndef tool(a: {annotation}):\n    """Do.\n\n    Args:\n        a: It.\n    """\n'


@pytest.mark.parametrize(
    ("source", "fragments"),
    [
        ("", ["defines no function"]),
        ("class A:\n    def f(self):\n        pass\n", ["defines no function"]),
        ("def f(:\n    pass\n", ["not valid Python", "line 1", "def f(:"]),
        ("def f():\n    '''x\0'''\n", ["not valid Python", "null bytes"]),
        (f"x = {'-' * 100_000}1\n", ["too deeply nested"]),
        ('def f(a: int, /):\n    """Do.\n\n    Args:\n        a: It.\n    """\n', ["'a'", "positional-only"]),
        (f'def {"f" * 65}():\n    """Do."""\n', ["longer than 64"]),
        (tool_with("bytes"), ["'bytes'", "'a'", "cannot be described"]),
        (tool_with("requests.Response"), ["'requests.Response'"]),
        (tool_with("Callable[[int], str]"), ["Callable"]),
        (tool_with("dict[str]"), ["dict[str]"]),
        (tool_with("42"), ["'42'"]),
        (tool_with("dict[int, str]"), ["keys of type 'int'"]),
        (tool_with("'int +'"), ["not valid Python: 'int +'"]),
        (tool_with("Literal[Mood.GOOD]"), ["only plain values", "Mood.GOOD"]),
        (tool_with("Literal[b'x']"), ["strings, numbers or booleans"]),
        (tool_with("Empty", "class Empty(Enum):\n    pass\n"), ["at least one"]),
        (tool_with("Strange", "class Strange:\n    pass\n"), ["'Strange'", "make it one of these"]),
        (tool_with("Strange", "class Strange(Later):\n    pass\nclass Later(BaseModel):\n    pass\n"), ["'Strange'"]),
        (tool_with("Node", "class Node(BaseModel):\n    next: 'list[Node]'\n"), ["refers to itself", "'Node'"]),
        (tool_with("A", "class A(BaseModel):\n    field: bytes\n"), ["'bytes'", "field 'field' of class 'A'"]),
        (tool_with("A", "A = B\nB = A\n"), ["refers to itself"]),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence_that_helps(source: str, fragments: list[str]) -> None:
    with pytest.raises(Invalid) as refused:
        derive_schema(source)
    assert refused.value.status == 400
    assert all(fragment in refused.value.message for fragment in fragments), refused.value.message


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(Invalid, match=r"no function named 'x' at the top level, only: one, two"):
        derive_schema("def one(): ...\ndef two(): ...\n", "x")


def test_types_nested_beyond_reason_are_refused() -> None:
    aliases = "A0 = int\n" + "".join(f"A{n} = list[A{n - 1}]\n" for n in range(1, 1000))
    with pytest.raises(Invalid, match="nested too deeply"):
        derive_schema(tool_with("A999", aliases))


def test_a_very_long_union_is_read() -> None:
    assert derive_schema(tool_with(" | ".join(["int"] * 500)))["parameters"]["properties"]["a"]["type"] == "integer"


def test_the_source_is_never_run() -> None:
    assert derive_schema(f"raise SystemExit\n{tool_with('int')}") == derive_schema(tool_with("int"))
