"""A broad catch hides bugs. Each one is here with its reason, and each records the exception or raises it again."""

from __future__ import annotations

import ast
from collections import Counter

from .sources import dotted, modules, nodes

BROAD = {"Exception", "BaseException"}
ALLOWED = {
    "api/middleware.py": (1, "the API's edge: logged whole, answered 500"),
    "engine/runner.py": (1, "the boundary of one run: recorded on the run, and logged"),
    "engine/tasks.py": (1, "the boundary of one task: logged whole, tried again, and recorded by its kind in the end"),
    "engine/worker.py": (1, "the run's failure could not be recorded: logged, and a sweep tries again"),
    "in_process.py": (1, "kept while everything is closed, then raised again"),
    "store/sqlite.py": (1, "the boundary of one job on the writer thread: rolled back, and raised in its caller"),
    "tools/mcp/client.py": (1, "the boundary of the MCP SDK: the failure of one conversation, told to whoever waits"),
    "tools/sandbox/invoke.py": (1, "the boundary of one tool call: whatever a tool raises becomes its return"),
    "tools/sandbox/tool_host.py": (1, "the boundary of a tool that a program calls: raised again in the program"),
    "tools/sandbox/run_code.py": (1, "the boundary of a model's program: whatever it raises is told to the model"),
}


def test_every_broad_catch_is_on_the_list() -> None:
    found = Counter(
        name for name, tree in modules().items() for node in nodes(tree, ast.ExceptHandler) if _is_broad(node)
    )
    assert found == Counter({name: count for name, (count, _) in ALLOWED.items()})


def test_no_exception_is_silently_swallowed() -> None:
    """`suppress` and an empty body are fine for a narrow exception; `Exception` may not be dropped either way."""
    swallowed = [
        f"{name}: {ast.unparse(node)}"
        for name, tree in modules().items()
        for node in (*nodes(tree, ast.ExceptHandler), *nodes(tree, ast.Call))
        if (_is_broad(node) and _does_nothing(node)) or _suppresses_all(node)
    ]
    assert not swallowed


def _is_broad(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(each is None or (isinstance(each, ast.Name) and each.id in BROAD) for each in caught)


def _does_nothing(node: ast.AST) -> bool:
    assert isinstance(node, ast.ExceptHandler)
    return all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)


def _suppresses_all(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not dotted(node.func).endswith("suppress"):
        return False
    return any(isinstance(argument, ast.Name) and argument.id in BROAD for argument in node.args)
