"""Installs the project into .venv, for the Makefile: `python scripts/install.py serving` or `… development`.

The two share one environment: the second adds to the first. Needs nothing but the standard library, because it runs
before anything is installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SOURCES = (ROOT / "pyproject.toml", ROOT / "constraints.txt")
WANTED = {"serving": ".", "development": ".[dev]"}
STAMPS = {"serving": VENV / ".serving", "development": VENV / ".ready"}  # the Makefile's targets


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in WANTED:
        print(f"usage: install.py {'|'.join(WANTED)}", file=sys.stderr)
        return 2
    [kind] = arguments
    with _alone():
        if _is_installed(kind):  # by whoever we waited for
            return 0
        began_ns = time.time_ns()
        if not (_has_environment() and _install(WANTED[kind])):
            return 1
        _stamp(kind, began_ns)
    return 0


@contextmanager
def _alone() -> Generator[None]:
    """Two makes at once would install over each other. The lock ends with the process, however that ends. A file that
    is always there is locked, because .venv is not there yet and a file of its own would have to be cleaned up."""
    with open(ROOT / "Makefile", "r+") as held:  # network file systems lock only what may be written
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another make that is setting up .venv …", file=sys.stderr)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _is_installed(kind: str) -> bool:
    stamp = STAMPS[kind]
    return stamp.exists() and all(stamp.stat().st_mtime_ns >= source.stat().st_mtime_ns for source in SOURCES)


def _stamp(kind: str, began_ns: int) -> None:
    """As old as the start, so that a requirement changed meanwhile is noticed. Development includes serving."""
    for done in WANTED if kind == "development" else (kind,):
        STAMPS[done].touch()
        os.utime(STAMPS[done], ns=(began_ns, began_ns))


def _has_environment() -> bool:
    if os.access(PYTHON, os.X_OK):
        return True
    if uv := shutil.which("uv"):
        return _run(uv, "venv", "--quiet", "--python", sys.executable, str(VENV))
    if _run(sys.executable, "-m", "venv", str(VENV)):
        return True
    shutil.rmtree(VENV, ignore_errors=True)
    print(
        f"{sys.executable} cannot make environments. On Debian and Ubuntu: apt-get install python3-venv",
        file=sys.stderr,
    )
    return False


def _install(project: str) -> bool:
    print(f"Installing {project} into .venv …", file=sys.stderr)
    if uv := shutil.which("uv"):
        installer = (uv, "pip", "install", "--python", str(PYTHON))
    else:
        installer = (str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check")
    return _run(*installer, "--quiet", "--constraint", "constraints.txt", "--editable", project)


def _run(*command: str) -> bool:
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
