"""The directory in which calls have their own, where bubblewrap does not provide one.

A server that is killed leaves it behind, with whatever its calls had written; the next server removes it. Each holds a
lock on a file in its directory for as long as it lives, so that nobody removes what is in use.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from holdfast.tools.sandbox.contract import CALL

_log = logging.getLogger(__name__)
_PREFIX: Final = "holdfast-tools-"
_LOCK: Final = "lock"


class Scratch:
    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def make_scratch() -> Scratch:
    remove_abandoned(Path(tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    path.chmod(0o711)  # a call's own user has to pass through
    (path / CALL).mkdir()
    # Locked before it has its name: whoever finds it under that name finds it locked.
    lock = os.open(path / f"new-{_LOCK}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (path / f"new-{_LOCK}").rename(path / _LOCK)
    return Scratch(path, lock)


def remove_abandoned(parent: Path) -> None:
    """Only our own: others may write to such a parent, too."""
    try:
        with os.scandir(parent) as found:
            ours = [one.path for one in found if one.name.startswith(_PREFIX) and _is_own_directory(one)]
    except PermissionError:  # one may write to a directory that one may not list
        return
    for path in ours:
        try:
            lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # it is being made, or removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # in use
        else:
            _log.info("removing %s, which a server that was killed left behind", path)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _is_own_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:  # removed meanwhile
        return False
