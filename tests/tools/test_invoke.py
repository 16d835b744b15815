"""How a tool's function is called, and what the process that it runs in has loaded."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.tools.sandbox import invoke, launch
from holdfast.tools.sandbox.contract import modules_for


def plain(a: int, b: str, c: float = 1.0) -> None: ...
def nothing() -> None: ...
def by_name(a: int, *, b: int, c: int = 0) -> None: ...
def positional(a: int, /, b: int, c: int = 0) -> None: ...
def positional_default(a: int = 0, /, b: int = 1) -> None: ...
def open_to_all(a: int, *rest: int, b: int, **others: int) -> None: ...
def with_locals(a: int) -> int:
    b = c = a
    return b + c


@pytest.mark.parametrize(
    "function", [plain, nothing, by_name, positional, positional_default, open_to_all, with_locals]
)
def test_the_keywords_of_a_function_are_those_that_inspect_finds(function: Callable[..., Any]) -> None:
    found, expected = invoke.keywords_of(function), invoke._keywords_by_inspection(function)
    assert (list(found.names), list(found.required), found.takes_others) == (
        expected.names,
        expected.required,
        expected.takes_others,
    )


def test_a_decorated_function_has_the_keywords_of_the_one_inside() -> None:
    @functools.wraps(plain)
    def around(*given: Any, **named: Any) -> None:
        return plain(*given, **named)

    assert list(invoke.keywords_of(around).names) == ["a", "b", "c"]


def test_an_object_that_can_be_called_has_the_keywords_of_its_call() -> None:
    class Adder:
        def __call__(self, a: int, b: int = 0) -> int:
            return a + b

    assert list(invoke.keywords_of(Adder()).names) == ["a", "b"]


def test_the_fork_server_loads_little_because_every_call_carries_its_pages() -> None:
    """Each of these is large, brings libraries, or does something after every fork."""
    unwanted = {
        *{"ast", "asyncio", "dataclasses", "inspect", "logging", "pathlib", "pydantic", "random", "shutil", "ssl"},
        *{"threading", "typing_extensions", "zoneinfo"},
    }
    program = f"{launch.LOAD}print(*sys.modules)"
    told = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert unwanted.isdisjoint(told.stdout.split())


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        (b"async def tool(): ...", {"asyncio"}),
        (b"import random", {"random"}),
        (b"from dataclasses import dataclass", {"dataclasses"}),
        (b"import inspect", {"inspect"}),
        (b"from typing_extensions import TypedDict", {"typing_extensions"}),
        (b"from urllib.request import urlopen", {"urllib.request"}),
        (b"from pydantic import BaseModel", {"pydantic.main", "pydantic.fields"}),
        (b'{"$defs": {}}', {"pydantic.main", "pydantic.fields"}),
        (b"def tool(): ...", set[str]()),
    ],
)
def test_modules_are_named_by_words_of_the_job(text: bytes, modules: set[str]) -> None:
    assert set(modules_for(text)) == modules
