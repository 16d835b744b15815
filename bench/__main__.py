"""`make bench`: measures a server of its own on loopback and prints each figure beside its goal.

python -m bench [--only turns,streaming] [--times 5] [--json FILE] [--readme]

Machines have good and bad minutes, so what is published is the median of several runs, with the range beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import uvloop

from bench import footprint, sections
from bench.agent_files import agent_files
from bench.archival import archival
from bench.calibration import loop_ms
from bench.client import Client
from bench.fleet import fleet
from bench.history import history
from bench.ingestion import ingestion
from bench.lists import lists
from bench.models import models
from bench.process import Server
from bench.run_statistics import run_statistics
from bench.sections import Row

SECTIONS = {
    "idle": footprint.idle,
    "turns": sections.turns,
    "throughput": sections.throughput,
    "streaming": sections.streaming,
    "cancel": sections.cancelling,
    "agents": sections.agents_section,
}
OTHERS = ("history", "archival", "files", "lists", "statistics", "ingestion", "models", "fleet", "footprint")
MARKS = "<!-- bench:start -->", "<!-- bench:end -->"


async def measure(only: set[str], paces: list[float]) -> list[Row]:
    rows: list[Row] = []
    for name, section in SECTIONS.items():
        if not only or name in only:
            paces.append(loop_ms())
            with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
                async with Client(server.url) as client:
                    rows += _told(await section(server, client))
    paces.append(loop_ms())
    if not only or "history" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await history(Path(folder)))
    if not only or "archival" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await archival(Path(folder)))
    if not only or "files" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await agent_files(Path(folder)))
    if not only or "lists" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await lists(Path(folder)))
    if not only or "statistics" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await run_statistics(Path(folder)))
    if not only or "ingestion" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await ingestion(Path(folder)))
    if not only or "models" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await models(Path(folder)))
    if not only or "fleet" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await fleet(Path(folder)))
    if not only or "footprint" in only:
        rows += _told(footprint.installed())
    paces.append(loop_ms())
    return rows


def _told(rows: list[Row]) -> list[Row]:
    for row in rows:
        anyhow = f", {row.at_any_pace:,.2f} at any pace" if row.at_any_pace is not None else ""
        met = "ok  " if row.met else "MISS"
        print(f"{met} {row.what}: {row.value:,.2f} {row.unit} (goal {row.goal}{anyhow})", flush=True)
    return rows


async def measure_often(only: set[str], times: int, paces: list[float]) -> list[list[Row]]:
    """For each figure, its rows from all runs, smallest value first. `paces` is told the machine's pace meanwhile."""
    runs = [await measure(only, paces) for _ in range(times)]
    return [sorted(rows, key=lambda row: row.value) for rows in zip(*runs, strict=True)]


def median(rows: list[Row]) -> Row:
    return rows[len(rows) // 2]


def table(figures: list[list[Row]]) -> str:
    lines = ["| what | median | range | goal | met | at any pace | retired server |", "|---|---|---|---|---|---|---|"]
    for rows in figures:
        row = median(rows)
        paces = [one.at_any_pace for one in rows if one.at_any_pace is not None]
        anyhow = f"{_shown(statistics.median(paces))} {row.unit}" if paces else ""
        spread = f"{_shown(rows[0].value)} – {_shown(rows[-1].value)}"
        met = "yes" if row.met else "**no**"
        lines.append(
            f"| {row.what} | {_shown(row.value)} {row.unit} | {spread} | {row.goal} {row.unit} | {met} | {anyhow} "
            f"| {row.old} |"
        )
    return "\n".join(lines)


def spoken(paces: list[float]) -> str:
    return (
        f"Meanwhile a loop of Python that is always the same took {statistics.median(paces):.2f} ms "
        f"({min(paces):.2f} – {max(paces):.2f}): so much the machine itself changed its pace."
    )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 or value == int(value) else f"{value:,.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only",
        default="",
        help=f"comma list of {', '.join([*SECTIONS, *OTHERS])}",
    )
    parser.add_argument("--times", type=int, default=1, help="how often to measure everything; an odd number is best")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    arguments = parser.parse_args()
    paces: list[float] = []
    figures = uvloop.run(measure_often({name for name in arguments.only.split(",") if name}, arguments.times, paces))
    print(spoken(paces))
    if arguments.json:
        told = [median(rows)._asdict() | {"values": [row.value for row in rows]} for rows in figures]
        arguments.json.write_text(json.dumps(told, indent=1))
    if arguments.readme:
        readme = Path("README.md")
        start, end = MARKS
        before, rest = readme.read_text().split(start)
        readme.write_text(f"{before}{start}\n{table(figures)}\n\n{spoken(paces)}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
