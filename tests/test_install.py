"""What `make` sets up, with an installer that only writes down what it was asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a make or two for each

ROOT = Path(__file__).parents[1]
UV = """#!/bin/sh
case $1 in
venv)
	mkdir -p .venv/bin
	printf '#!/bin/sh\\necho "served: $*"\\n' >.venv/bin/holdfast
	chmod +x .venv/bin/holdfast
	cp .venv/bin/holdfast .venv/bin/python ;;
pip)
	for last; do :; done
	echo "begin $last" >>log
	test -p gate && cat gate >/dev/null
	test -e broken && exit 1
	echo "end $last" >>log ;;
esac
"""


class Clone:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts" / "install.py", folder / "scripts")
        programs = folder / "programs"
        programs.mkdir()
        (programs / "uv").write_text(UV)
        (programs / "uv").chmod(0o755)
        # Of the make that runs these tests, nothing is passed on.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        self.environment = kept | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            ["make", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(made)
        return made

    def make(self, *arguments: str) -> tuple[int, str]:
        made = self.start(*arguments)
        out, err = made.communicate()
        return made.returncode, out + err

    def log(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def change(self, name: str) -> None:
        """As an editor would, later than everything that was made so far."""
        newest = max(path.stat().st_mtime_ns for path in (self.folder / ".venv").iterdir())
        os.utime(self.folder / name, ns=(newest + 1, newest + 1))


@pytest.fixture
def clone(tmp_path: Path) -> Generator[Clone]:
    made = Clone(tmp_path)
    yield made
    for process in made.started:
        with process:
            process.kill()


def test_make_alone_says_what_there_is_and_installs_nothing(clone: Clone) -> None:
    status, shown = clone.make()
    assert status == 0
    for words in ("make run", "make test ", "make test-0x", "http://127.0.0.1:8283"):
        assert words in shown
    assert not (clone.folder / ".venv").exists()


def test_serving_installs_only_what_serving_needs_and_the_tests_add_the_rest_once(clone: Clone) -> None:
    status, shown = clone.make("run")
    assert (status, "served: serve" in shown) == (0, True)
    assert clone.log() == ["begin .", "end ."]
    clone.make("run")
    assert clone.log() == ["begin .", "end ."]
    assert clone.make("setup")[0] == 0
    assert clone.log()[2:] == ["begin .[dev]", "end .[dev]"]
    clone.make("setup", "run")
    assert len(clone.log()) == 4


def test_who_has_everything_has_what_serving_needs(clone: Clone) -> None:
    clone.make("setup")
    clone.make("run")
    assert clone.log() == ["begin .[dev]", "end .[dev]"]


def test_serving_can_be_given_extras(clone: Clone) -> None:
    for _ in range(2):
        assert clone.make("run", "EXTRAS=vendors,telemetry")[0] == 0
    assert clone.log() == ["begin .[vendors,telemetry]", "end .[vendors,telemetry]"]
    status, shown = clone.make("run", "EXTRAS=wings")
    assert status != 0
    assert "There is no extra 'wings'; there are: client, embeddings," in shown
    assert len(clone.log()) == 2


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_changed_requirements_are_installed_anew(clone: Clone, name: str) -> None:
    clone.make("setup")
    clone.change(name)
    clone.make("run")
    assert clone.log()[2:] == ["begin .", "end ."]
    clone.make("setup")
    assert clone.log()[4:] == ["begin .[dev]", "end .[dev]"]


@pytest.mark.parametrize(
    ("first", "second", "installs"), [("run", "run", 1), ("setup", "setup", 1), ("run", "setup", 2)]
)
def test_two_makes_at_once_install_one_after_the_other(clone: Clone, first: str, second: str, installs: int) -> None:
    gate = clone.folder / "gate"
    os.mkfifo(gate)
    one = clone.start(first)
    with gate.open("w"):  # opens once the installer of the first is at work
        two = clone.start(second)
        assert two.stderr is not None
        assert "another make" in two.stderr.readline()
        gate.unlink()
    assert (one.wait(), two.wait()) == (0, 0)
    log = clone.log()
    assert [line.split()[0] for line in log] == ["begin", "end"] * installs


def test_an_install_that_failed_is_tried_again(clone: Clone) -> None:
    (clone.folder / "broken").touch()
    status, shown = clone.make("run")
    assert status != 0
    assert "served" not in shown
    (clone.folder / "broken").unlink()
    assert clone.make("run")[0] == 0
    assert clone.log() == ["begin .", "begin .", "end ."]


def test_without_a_python_that_is_new_enough_it_says_so(clone: Clone) -> None:
    status, shown = clone.make("run", "PYTHON=")
    assert status != 0
    assert "Python 3.11 or newer was not found" in shown
