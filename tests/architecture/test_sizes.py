from __future__ import annotations

from .sources import PACKAGE, functions, lines_of, modules, modules_of_tests

LONGEST_FUNCTION = 60
LONGEST_MODULE = 600


def test_no_function_is_longer_than_a_screen() -> None:
    trees = {f"src/holdfast/{name}": tree for name, tree in modules().items()}
    long = [
        f"{name}:{node.lineno} {node.name} has {lines_of(node)} lines"
        for name, tree in (trees | modules_of_tests()).items()
        for node in functions(tree)
        if lines_of(node) > LONGEST_FUNCTION
    ]
    assert not long


def test_no_module_is_longer_than_six_hundred_lines() -> None:
    lengths = {name: len((PACKAGE / name).read_text().splitlines()) for name in modules()}
    assert not {name: length for name, length in lengths.items() if length >= LONGEST_MODULE}
