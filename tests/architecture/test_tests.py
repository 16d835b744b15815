from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache

from .sources import FunctionNode, dotted, functions, modules_of_tests, nodes

ASSERTING = {"pytest.raises", "pytest.fail", "run_state_machine_as_test"}


def test_every_test_asserts_something() -> None:
    idle = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules_of_tests().items()
        for node in functions(tree)
        if node.name.startswith("test_") and not _asserts(node, _checkers(tree))
    ]
    assert not idle


def test_every_test_name_is_a_sentence() -> None:
    short = [
        f"{path}: {node.name}"
        for path, tree in modules_of_tests().items()
        for node in functions(tree)
        if node.name.startswith("test_") and len(node.name.split("_")) < 3
    ]
    assert not short


def test_no_test_replaces_a_part_of_holdfast_by_a_mock() -> None:
    mocked = [
        path
        for path, tree in modules_of_tests().items()
        for node in (*nodes(tree, ast.ImportFrom), *nodes(tree, ast.Import))
        if _imports_mock(node)
    ]
    assert not mocked


def _checkers(tree: ast.Module) -> set[str]:
    """Functions that assert on behalf of tests: those of the file, and those that test files share."""
    return _asserting([tree], _shared_checkers())


@cache
def _shared_checkers() -> frozenset[str]:
    shared = [tree for path, tree in modules_of_tests().items() if not path.rpartition("/")[2].startswith("test_")]
    return frozenset(_asserting(shared, frozenset()))


def _asserting(trees: Iterable[ast.Module], known: frozenset[str]) -> set[str]:
    """Directly, or through one another."""
    found = set(known)
    candidates = [node for tree in trees for node in functions(tree)]
    while more := {node.name for node in candidates if node.name not in found and _asserts(node, found)}:
        found |= more
    return found


def _asserts(node: FunctionNode, checkers: set[str]) -> bool:
    done = _done_in(node)
    return "assert" in done or not done.isdisjoint(checkers)


@cache
def _done_in(node: FunctionNode) -> frozenset[str]:
    """The names of what it calls; "assert" stands for any way to assert."""
    found: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Assert):
            found.add("assert")
        elif isinstance(child, ast.Call):
            called = dotted(child.func)
            last = called.rpartition(".")[2]
            found.add("assert" if called in ASSERTING or last.startswith(("assert_", "check_")) else last)
    return frozenset(found)


def _imports_mock(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=module):
            return module == "unittest.mock"
        case ast.Import(names=names):
            return any(alias.name == "unittest.mock" for alias in names)
        case _:
            return False
