"""The composition root: the only module that knows every concrete class."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from io import TextIOWrapper
from pathlib import Path

from holdfast.actions.dependencies import Holdfast
from holdfast.actions.folders.upload import UploadFile
from holdfast.actions.groups.discuss import Discuss
from holdfast.actions.messages.ask_agents import AskAgents
from holdfast.actions.messages.send import SendMessage
from holdfast.actions.messages.sleeptime import ShowTurns
from holdfast.actions.monitoring import Metrics
from holdfast.actions.providers import load_endpoints
from holdfast.actions.runs.callbacks import Callbacks
from holdfast.actions.runs.cancel import CancelRuns
from holdfast.actions.tools.base_tools import shipped_id, sync_base_tools
from holdfast.core.discussions import TASK as DISCUSSION_TASK
from holdfast.core.failures import RetryPolicy
from holdfast.core.redaction import is_secret_name
from holdfast.core.sleeptime import TASK as SLEEPTIME_TASK
from holdfast.engine.admission import Admission
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.bus import Bus
from holdfast.engine.clock import Clock, SystemClock
from holdfast.engine.compacting import Compactor
from holdfast.engine.feed import Feed
from holdfast.engine.ingestion import KIND as INGESTION
from holdfast.engine.ingestion import Ingestion, IngestionLimits
from holdfast.engine.mcp_servers import OAUTH_CALLBACK, McpExecutor, McpServers
from holdfast.engine.model_call import TokenRatios
from holdfast.engine.rate_limits import RateLimits
from holdfast.engine.retention import Retention, RetentionPolicy
from holdfast.engine.run_reader import RunReader
from holdfast.engine.runner import Runner
from holdfast.engine.streams import Streams
from holdfast.engine.tasks import TaskSettings, TaskWorker
from holdfast.engine.tool_calls import Executors, InlineTools, SandboxExecutor
from holdfast.engine.tracing import Instrumentation, ProviderTraces, Spans
from holdfast.engine.worker import Worker, WorkerSettings
from holdfast.errors import ConfigError
from holdfast.llm.base import Catalog
from holdfast.llm.catalog import environment
from holdfast.llm.catalog.adapters import Vendors
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.offline import vectors
from holdfast.private_files import LOCK_FILE, private_paths
from holdfast.secretbox import SecretBox
from holdfast.settings import Settings
from holdfast.ssrf_guard import METADATA, Guard
from holdfast.store import move_record
from holdfast.store.database import open_database, sqlite_path
from holdfast.store.signals import open_signals
from holdfast.store.sqlite import only_server
from holdfast.store.transaction import Database
from holdfast.tools import agents as talk
from holdfast.tools.base import Sandbox
from holdfast.tools.documents.child import ChildLimits
from holdfast.tools.mcp.values import Limits as McpLimits
from holdfast.tools.sandbox.contract import EgressConfig, Limits
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox


@asynccontextmanager
async def build(settings: Settings, *, warm_tools: bool = True) -> AsyncGenerator[Holdfast]:
    """Opens everything, carries on what an earlier process left, and lets go of it all in order at the end.

    Without `warm_tools` the fork server starts with the first call of a tool, not before it.
    """
    settings.make_data_dir()
    if not settings.worker:
        settings.require_shared("A server that drives no background runs")
    endpoints = environment.endpoints(settings.providers)
    sandbox = new_sandbox(settings)
    with _only_process(settings):
        async with AsyncExitStack() as open_things:
            database = await open_database(settings.database_address, timeout_s=settings.database_timeout_s)
            open_things.push_async_callback(database.aclose)
            await database.read(move_record.require_whole)
            open_things.push_async_callback(sandbox.aclose)
            box = open_secretbox(settings)
            catalog = _catalog(settings, endpoints, database, box)
            open_things.push_async_callback(catalog.aclose)
            deps = assemble(settings, database, sandbox, catalog, box)
            open_things.push_async_callback(deps.mcp.aclose)
            now_us = deps.clock.now_us()
            await database.write(lambda tx: sync_base_tools(tx, now_us))
            if not settings.is_shared:
                await deps.worker.expire_other_leases()
                await deps.tasks.expire_other_leases()
            async with _side_tasks(deps, sandbox if warm_tools else None):
                yield deps


def new_sandbox(settings: Settings) -> ForkServerSandbox:
    limits = Limits(
        memory_bytes=settings.tool_memory_bytes,
        file_bytes=settings.tool_disk_bytes,
        scratch_bytes=settings.tool_disk_bytes,
        processes=settings.tool_processes,
        all_calls_bytes=settings.tools_memory_bytes or 0,
    )
    hidden = private_paths(settings.data_dir, settings.database_file)
    egress = EgressConfig(policy=settings.egress, port=settings.port, has_key=settings.api_key is not None)
    return ForkServerSandbox(limits=limits, hidden=hidden, unsafe=settings.unsafe_tools, egress=egress)


def open_secretbox(settings: Settings) -> SecretBox:
    if settings.encryption_key:
        return SecretBox.from_passphrases([settings.encryption_key, *filter(None, [settings.old_encryption_key])])
    if settings.old_encryption_key:
        raise ConfigError(
            "HOLDFAST_OLD_ENCRYPTION_KEY is set without HOLDFAST_ENCRYPTION_KEY: set the new key too. Old keys of the "
            "key file belong into that file, each on a line below the new one."
        )
    return SecretBox.from_directory(settings.data_dir)


def assemble(
    settings: Settings, database: Database, sandbox: Sandbox, catalog: Catalog, box: SecretBox | None = None
) -> Holdfast:
    clock = SystemClock()
    box = box or open_secretbox(settings)
    bus = Bus(open_signals(settings.signals_address))
    streams = Streams(database, bus.run_changed)
    mcp = _mcp_servers(settings, database, box, clock)
    sandboxed = SandboxExecutor(database, sandbox, box.open, settings.tool_timeout_s)
    executors = Executors(sandboxed, mcp=McpExecutor(database, mcp))
    retry_policy = RetryPolicy(settings.model_retries, settings.model_retry_s)
    instrumentation = Instrumentation(Spans(), _traces(settings, database, box, clock))
    archival = _archival(settings, database, catalog, clock)
    limits = RateLimits(database, clock, settings.provider_limits, settings.provider_wait_s)
    compactor = Compactor(catalog, clock, TokenRatios(database), retry_policy, instrumentation.spans, limits)
    runner = Runner(
        database,
        catalog,
        executors,
        InlineTools(database, clock, archival),
        clock,
        compactor,
        retry_policy,
        instrumentation,
        listeners_wait_s=settings.lease_ttl_s,
        rate_limits=limits,
    )
    worker = Worker(database, runner, streams, clock, _worker_settings(settings), bus)
    tasks = TaskWorker(database, bus, TaskSettings(lease_ttl_s=settings.lease_ttl_s, takes=settings.worker))
    admission = Admission(database, worker, settings.max_foreground_runs, settings.max_waiting_runs)
    send = SendMessage(database, catalog, worker, clock, retry_policy.retries, admission)
    reader = RunReader(database, worker, streams)
    others = AskAgents(database, send, worker, reader, settings.queue_wait_s)
    executors.own.update((shipped_id(name), others) for name in talk.NAMES)
    discuss = Discuss(database, send, worker, tasks, reader, clock)
    ingestion = Ingestion(database, archival, clock, _ingestion_limits(settings))
    tasks.kinds |= {INGESTION: ingestion, SLEEPTIME_TASK: ShowTurns(database, send), DISCUSSION_TASK: discuss}
    cancel = CancelRuns(database, worker, clock)
    return Holdfast(
        settings=settings,
        secretbox=box,
        catalog=catalog,
        sandbox=sandbox,
        database=database,
        clock=clock,
        worker=worker,
        tasks=tasks,
        streams=streams,
        feed=_feed(database, bus),
        reader=reader,
        retention=Retention(database, clock, _retention_policy(settings)),
        compactor=compactor,
        archival=archival,
        mcp=mcp,
        upload=UploadFile(database, archival, tasks, clock, settings.max_file_bytes),
        send=send,
        discuss=discuss,
        cancel=cancel,
        metrics=Metrics(database, worker, streams, cancel, admission, limits, settings.process),
    )


def _archival(settings: Settings, database: Database, catalog: Catalog, clock: Clock) -> ArchivalMemory:
    return ArchivalMemory(
        database, catalog, clock, settings.archival_token_limit, embedding_timeout_s=settings.embedding_timeout_s
    )


def _worker_settings(settings: Settings) -> WorkerSettings:
    return WorkerSettings(
        lease_ttl_s=settings.lease_ttl_s,
        drain_s=settings.drain_s,
        most_runs=settings.max_runs,
        most_runs_per_agent=settings.max_runs_per_agent,
        takes_waiting=settings.worker,
    )


def _mcp_servers(settings: Settings, database: Database, box: SecretBox, clock: Clock) -> McpServers:
    limits = McpLimits(
        connect_s=settings.mcp_connect_timeout_s,
        list_s=settings.mcp_list_timeout_s,
        call_s=settings.mcp_call_timeout_s,
        answer_bytes=settings.mcp_answer_bytes,
    )
    redirect_uri = f"{settings.browser_url}{OAUTH_CALLBACK}"
    guard = Guard(settings.reachable_hosts, denied=METADATA)
    return McpServers(database, box, clock, guard, limits, stdio=settings.mcp_stdio, redirect_uri=redirect_uri)


def _ingestion_limits(settings: Settings) -> IngestionLimits:
    parser = ChildLimits(memory_bytes=settings.file_memory_bytes, timeout_s=settings.file_timeout_s)
    # A packed document may hold more text than it has bytes, but what is read of it must end somewhere.
    return IngestionLimits(parser=parser, most_text_bytes=2 * settings.max_file_bytes)


def _retention_policy(settings: Settings) -> RetentionPolicy:
    return RetentionPolicy(
        frames_s=settings.frame_retention_s,
        traces_s=settings.trace_retention_s,
        runs_s=settings.run_retention_s,
        most_bytes={
            "frames": settings.frame_retention_bytes,
            "journals": settings.run_retention_bytes,
            "traces": settings.trace_retention_bytes,
        },
    )


def _feed(database: Database, bus: Bus) -> Feed:
    feed = Feed(database, bus)
    database.tell_of_commits(feed.committed)
    return feed


def _traces(settings: Settings, database: Database, box: SecretBox, clock: Clock) -> ProviderTraces | None:
    if not settings.trace_provider:
        return None
    keys = [value for name, value in settings.providers.items() if is_secret_name(name)]
    own = [settings.api_key, settings.secrets_key, settings.encryption_key, settings.old_encryption_key]
    hidden = [*keys, *(secret for secret in own if secret)]
    return ProviderTraces(database, box.open, clock, most_bytes=settings.trace_max_bytes, hidden=hidden)


def _catalog(settings: Settings, endpoints: list[Endpoint], database: Database, box: SecretBox) -> ModelCatalog:
    return ModelCatalog(
        endpoints,
        declared=settings.models,
        prices=settings.model_prices,
        brought=lambda: load_endpoints(database, box),
        retry_policy=RetryPolicy(settings.model_retries, settings.model_retry_s),
        offline_embeddings=vectors.is_installed(),
        vendors=Vendors(
            first_byte_s=settings.model_timeout_s,
            total_s=settings.model_stream_timeout_s,
            openai_responses=settings.openai_responses,
            guard=Guard(settings.allowed_hosts) if settings.guards_providers else None,
        ),
    )


@asynccontextmanager
async def _side_tasks(deps: Holdfast, sandbox: ForkServerSandbox | None) -> AsyncGenerator[None]:
    """Whatever runs beside requests. A side task that dies takes the server with it: better loud than limping."""
    callbacks = Callbacks(deps.database, deps.clock, deps.settings.reachable_hosts)
    deps.worker.on_end = callbacks.wake
    async with asyncio.TaskGroup() as group:
        side_tasks = (deps.worker, deps.tasks, deps.feed, deps.retention, callbacks)
        forever = [group.create_task(side_task.run_forever()) for side_task in side_tasks]
        if sandbox is not None:
            group.create_task(_warm(sandbox))
        try:
            yield
        finally:
            deps.feed.close()
            await asyncio.gather(deps.worker.drain(), deps.tasks.drain())
            for task in forever:
                task.cancel()


async def _warm(sandbox: ForkServerSandbox) -> None:
    """So that the first tool call does not wait for the fork server; the server is healthy before this is done."""
    await sandbox.warm()


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def _only_process(settings: Settings) -> Generator[None]:
    """One process per SQLite file and per data directory. It may then take over every run at once: nobody else can own
    any."""
    if settings.is_shared:
        yield
        return
    with _lock_file(settings.data_dir / LOCK_FILE) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"Another Holdfast server uses the data directory {settings.data_dir}. Stop it, or give this one "
                "another directory with --data-dir or HOLDFAST_DATA_DIR."
            ) from None
        with only_server(sqlite_path(settings.database_address)):
            yield


def _lock_file(path: Path) -> TextIOWrapper:
    try:
        return open(path, "w", opener=_privately)
    except OSError as error:
        raise ConfigError(
            f"The data directory {path.parent} cannot be written: {error.strerror}. Make it writable, or "
            "name another with --data-dir or HOLDFAST_DATA_DIR."
        ) from error
