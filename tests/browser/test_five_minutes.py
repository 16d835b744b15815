"""From the README alone to an approved tool call. The steps are read from the README and done as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import watchdog
from tests.serving import hold_port
from tests.surroundings import calm

from .conftest import Open, Shot

ROOT = Path(__file__).parents[2]
CLICKS = 3
SECONDS = 60.0  # of the five minutes; the rest is for the installation and the reader


def steps() -> list[str]:
    part = re.search(
        r"<!-- five-minutes:start -->\n(.*?)\n<!-- five-minutes:end -->", (ROOT / "README.md").read_text(), re.S
    )
    assert part, "the README has no five minutes"
    return re.findall(r"^\d\. (.*)$", part[1], re.M)


def command_of(target: str) -> list[str]:
    """What `make target` runs once everything is installed."""
    recipe = re.search(rf"^{target}:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert recipe
    return recipe[1].replace("$(BIN)", str(ROOT / ".venv" / "bin")).split()


class Reader:
    """Somebody who does what the README says."""

    def __init__(self, open_page: Open, shot: Shot, data_dir: Path) -> None:
        self.clicks = 0
        self.page: Page | None = None
        self._open, self._shot, self._data_dir = open_page, shot, data_dir
        self._process: subprocess.Popen[str] | None = None
        self._address: str | None = None

    def do(self, step: str) -> None:
        if command := re.match(r"Run `make (\w+)`", step):
            self._start(command_of(command[1]))
        elif step.startswith("Open that address"):
            assert self._address is not None
            self.page = self._open(self._address)
        elif labels := re.findall(r"\*\*(.+?)\*\*", step):
            for label in labels:
                self._click(label)
        else:
            raise AssertionError(f"nobody could know what to do: {step}")

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate(timeout=30)
            watchdog.forget(self._process.pid)

    def _start(self, command: list[str]) -> None:
        surroundings = {"HOLDFAST_PORT": str(hold_port(self)), "HOLDFAST_DATA_DIR": str(self._data_dir)}
        self._process = subprocess.Popen(
            command, env=calm(os.environ) | surroundings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        watchdog.end_with_us(self._process.pid)
        assert self._process.stdout is not None
        told = ""
        while "API key" not in told:  # the last line of the welcome
            line = self._process.stdout.readline()
            assert line, f"the server ended: {told}"
            told += line
        addresses = re.findall(r"https?://\S+", told)
        assert len(addresses) == 1, "it prints one address"
        self._address = addresses[0]

    def _click(self, label: str) -> None:
        assert self.page is not None
        button = self.page.get_by_role("button", name=label, exact=True)
        expect(button).to_be_visible()
        expect(self.page.get_by_role("button", name="Stop")).to_be_hidden()
        self._shot(self.page, {0: "first-run", 1: "first-chat", 2: "chat"}.get(self.clicks, "more"))
        button.click()
        self.clicks += 1


@pytest.fixture
def reader(open_page: Open, shot: Shot, tmp_path: Path) -> Generator[Reader]:
    made = Reader(open_page, shot, tmp_path / "data")
    yield made
    made.end()


def test_the_readme_leads_to_an_approved_call_within_five_minutes(reader: Reader) -> None:
    begun = time.monotonic()
    for step in steps():
        reader.do(step)
    assert reader.page is not None
    expect(reader.page.locator(".message.assistant")).to_contain_text("An invoice over 120 euros was sent to Ada.")
    took = time.monotonic() - begun
    print(f"the README's five minutes: {reader.clicks} clicks, {took:.1f} s")
    assert reader.clicks == CLICKS
    assert took < SECONDS
