"""`make bench`: measures a server of its own on loopback and prints each figure beside its goal.

python -m bench [--only turns,streaming] [--json FILE] [--readme]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import uvloop

from bench import footprint, sections
from bench.client import Client
from bench.history import history
from bench.process import Server
from bench.sections import Row

SECTIONS = {
    "idle": footprint.idle,
    "turns": sections.turns,
    "throughput": sections.throughput,
    "streaming": sections.streaming,
    "cancel": sections.cancelling,
    "agents": sections.agents_section,
}
MARKS = "<!-- bench:start -->", "<!-- bench:end -->"


async def measure(only: set[str]) -> list[Row]:
    rows: list[Row] = []
    for name, section in SECTIONS.items():
        if not only or name in only:
            with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
                async with Client(server.url) as client:
                    rows += _told(await section(server, client))
    if not only or "history" in only:
        with tempfile.TemporaryDirectory() as folder:
            rows += _told(await history(Path(folder)))
    if not only or "footprint" in only:
        rows += _told(footprint.installed())
    return rows


def _told(rows: list[Row]) -> list[Row]:
    for row in rows:
        print(f"{'ok  ' if row.met else 'MISS'} {row.what}: {row.value:,.2f} {row.unit} (goal {row.goal})", flush=True)
    return rows


def table(rows: list[Row]) -> str:
    lines = ["| what | measured | goal | met | retired server |", "|---|---|---|---|---|"]
    for row in rows:
        shown = f"{row.value:,.0f}" if row.value >= 1_000 or row.value == int(row.value) else f"{row.value:,.2f}"
        met = "yes" if row.met else "**no**"
        lines.append(f"| {row.what} | {shown} {row.unit} | {row.goal} {row.unit} | {met} | {row.old} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"comma list of {', '.join([*SECTIONS, 'history', 'footprint'])}")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    arguments = parser.parse_args()
    rows = uvloop.run(measure({name for name in arguments.only.split(",") if name}))
    if arguments.json:
        arguments.json.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    if arguments.readme:
        readme = Path("README.md")
        start, end = MARKS
        before, rest = readme.read_text().split(start)
        readme.write_text(f"{before}{start}\n{table(rows)}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
