from __future__ import annotations

from .sources import PACKAGE, functions, lines_of, modules, modules_of_tests

LONGEST_FUNCTION = 60
LONGEST_MODULE = 500
# The schema, spelt out once in the order of its history: longer than a screen, and better so.
LONG_BY_NATURE = {"store/migrations/versions/0001_first.py"}


def test_no_function_is_longer_than_a_screen() -> None:
    trees = {f"src/holdfast/{name}": tree for name, tree in modules().items() if name not in LONG_BY_NATURE}
    long = [
        f"{name}:{node.lineno} {node.name} has {lines_of(node)} lines"
        for name, tree in (trees | modules_of_tests()).items()
        for node in functions(tree)
        if lines_of(node) > LONGEST_FUNCTION
    ]
    assert not long


def test_no_module_is_longer_than_five_hundred_lines() -> None:
    lengths = {name: len((PACKAGE / name).read_text().splitlines()) for name in modules()}
    assert not {name: length for name, length in lengths.items() if length >= LONGEST_MODULE}
