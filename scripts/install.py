"""Installs the project into .venv, for the Makefile: `python scripts/install.py STAMP [EXTRA,…]`.

What serving needs and what developing needs share one environment: whatever is asked for is added to what is there. The
stamp is the file that says when that was done. Needs nothing but the standard library, because it runs before anything
is installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SOURCES = (ROOT / "pyproject.toml", ROOT / "constraints.txt")


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print("usage: install.py STAMP [EXTRA,…]", file=sys.stderr)
        return 2
    stamp = ROOT / arguments[0]
    extras = [name.strip() for name in arguments[1].split(",")] if arguments[1:] else []
    known = tomllib.loads(SOURCES[0].read_text())["project"]["optional-dependencies"]
    if unknown := [name for name in extras if name not in known]:
        print(f"There is no extra {unknown[0]!r}; there are: {', '.join(known)}.", file=sys.stderr)
        return 2
    with _alone():
        if _is_fresh(stamp):  # by whoever we waited for
            return 0
        began_ns = time.time_ns()
        if not (_has_environment() and _install(f".[{','.join(extras)}]" if extras else ".")):
            return 1
        # As old as the start, so that a requirement that is changed meanwhile is noticed.
        stamp.touch()
        os.utime(stamp, ns=(began_ns, began_ns))
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


def _is_fresh(stamp: Path) -> bool:
    return stamp.exists() and all(stamp.stat().st_mtime_ns >= source.stat().st_mtime_ns for source in SOURCES)


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
        installer = (uv, "pip", "install", "--compile-bytecode", "--python", str(PYTHON))
    else:
        installer = (str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check")
    return _run(*installer, "--quiet", "--constraint", "constraints.txt", "--editable", project)


def _run(*command: str) -> bool:
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
