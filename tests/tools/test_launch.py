"""What the fork server runs is compiled before it starts, because it cannot write what it compiles itself."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from holdfast.tools.sandbox import launch
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox


@pytest.fixture(autouse=True)
def _may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    return source


def test_a_module_is_compiled_and_compiled_again_when_it_was_changed(module: Path) -> None:
    launch.compile_modules(module.parent)
    compiled = Path(cache_from_source(str(module)))
    before = compiled.read_bytes()

    launch.compile_modules(module.parent)
    assert compiled.read_bytes() == before

    module.write_text("changed = 1\n")
    os.utime(module, (1, 1))  # Python compares seconds
    launch.compile_modules(module.parent)
    assert b"changed" in compiled.read_bytes()


def test_nothing_is_written_where_python_is_told_not_to(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    launch.compile_modules(module.parent)
    assert [*module.parent.iterdir()] == [module]


def test_where_nothing_can_be_written_nothing_is_said(module: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (module.parent / "__pycache__").write_text("in the way, also for root")
    launch.compile_modules(module.parent)
    assert capfd.readouterr() == ("", "")


def test_a_sandbox_that_starts_has_its_modules_compiled() -> None:
    compiled = Path(cache_from_source(str(Path(launch.__file__).with_name("sandbox_child.py"))))
    compiled.unlink(missing_ok=True)
    asyncio.run(_start_and_close())
    assert compiled.exists()


async def _start_and_close() -> None:
    sandbox = ForkServerSandbox()
    try:
        await sandbox.warm()
    finally:
        await sandbox.aclose()
