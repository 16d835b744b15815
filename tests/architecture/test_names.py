"""A name says what a thing is or does. The words below say neither."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .sources import functions, modules, nodes, parsed, tracked_files

BANNED = re.compile(r"(?i:managers?|services?|helpers?|utils?|handlers?|v2)")
# Names given by others, which we implement or override.
GIVEN = {"handle_async_request", "handle_exit", "add_exception_handler"}


def test_no_file_class_or_function_is_named_after_nothing() -> None:
    named = [f"src/holdfast/{path}: {word}" for path, tree in modules().items() for word in _names(path, tree)]
    assert not [name for name in named if _is_banned(name.rpartition(" ")[2])]


def test_the_check_knows_a_bad_name_when_it_sees_one() -> None:
    assert _is_banned("AgentManager")
    assert _is_banned("string_utils")
    assert _is_banned("helper")
    assert not _is_banned("handle")
    assert not _is_banned("serving")


def test_no_two_tests_share_a_name_in_one_file() -> None:
    from_files = [path for path in tracked_files() if path.name.startswith("test_") and path.suffix == ".py"]
    repeated = [
        f"{path.name}: {name}" for path in from_files for name, count in _counted(parsed(path)).items() if count > 1
    ]
    assert from_files
    assert not repeated


def _names(path: str, tree: ast.Module) -> Iterator[str]:
    yield from path.removesuffix(".py").split("/")
    yield from (node.name for node in nodes(tree, ast.ClassDef))
    yield from (node.name for node in functions(tree) if node.name not in GIVEN)


def _is_banned(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    return any(BANNED.fullmatch(word) for word in words)


def _counted(tree: ast.Module) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            counts[node.name] = counts.get(node.name, 0) + 1
    return counts
