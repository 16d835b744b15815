"""The composition root: the only module that knows every concrete class."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from holdfast.actions.callbacks import Callbacks
from holdfast.actions.cancel_runs import CancelRuns
from holdfast.actions.send_message import SendMessage
from holdfast.actions.upsert_base_tools import upsert_base_tools
from holdfast.api.deps import Holdfast
from holdfast.engine.clock import SystemClock
from holdfast.engine.compacting import Compactor
from holdfast.engine.executing import SandboxExecutor
from holdfast.engine.inline import InlineTools
from holdfast.engine.runner import Runner
from holdfast.engine.streams import Streams
from holdfast.engine.worker import Pace, Worker
from holdfast.errors import ConfigError
from holdfast.llm.catalog import ModelCatalog
from holdfast.secretbox import SecretBox
from holdfast.settings import Settings
from holdfast.store.database import open_database
from holdfast.tools.sandbox.forkserver import ForkServerSandbox


@asynccontextmanager
async def build(settings: Settings) -> AsyncGenerator[Holdfast]:
    """Opens everything, carries on what an earlier process left, and lets go of it all in order at the end."""
    settings.make_data_dir()
    with _only_process(settings):
        database = await open_database(settings.database_address)
        sandbox = ForkServerSandbox(hidden=(settings.data_dir,))
        try:
            deps = _assemble(settings, database, sandbox)
            await database.write(upsert_base_tools)
            await deps.worker.recover(alone=settings.database_url is None)
            async with _side_tasks(deps):
                yield deps
        finally:
            await sandbox.aclose()
            await database.aclose()


def _assemble(settings: Settings, database, sandbox: ForkServerSandbox) -> Holdfast:
    clock = SystemClock()
    catalog = ModelCatalog()
    box = (
        SecretBox.from_passphrase(settings.encryption_key)
        if settings.encryption_key
        else SecretBox.from_directory(settings.data_dir)
    )
    streams = Streams(database)
    executor = SandboxExecutor(database, sandbox, box.open, settings.tool_timeout_s)
    runner = Runner(database, catalog, executor, InlineTools(database, clock), clock)
    pace = Pace(lease_ttl_s=settings.lease_ttl_s, drain_s=settings.drain_s)
    worker = Worker(database, runner, streams, clock, pace)
    return Holdfast(
        settings=settings,
        secretbox=box,
        catalog=catalog,
        sandbox=sandbox,
        database=database,
        clock=clock,
        worker=worker,
        streams=streams,
        compactor=Compactor(catalog, clock),
        send=SendMessage(database, catalog, worker, streams, clock),
        cancel=CancelRuns(database, worker, clock),
    )
