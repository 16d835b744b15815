"""What an install without extras weighs, and what an idle server takes."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

from bench.client import Client
from bench.process import Server
from bench.sections import Row, at_most


async def idle(server: Server, client: Client) -> list[Row]:
    await client.call("GET", "/health/")
    await asyncio.sleep(2)
    return [
        at_most("idle memory, fork server of the tools included", server.memory_mb(), "MB", 120, "461 MB"),
        at_most("start to healthy", server.started_in_s, "s", 1, "18 s"),
    ]


def installed() -> list[Row]:
    packages = dict(_needed("holdfast", {}))
    files = [Path(str(file.locate())) for found in packages.values() for file in found.files or ()]
    size = sum(file.stat().st_size for file in files if file.exists())
    return [
        at_most("packages without extras", len(packages), "", 60, "260"),
        at_most("install without extras", size / 2**20, "MB", 200, "728 MB"),
    ]


def _needed(
    name: str, seen: dict[str, importlib.metadata.Distribution]
) -> Iterator[tuple[str, importlib.metadata.Distribution]]:
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return
    try:
        seen[key] = importlib.metadata.distribution(key)
    except importlib.metadata.PackageNotFoundError:
        return  # needed only on another platform or Python
    yield key, seen[key]
    for requirement in seen[key].requires or ():
        if "extra ==" not in requirement:
            yield from _needed(re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0], seen)
