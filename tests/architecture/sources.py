"""What the architecture tests look at: our files, parsed once."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
Node = TypeVar("Node", bound=ast.AST)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its path below it, such as `core/run.py`."""
    return {str(path.relative_to(PACKAGE)): parsed(path) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def modules_of_tests() -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): parsed(path) for path in sorted((ROOT / "tests").rglob("*.py"))}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def functions(tree: ast.Module) -> list[FunctionNode]:
    return [*nodes(tree, ast.FunctionDef), *nodes(tree, ast.AsyncFunctionDef)]


def nodes(tree: ast.Module, kind: type[Node]) -> list[Node]:
    return cast("list[Node]", _by_kind(tree)[kind])


@cache
def _by_kind(tree: ast.Module) -> dict[type[ast.AST], list[ast.AST]]:
    """To walk through all of our files takes seconds: it is done once."""
    found: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree):
        found[type(node)].append(node)
    return found


def dotted(node: ast.expr) -> str:
    """`a.b.c`, or what follows the last thing that is not just a name. `ast.unparse` takes a hundred times as long."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join(reversed([*names, node.id if isinstance(node, ast.Name) else ""]))


def lines_of(node: FunctionNode) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def tracked_files() -> tuple[Path, ...]:
    """What a clone would get; without git, as in an unpacked archive, whatever is there."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
        return tuple(path for name in names if (path := ROOT / name).is_file())
    kept = (path for path in ROOT.rglob("*") if not {".git", ".venv", "node_modules"} & set(path.parts))
    return tuple(path for path in kept if path.is_file())
