from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from .sources import ROOT, functions, modules, nodes

# Optional or slow to import; each in the adapter that owns it. Nothing else may be imported inside a function.
ALLOWED_INSIDE = {
    ("store/database.py", "holdfast.store.postgres"): "asyncpg, for those who use PostgreSQL",
    ("store/signals.py", "holdfast.store.postgres_signals"): "asyncpg, for those who use PostgreSQL",
    ("store/sqlite.py", "holdfast.store.migrations"): "Alembic is slow to import",
    ("store/postgres.py", "holdfast.store.migrations"): "Alembic is slow to import",
    ("actions/runs/callbacks.py", "holdfast"): "outgoing, because aiohttp is slow to import",
    ("api/routes/messages.py", "holdfast"): "outgoing, because aiohttp is slow to import",
    ("llm/catalog/adapters.py", "holdfast.llm"): "http, because aiohttp is slow to import",
    ("llm/catalog/adapters.py", "holdfast.llm.anthropic"): "aiohttp is slow to import",
    ("llm/catalog/adapters.py", "holdfast.llm.bridge"): "optional and slow",
    ("llm/catalog/adapters.py", "holdfast.llm.chat"): "aiohttp is slow to import",
    ("engine/mcp_servers.py", "holdfast.tools.mcp"): "the MCP SDK, optional and slow",
    ("tools/sandbox/egress_filter.py", "holdfast.tools.sandbox"): "the guard's asyncio would be in every call",
    ("tools/sandbox/reaper.py", "shutil"): "its libraries for archives would be in every call",
    ("secretbox.py", "holdfast.secret_ciphers"): "cryptography takes six megabytes, which most servers never need",
    ("llm/bridge/adapter.py", "holdfast.llm.bridge"): "pydantic-ai and the SDKs, optional and slow",
    ("telemetry.py", "opentelemetry.exporter.otlp.proto.http.trace_exporter"): "optional and slow",
    ("telemetry.py", "opentelemetry.sdk.resources"): "optional and slow",
    ("telemetry.py", "opentelemetry.sdk.trace"): "optional and slow",
    ("telemetry.py", "opentelemetry.sdk.trace.export"): "optional and slow",
}


def test_the_import_contracts_are_kept() -> None:
    """In a process of its own: it reconfigures logging, and with that silences every logger there is."""
    program = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_no_module_of_the_api_uses_the_database_itself() -> None:
    """It is handed to actions, which an import contract cannot tell from using it."""
    users = {
        name
        for name, tree in modules().items()
        if name.startswith("api/")
        for node in nodes(tree, ast.Attribute)
        if isinstance(node.value, ast.Attribute) and node.value.attr == "database"
    }
    assert users == set()


def test_nothing_is_imported_inside_a_function_but_what_is_listed() -> None:
    inside = {(name, module) for name, tree in modules().items() for module in _imported_inside(tree)}
    assert inside <= ALLOWED_INSIDE.keys()


def test_no_modules_import_each_other_in_a_ring() -> None:
    graph = grimp.build_graph("holdfast", cache_dir=None)
    graph.remove_import(importer="holdfast", imported="holdfast.in_process")  # loaded lazily, by name
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as ring:
        pytest.fail(" → ".join(ring.args[1]))


def test_the_core_never_reads_a_clock_or_makes_ids_by_chance() -> None:
    forbidden = {"now", "utcnow", "today", "uuid1", "uuid4", "urandom", "time_ns", "monotonic"}
    found = [
        f"{name}:{node.lineno} {node.func.attr}"
        for name, tree in modules().items()
        if name.startswith("core/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in forbidden
    ]
    found += [
        f"{name}: async {node.name}"
        for name, tree in modules().items()
        if name.startswith("core/")
        for node in functions(tree)
        if isinstance(node, ast.AsyncFunctionDef)
    ]
    assert not found


def _imported_inside(tree: ast.Module) -> Iterator[str]:
    for function in functions(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or "."


def test_models_that_only_the_description_of_the_api_needs_are_not_built_when_the_server_starts() -> None:
    program = """
import holdfast.api.server
from fastapi.openapi.models import OpenAPI
from pydantic import BaseModel
assert not OpenAPI.__pydantic_complete__
assert not BaseModel.model_config
assert OpenAPI(openapi="3.1.0", info={"title": "t", "version": "1"}, paths={}).info.title == "t"
assert type("Built", (BaseModel,), {}).__pydantic_complete__
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
