from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from .. import postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres.running_server() as uri:
        asyncio.run(postgres.make_template(uri))
        yield uri
