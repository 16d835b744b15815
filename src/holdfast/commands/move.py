"""Copies a database into another one, of the same kind or not, and verifies the copy."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from typing import Final, TextIO

import msgspec

from holdfast.private_files import KEY_FILE
from holdfast.store import move
from holdfast.store.move import Phase, Verified
from holdfast.store.move_sides import open_source, open_target

DIFFERENT: Final = 1
_BAR: Final = 30
_REDRAWN_S: Final = 0.1
_SAID_S: Final = 5.0  # where there is no terminal: a line now and then
_CLEAR_LINE: Final = "\r\x1b[K"


class Report(msgspec.Struct, frozen=True):
    source: str
    target: str
    identical: bool
    resumed: bool
    rows: int
    copied: int  # by this command; the others were there from before
    seconds: float
    rows_per_second: int
    tables: list[Verified]


def run(arguments: argparse.Namespace) -> int:
    gc.enable()  # it goes on for long
    report = asyncio.run(move_database(arguments.source, arguments.target, sys.stderr))
    print(msgspec.json.encode(report).decode() if arguments.json else text_of(report))
    return 0 if report.identical else DIFFERENT


async def move_database(source_url: str, target_url: str, shown: TextIO) -> Report:
    async with open_source(source_url) as source, open_target(target_url, source) as target:
        record = await move.begin(source, target)
        total = await move.count_rows(source)
        copying = Meter("copying", total, shown, done=record.rows)
        await move.copy(source, target, record, copying.add)
        copied, seconds = copying.end()
        verifying = Meter("verifying", 2 * total, shown)
        tables = await move.verify(source, target, verifying.add)
        verifying.end()
        identical = all(table.same for table in tables)
        if identical:
            await move.finish(target)
        return Report(
            source.name,
            target.name,
            identical,
            resumed=record.rows > 0,
            rows=total,
            copied=copied,
            seconds=round(seconds, 3),
            rows_per_second=_rate(copied, seconds),
            tables=tables,
        )


class Meter:
    """How far it has come: a bar that is drawn again and again on a terminal, else a line every few seconds."""

    def __init__(self, phase: Phase, total: int, shown: TextIO, done: int = 0) -> None:
        self._phase = phase
        self._total = total
        self._shown = shown
        self._is_terminal = shown.isatty()
        self._before = done
        self._added = 0
        self._started = time.monotonic()
        self._said_at = self._started

    def add(self, phase: Phase, table: str, rows: int) -> None:
        self._added += rows
        now = time.monotonic()
        if now - self._said_at >= (_REDRAWN_S if self._is_terminal else _SAID_S):
            self._said_at = now
            self._say(self._line(table, now - self._started))

    def end(self) -> tuple[int, float]:
        """How many rows were done, and in how many seconds."""
        seconds = time.monotonic() - self._started
        self._say(f"{self._phase}: {self._added:,} rows in {seconds:.1f} s, {_rate(self._added, seconds):,} rows/s\n")
        return self._added, seconds

    def _line(self, table: str, seconds: float) -> str:
        done = self._before + self._added
        share = min(1.0, done / self._total) if self._total else 1.0
        rate = _rate(self._added, seconds)
        left = f"{max(0, self._total - done) / rate:.0f} s left" if rate else "…"
        text = f"{self._phase} {share:4.0%}  {done:,} of {self._total:,} rows  {rate:,} rows/s  {left}  {table}"
        if not self._is_terminal:
            return f"{text}\n"
        return f"[{'#' * round(share * _BAR):<{_BAR}}] {text}"

    def _say(self, text: str) -> None:
        self._shown.write(f"{_CLEAR_LINE}{text}" if self._is_terminal else text)
        self._shown.flush()


def text_of(report: Report) -> str:
    lines = [f"{'TABLE':<18}{'ROWS':>12}  HASH"]
    for table in report.tables:
        if table.same:
            lines.append(f"{table.table:<18}{table.source_rows:>12,}  {table.source_hash[:16]}")
        else:
            lines.append(f"{table.table:<18}{table.source_rows:>12,}  {table.source_hash[:16]}  in the source")
            lines.append(f"{'':<18}{table.target_rows:>12,}  {table.target_hash[:16]}  in the target: DIFFERENT")
    return "\n".join([*lines, "", *_conclusion(report)])


def _conclusion(report: Report) -> list[str]:
    if not report.identical:
        return [
            "The two databases differ. Something has written to the source or the target since the move began.",
            "No server will use the target. Stop what runs on the source, and move into an empty database.",
        ]
    return [
        f"{report.source} is now also in {report.target}: {report.rows:,} rows, verified.",
        f"Secrets are sealed as before: the new server needs the same {KEY_FILE} in its data directory, or the same "
        "HOLDFAST_ENCRYPTION_KEY.",
        "Set HOLDFAST_DATABASE_URL to the target and start the server; it carries on what was active.",
    ]


def _rate(rows: int, seconds: float) -> int:
    return round(rows / seconds) if seconds > 0 else 0
