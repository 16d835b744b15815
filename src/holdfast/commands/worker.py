"""Drives background runs, and whatever else happens without a request, until it is told to stop.

It serves nobody, unless a port is named: there a monitor finds its metrics, and whether it is alive.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import msgspec
import uvicorn

from holdfast import logs, telemetry
from holdfast.actions.dependencies import Holdfast
from holdfast.api.server import OBSERVING, create_app
from holdfast.commands import settings_from
from holdfast.commands.garbage import collect_rarely
from holdfast.commands.serving import connections_of, end_after, listen, new_loop, uvicorn_config
from holdfast.settings import Settings
from holdfast.version import VERSION
from holdfast.wiring import build


def run(arguments: argparse.Namespace) -> int:
    settings = msgspec.structs.replace(settings_from(arguments), worker=True)
    settings.require_shared("A worker")
    logs.configure(settings)
    port = settings.worker_port
    with (
        nullcontext() if port is None else listen(settings.host, port, "HOLDFAST_WORKER_PORT") as listener,
        telemetry.exporting(settings),
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        runner.run(_work(settings, listener))
    return 0


async def _work(settings: Settings, listener: socket.socket | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    async with build(settings) as deps, _observed(deps, listener):
        collect_rarely()
        print(_welcome(settings, listener), flush=True)
        await stop.wait()
        end_after(settings.drain_s)
        await deps.worker.drain()


def _welcome(settings: Settings, listener: socket.socket | None) -> str:
    ready = f"Holdfast {VERSION}: this worker is ready, for {settings.max_runs} runs at once"
    if listener is None:
        return ready
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{ready}; metrics at http://{host}:{listener.getsockname()[1]}/metrics"


@asynccontextmanager
async def _observed(deps: Holdfast, listener: socket.socket | None) -> AsyncGenerator[None]:
    """Answers monitors until the body is done: also while it drains, so that they see it do so.

    Nothing can be changed there, so that it may listen on any address without a key. `HOLDFAST_METRICS` holds.
    """
    if listener is None:
        yield
        return
    app = create_app(deps, OBSERVING, whole=False)
    server = _Server(uvicorn_config(app, deps.settings, connections_of(deps.settings)))
    async with asyncio.TaskGroup() as group:  # a listener that dies takes the worker with it: better loud than limping
        group.create_task(server.serve([listener]))
        try:
            yield
        finally:
            server.should_exit = True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """They are the worker's."""
        yield
