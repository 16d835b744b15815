"""Random lives of a server, on both databases. See simulation.py for what may happen in one."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from holdfast.store.sqlite import migrate

from .. import postgres
from ..effort import examples
from ..postgres import PostgresServer
from .simulation import Simulation

pytestmark = pytest.mark.slow


def life_on(fresh: Callable[[], Awaitable[str]], *, with_send_message: bool = False) -> type[Simulation]:
    class Life(Simulation):
        speaks_through_tool = with_send_message

        def __init__(self) -> None:
            super().__init__(fresh)

    return Life


@pytest.mark.parametrize("with_send_message", [False, True], ids=["text", "send_message"])
def test_no_life_of_a_server_breaks_a_promise_on_sqlite(tmp_path: Path, with_send_message: bool) -> None:
    empty, numbers = tmp_path / "empty.db", count()
    migrate(empty)

    async def fresh() -> str:
        path = tmp_path / f"{next(numbers)}.db"
        shutil.copy(empty, path)
        return f"sqlite:///{path}"

    lives = 6 if with_send_message else 18
    run_state_machine_as_test(life_on(fresh, with_send_message=with_send_message), settings=examples(lives, steps=25))


def test_no_life_of_a_server_breaks_a_promise_on_postgresql(postgres_server: PostgresServer) -> None:
    async def fresh() -> str:
        return await postgres.create_database(postgres_server.uri)

    run_state_machine_as_test(life_on(fresh), settings=examples(4, steps=20))
