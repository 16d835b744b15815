from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from .scenes import make_template

Template = tuple[Path, str]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Copied for every trial: a new schema would take longer than most trials do."""
    return asyncio.run(make_template(tmp_path_factory.mktemp("template")))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kill9: kills a real server again and again; alone with -m kill9")
