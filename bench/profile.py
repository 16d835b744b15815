"""Where the calls and the time of a request go: by package, and the functions that take the most.

python -m bench.profile ["no-tool turn" | "one-tool turn" | "create an agent"] [--database postgresql] [--times 200]

In this process and without a socket: what a server does, but for the HTTP of uvicorn. The time is that of the processor
with cProfile, which makes calls look dearer than they are: compare shares, not milliseconds.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import re
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, cast, get_args

import uvloop
from tests.costs import What, application, ask, requests
from tests.sqlite import new_database

from bench.postgres import databases

WARM_UP: Final = 20
_PACKAGE: Final = re.compile(r"holdfast/\w+|site-packages/\w+|python3[.0-9]+/(?!site-packages)\w+")


async def profiled(directory: Path, database_url: str | None, what: What, times: int) -> pstats.Stats:
    """Of the event loop and of SQLite's writer."""
    profiles = [cProfile.Profile(time.thread_time)]  # whoever waits takes no time

    def profile_thread(*_: Any) -> None:
        profiles.append(cProfile.Profile(time.thread_time))
        profiles[-1].enable()

    threading.setprofile(profile_thread)
    async with application(directory, database_url) as app:
        threading.setprofile(None)
        path, body = (await requests(app))[what]
        for _ in range(WARM_UP):
            await ask(app, "POST", path, body)
        for profile in profiles:
            profile.clear()
        profiles[0].enable()
        for _ in range(times):
            await ask(app, "POST", path, body)
        profiles[0].disable()
    return pstats.Stats(*profiles)


def by_package(stats: pstats.Stats, times: int) -> list[str]:
    calls: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)
    rows: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = cast("Any", stats).stats
    for (file, _, name), (_, count, own_s, _, _) in rows.items():
        if "SimpleQueue" in name:  # SQLite's writer was in it when the profile was cleared
            continue
        package = _package(file, name)
        calls[package] += count
        seconds[package] += own_s
    whole = sum(seconds.values())
    return [
        f"{package:28}{calls[package] / times:9.1f} calls {own_s / whole:6.1%} of the time"
        for package, own_s in sorted(seconds.items(), key=lambda item: -item[1])
        if own_s / whole > 0.005
    ]


def _package(file: str, name: str) -> str:
    if file == "~":
        return "SQLite" if "sqlite3" in name else "built in"
    found = _PACKAGE.search(file)
    return found[0].removeprefix("site-packages/") if found else "other"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("what", choices=get_args(What), nargs="?", default="no-tool turn")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--functions", type=int, default=25, help="how many to show")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, databases(given.database, 1) as [environment]:
        if given.database == "sqlite":
            new_database(Path(folder))
        url = environment.get("HOLDFAST_DATABASE_URL")
        stats = uvloop.run(profiled(Path(folder), url, given.what, given.times))
    print(*by_package(stats, given.times), sep="\n")
    stats.sort_stats("tottime").print_stats(given.functions)


if __name__ == "__main__":
    main()
