"""What a transaction has changed that others may want to know of: said by the functions that write it, told after the
commit.

A change is a hint, never the truth: whoever hears of one reads what it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

ChangeType = Literal["run", "approval", "agent", "file"]


class Change(msgspec.Struct, frozen=True, array_like=True):
    type: ChangeType
    id: str  # of an approval: that of the run which waits
    status: str
    agent_id: str | None = None
    thread_id: str | None = None
    stop_reason: str | None = None
    folder_id: str | None = None


def tell_nobody(_: Sequence[Change]) -> None:
    pass
