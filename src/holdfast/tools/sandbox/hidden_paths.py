"""Which paths are kept from tools, worked out on real paths: a symbolic link must not make a private file public."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

MOST_BESIDE: Final = 500  # each takes a mount


def resolve(hidden: Iterable[os.PathLike[str]], shown: Iterable[str]) -> tuple[str, ...]:
    """Real paths, each once. A directory that holds something that must be shown is left out.

    Nothing is lost by that if it only holds something shown, because the rest of it is not shown. If it is itself
    shown, its private files have to be named one by one.
    """
    needed = [os.path.realpath(path) for path in shown]
    paths = sorted({os.path.realpath(path) for path in hidden}, key=len)
    kept: list[str] = []
    for path in paths:
        if any(lies_in(other, path) for other in needed) or any(lies_in(path, other) for other in kept):
            continue
        kept.append(path)
    return tuple(kept)


def seen_at(hidden: Iterable[str], shown: Iterable[str]) -> tuple[str, ...]:
    """Where hidden paths would appear if each shown path were mounted, whatever links it went through, as named."""
    found: dict[str, None] = {}
    for path in hidden:
        for name in shown:
            real = os.path.realpath(name)
            if lies_in(path, real):
                found[os.path.join(name, os.path.relpath(path, real))] = None
    return tuple(found)


def around(shown: Iterable[str], hidden: Iterable[str]) -> tuple[str, ...]:
    """Paths that together show what `shown` does, without the hidden ones. Landlock can grant a tree, not cut one."""
    secret = tuple(hidden)
    found: dict[str, None] = {}
    for path in shown:
        found.update(dict.fromkeys(_around(os.path.realpath(path), secret)))
    return tuple(found)


def mixed(hidden: Iterable[str]) -> tuple[str, ...]:
    """The directories of which only some files are hidden, outer ones first.

    A mount over a single file would not do: it is gone when the file is removed, and what is then made in its place can
    be seen. So the whole directory is covered and what may be seen of it is put back.
    """
    parents = {os.path.dirname(path) for path in hidden if not os.path.isdir(path)}
    return tuple(sorted((path for path in parents if os.path.isdir(path)), key=len))


def kept_in(directory: str, hidden: Iterable[str]) -> list[str]:
    """The names in a directory that are not hidden."""
    secret = {os.path.basename(path) for path in hidden if os.path.dirname(path) == directory}
    return sorted(set(os.listdir(directory)) - secret)


def too_full(hidden: Iterable[str]) -> str:
    """Why files cannot be hidden one by one, or nothing."""
    for directory in mixed(hidden):
        if len(os.listdir(directory)) > MOST_BESIDE:
            return (
                f"the files of the server in {directory} lie among more than {MOST_BESIDE} others and cannot be hidden "
                "from tools: give the database and the data directory a directory of its own"
            )
    return ""


def lies_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def _around(path: str, hidden: tuple[str, ...]) -> list[str]:
    if any(lies_in(path, other) for other in hidden):
        return []
    if not any(lies_in(other, path) for other in hidden):
        return [path]
    try:
        with os.scandir(path) as entries:
            # A rule on a link is one on what it leads to, which is shown by its own name or not at all.
            inside = [entry.path for entry in entries if not entry.is_symlink()]
    except OSError:
        return []
    return [each for entry in inside for each in _around(entry, hidden)]
