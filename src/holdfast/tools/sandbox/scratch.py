"""The directory in which calls have their own, where bubblewrap does not provide one.

A server that is killed leaves it behind, with whatever its calls had written; the next server removes it. Each holds a
lock on its directory for as long as it lives, so that nobody removes what is in use.
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
_PREFIX: Final = "holdfast-calls-"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def make_scratch() -> Scratch:
    parent = Path(tempfile.gettempdir())
    remove_abandoned(parent)
    new = Path(tempfile.mkdtemp(prefix=f"new-{_PREFIX}"))
    new.chmod(0o711)  # a call's own user has to pass through
    (new / CALL).mkdir()
    # Locked before it has its name: whoever finds it under that name finds it locked.
    lock = os.open(new, _DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return Scratch(new.rename(parent / new.name.removeprefix("new-")), lock)


def remove_abandoned(parent: Path) -> None:
    """Only our own: others may write to such a parent, too."""
    try:
        with os.scandir(parent) as found:
            ours = [one.path for one in found if one.name.startswith(_PREFIX) and _is_own_directory(one)]
    except PermissionError:  # one may write to a directory that one may not list
        return
    for path in ours:
        try:
            lock = os.open(path, _DIRECTORY)
        except FileNotFoundError:
            continue  # removed meanwhile
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
