"""`python -m tests.tools.as_user UID ARGUMENT…`, called as root: runs pytest with the arguments as that user.

What the tests need may lie in root's home, which no other user can enter. So the child has a mount namespace of its own
in which such a directory is empty but for what is needed, and open to all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from holdfast.tools.sandbox import linux

ROOT = Path(__file__).parents[2]
NEEDED = (Path(sys.prefix), Path(sys.base_prefix), ROOT)


def closed_directory(path: Path) -> Path | None:
    """The highest directory above the path that other users cannot enter."""
    return next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)


def open_to_all(paths: Iterable[Path]) -> None:
    """For this process and its children."""
    hidden = {path: closed for path in paths if (closed := closed_directory(path)) is not None}
    if not hidden:
        return
    linux.unshare(linux.CLONE_NEWNS)
    _mount("--make-rprivate", "/")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as aside:
        kept = {path: Path(aside, str(number)) for number, path in enumerate(hidden)}
        for path, place in kept.items():
            place.mkdir()
            _mount("--rbind", str(path), str(place))
        for closed in set(hidden.values()):
            _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(closed))
        for path, place in kept.items():
            path.mkdir(parents=True, exist_ok=True)
            _mount("--move", str(place), str(path))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def main(uid: int, arguments: list[str]) -> None:
    open_to_all(NEEDED)
    os.chdir(ROOT)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
