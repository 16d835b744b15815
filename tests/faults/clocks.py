"""A wrong clock for a real server, by libfaketime (Debian's package `faketime`). It may be set again while it runs.

Only the wall clock is wrong: no machine's monotonic clock jumps.
"""

from __future__ import annotations

from pathlib import Path


def library() -> Path | None:
    """Where it is installed. The variant for programs with threads."""
    found = [
        path for where in ("*/faketime", "faketime") for path in Path("/usr/lib").glob(f"{where}/libfaketimeMT.so*")
    ]
    return found[0] if found else None


class WrongClock:
    def __init__(self, directory: Path) -> None:
        self._file = directory / "clock"
        self.set(0)

    def set(self, ahead_s: float) -> None:
        """Negative: behind."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{ahead_s:+}\n")
        written.rename(self._file)  # a server that reads it just now sees one or the other

    @property
    def environment(self) -> dict[str, str]:
        preloaded = library()
        assert preloaded is not None, "libfaketime is not installed: apt-get install faketime"
        return {
            "LD_PRELOAD": str(preloaded),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # seconds; without it every look at the clock opens the file
            "FAKETIME_DISABLE_SHM": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
