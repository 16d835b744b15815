"""A server process for every test, and the place where `make test-programs` installs the programs."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.programs.letta_code import FROM_NPM, LettaCode
from tests.serving import ServerProcess

PLACE = Path(sys.prefix) / "programs"


@pytest.fixture(scope="session")
def programs() -> Path:
    assert (PLACE / ".ready").exists(), "run this suite with `make test-programs`"
    return PLACE


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path / "data", HOLDFAST_DEFAULT_MODEL="holdfast/offline") as server:
        yield server


@pytest.fixture
def letta_code(programs: Path, server: ServerProcess, tmp_path: Path) -> Generator[LettaCode]:
    with LettaCode(["node", str(programs / FROM_NPM)], server.url, tmp_path) as letta_code:
        yield letta_code
