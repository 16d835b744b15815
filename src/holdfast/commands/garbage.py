"""Python's garbage collector in a process that goes on for long."""

from __future__ import annotations

import gc
from typing import Final

# Nearly everything here is freed by its reference count. With Python's own threshold of 700 new objects, looking for
# cycles takes a tenth of the processor time when 32 agents are busy; with this one it cannot be measured.
_NEW_OBJECTS: Final = 10_000


def collect_rarely() -> None:
    """When all is loaded. `cli` has switched the collector off until then."""
    gc.freeze()  # what was loaded stays for good: no collection need ever walk it
    gc.set_threshold(_NEW_OBJECTS)
    gc.enable()
