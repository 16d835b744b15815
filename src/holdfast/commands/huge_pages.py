"""Has the kernel keep what the server has loaded in pages of 2 MB instead of 4 KB.

A turn touches objects all over the heap. Where a page lies has to be looked up again and again, in the tables of two
kernels on a virtual machine, and that took a twelfth of a turn. Linux does it unasked only where it is set to `always`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPS: Final = Path("/proc/self/smaps")
_SIZE: Final = 2 * 1024 * 1024
_MADV_HUGEPAGE: Final = 14
_MADV_COLLAPSE: Final = 25  # at once; kernels before 6.1 refuse it, and come round to it by themselves
_HEAP: Final = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) rw-p \S+ 00:00 0 *(?:\[heap\])?\n"
    r"Size: +(?P<size>\d+) kB\n(?:\w+: +\d+ kB\n)*?Rss: +(?P<resident>\d+) kB\n",
    re.MULTILINE,
)

log = logging.getLogger(__name__)


def use(setting: Path = _SETTING) -> int:
    """How many there are now; none where the kernel has no such pages, or its administrator does not want them."""
    if not setting.exists() or "[never]" in setting.read_text():
        return 0
    import ctypes  # noqa: PLC0415 - not for the other commands, nor before the server is up

    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    made = 0
    for start, end in filled(_MAPS.read_text()):
        advise(start, end - start, _MADV_HUGEPAGE)
        made += 0 if advise(start, end - start, _MADV_COLLAPSE) else (end - start) // _SIZE
    log.debug("%d huge pages hold what was loaded", made)
    return made


def filled(maps: str) -> Iterator[tuple[int, int]]:
    """Where memory of the process's own is mostly in use, in whole pages: others, such as stacks, would only grow."""
    for found in _HEAP.finditer(maps):
        start = -(-int(found["start"], 16) // _SIZE) * _SIZE
        end = int(found["end"], 16) // _SIZE * _SIZE
        if start < end and 4 * int(found["resident"]) >= 3 * int(found["size"]):
            yield start, end
