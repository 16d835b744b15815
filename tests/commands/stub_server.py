"""`holdfast serve` around an empty server: run as a program by the tests of stopping and starting."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.actions.dependencies import Holdfast
from holdfast.commands.serving import serve
from holdfast.settings import Settings
from holdfast.tools.base import SandboxStatus


class Worker:
    leaving = False

    def announce_drain(self) -> None:
        self.leaving = True

    async def drain(self) -> None:
        print("drained", flush=True)


class Feed:
    def close(self) -> None:
        pass


class Tools:
    async def status(self) -> SandboxStatus:
        return SandboxStatus(tools="isolated by nothing at all", egress="nothing at all")


@asynccontextmanager
async def build(settings: Settings) -> AsyncGenerator[Holdfast]:
    parts: dict[str, Any] = dict.fromkeys(Holdfast.__struct_fields__)
    parts.update(settings=settings, worker=Worker(), sandbox=Tools(), feed=Feed())
    yield Holdfast(**parts)
    print("closed", flush=True)


if __name__ == "__main__":
    serve(Settings.from_environment(os.environ), build)
