"""Drives background runs, and whatever else happens without a request, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal

import msgspec

from holdfast import logs, telemetry
from holdfast.commands import settings_from
from holdfast.commands.serving import end_after, new_loop
from holdfast.settings import Settings
from holdfast.version import VERSION
from holdfast.wiring import build


def run(arguments: argparse.Namespace) -> int:
    settings = msgspec.structs.replace(settings_from(arguments), worker=True)
    settings.require_shared("A worker")
    logs.configure(settings)
    with telemetry.exporting(settings), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_work(settings))
    return 0


async def _work(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    async with build(settings) as deps:
        gc.freeze()  # what was loaded stays for good: no collection need ever walk it
        gc.enable()
        print(f"Holdfast {VERSION}: this worker is ready, for {settings.max_runs} runs at once", flush=True)
        await stop.wait()
        end_after(settings.drain_s)
        await deps.worker.drain()
