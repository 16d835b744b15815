"""Runs the server until it is told to stop, and then lets go of its work in order."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import FrameType
from typing import Any, Final

import msgspec
import uvicorn
from starlette.types import ASGIApp

from holdfast import logs, telemetry
from holdfast.actions.dependencies import Holdfast
from holdfast.api.middleware import LocalPagesOnly
from holdfast.api.server import create_app
from holdfast.commands import settings_from
from holdfast.commands.connections import Connections, GuardedHttp, Limits, most_connections
from holdfast.commands.garbage import collect_rarely
from holdfast.commands.processes import Processes, end_with_parent
from holdfast.engine.worker import HAND_OVER_S
from holdfast.errors import ConfigError
from holdfast.settings import OFFLINE_MODEL, Settings
from holdfast.version import VERSION
from holdfast.wiring import build

if os.name == "posix":
    import uvloop

    new_loop = uvloop.new_event_loop
else:
    new_loop = asyncio.new_event_loop


_STOP_GRACE_S: Final = 10.0  # to hand over runs, end the sandbox and close the database, in that order
_log = logging.getLogger(__name__)

Build = Callable[[Settings], AbstractAsyncContextManager[Holdfast]]


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    if settings.processes > 1 and arguments.listen_fd is None:
        return serve_many(settings)
    if arguments.parent_fd is not None:
        end_with_parent(arguments.parent_fd)
    serve(settings, build, arguments.listen_fd)
    return 0


def serve_many(settings: Settings) -> int:
    settings.require_safe_binding()
    settings.require_shared("Serving with several processes")
    logs.configure(settings)
    with listen(settings.host, settings.port) as listener:
        return Processes(settings, listener).run()


def serve(settings: Settings, build: Build, listen_fd: int | None = None) -> None:
    """Blocks until SIGINT or SIGTERM. `build` opens everything the server uses, and closes it again.

    `listen_fd`: a socket that listens already, for one of several processes.
    """
    settings.require_safe_binding()
    settings.make_data_dir()
    logs.configure(settings)
    with (
        listen(settings.host, settings.port) if listen_fd is None else socket.socket(fileno=listen_fd) as listener,
        telemetry.exporting(settings),
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        # The port that is really listened on, also when any free one was asked for: no tool may connect to it.
        bound = msgspec.structs.replace(settings, port=listener.getsockname()[1])
        runner.run(_serve(bound, build, listener))


def listen(host: str, port: int, setting: str = "HOLDFAST_PORT") -> socket.socket:
    """Bound before anything else is opened: a taken port should cost one sentence, not a half-started server."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {host} port {port}: {os.strerror(error.errno) if error.errno else error}. "
            f"Choose another with --port or {setting}, or stop the program that uses it."
        ) from error


async def _serve(settings: Settings, build: Build, listener: socket.socket) -> None:
    async with build(settings) as deps:
        app: ASGIApp = create_app(deps)
        if settings.api_key is None:
            app = LocalPagesOnly(app, settings)
        collect_rarely()
        connections = connections_of(settings)
        await _Server(uvicorn_config(app, settings, connections), deps, connections).serve([listener])


def welcome(deps: Holdfast, port: int) -> str:
    settings = deps.settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    database = "SQLite, in the data directory" if settings.database_url is None else settings.database_url.split(":")[0]
    key = "required" if settings.api_key else "not set, so only programs on this machine can connect"
    lines = {
        "Address": f"http://{host}:{port}  (open it in a browser for first steps)",
        "Data": settings.data_dir,
        "Database": database,
        "Model": _model_line(settings),
        "API key": key,
    }
    return "\n".join([f"Holdfast {VERSION} is ready", *(_line(name, text) for name, text in lines.items())])


def _line(name: str, text: object) -> str:
    return f"  {name:<10}{text}"


def _model_line(settings: Settings) -> str:
    if settings.default_model == OFFLINE_MODEL:
        return f"{OFFLINE_MODEL}, because no provider is configured"
    return settings.default_model or "none by default; each agent names its own"


def connections_of(settings: Settings) -> Connections:
    return Connections(
        Limits(
            header_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            max_connections=most_connections(),
            max_per_peer=settings.max_connections_per_peer or None,
        )
    )


def uvicorn_config(app: ASGIApp, settings: Settings, connections: Connections) -> uvicorn.Config:
    protocol: Any = partial(GuardedHttp, connections)  # called for each connection
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",  # everything is opened and closed around the server, not inside it
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        # Longer than runs are given to be handed over: a request whose run is let go is answered, not cut off.
        timeout_graceful_shutdown=round(settings.drain_s + HAND_OVER_S) + 1,
    )


def end_after(stop_s: float) -> None:
    """Whatever hangs, a blocked event loop included, the process ends. Nothing is lost by that: what was accepted is
    stored, and its leases run out."""

    def end() -> None:
        _log.critical("the server did not stop in time and is ended; its runs will be carried on by the next one")
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(stop_s + _STOP_GRACE_S, end)
    timer.daemon = True
    timer.start()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, deps: Holdfast, connections: Connections) -> None:
        super().__init__(config)
        self._deps = deps
        self._connections = connections
        self._tools: asyncio.Task[None] | None = None
        self._stops_at: float | None = None  # it was told to

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM comes from a supervisor: load balancers are given time to notice. SIGINT comes from a person, who
        waits.

        The parent class remembers the signal and raises it again at the end, which would kill us before we have closed.
        """
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        settings, now = self._deps.settings, time.monotonic()
        if self._stops_at is None:
            end_after(settings.unready_s + settings.drain_s)
            self._deps.worker.announce_drain()
            self._connections.closing = True
            self._stops_at = now + settings.unready_s
        if sig == signal.SIGINT:
            self._stops_at = now
        self.should_exit = self._stops_at <= now

    async def on_tick(self, counter: int) -> bool:
        if self._stops_at is not None and time.monotonic() >= self._stops_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Announced only now: whoever reads it may send a signal at once, and by now signals are heard."""
        await super().startup(sockets)
        for listener in sockets or ():
            print(welcome(self._deps, listener.getsockname()[1]), flush=True)
        self._tools = asyncio.create_task(self._print_isolation())

    async def _print_isolation(self) -> None:
        """After the banner: each layer of isolation has to be tried first, and the server need not wait for that."""
        status = await self._deps.sandbox.status()
        print(_line("Tools", status.tools), _line("Egress", status.egress), sep="\n", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Runs are let go while the last requests finish, because a stream ends only when its run is released."""
        if self._tools is not None:
            self._tools.cancel()
        self._deps.feed.close()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deps.worker.drain())
            group.create_task(super().shutdown(sockets))
