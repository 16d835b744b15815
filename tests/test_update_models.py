"""The generated list of models, beside what the pinned genai-prices says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_models", ROOT / "scripts/update_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_is_what_the_script_makes_of_the_pinned_library(script: ModuleType) -> None:
    assert script.FILE.read_text() == script.generated(), "make models"


def test_the_list_names_the_version_that_is_pinned(script: ModuleType) -> None:
    source = msgspec.json.decode(script.FILE.read_bytes())["source"]
    assert source.replace(" ", "==") in (ROOT / "constraints.txt").read_text().split()


def test_a_price_that_changed_is_told_and_nothing_is_written(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = script.FILE.read_text()
    older = written.replace('{"input":2.5,"output":10.0,', '{"input":3.5,"output":10.0,')
    assert older != written
    monkeypatch.setattr(script, "FILE", tmp_path / "models.json")
    script.FILE.write_text(older)
    assert script.main(["--check"]) == 1
    assert '+  {"names":["gpt-4o"' in capsys.readouterr().err
    assert script.FILE.read_text() == older
    assert script.main([]) == 0
    assert script.FILE.read_text() == written
    script.FILE.write_text(written.replace("genai-prices 0", "genai-prices 00"))
    assert script.main(["--check"]) == 0  # another version that says the same
