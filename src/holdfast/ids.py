"""Identifiers: `<prefix>-<uuid4>`, some of them derived so that a repeated write is the same write.

Message ids keep their lowest seven bits clear. A stored message is shown to clients as several messages that share its
id; each of those carries an `otid`, which is the id's uuid with the index of the shown message in those seven bits.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final

DEFAULT_USER: Final = "user-00000000-0000-4000-8000-000000000000"
DEFAULT_ORG: Final = "org-00000000-0000-4000-8000-000000000000"
MAX_PARTS: Final = 128

UUID4_PATTERN: Final = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_UUID4 = re.compile(UUID4_PATTERN)
_LOW_BITS: Final = MAX_PARTS - 1
# The bits in which a uuid says that it is one, of version 4; see RFC 9562, sections 4.1 and 4.2.
_MARKS: Final = (0xF << 76) | (0x3 << 62)
_VERSION_4: Final = (0x4 << 76) | (0x2 << 62)


def new(prefix: str) -> str:
    return _spelled(prefix, os.urandom(16))


def derive(prefix: str, *parts: object) -> str:
    """The same parts always give the same id, so that a write that is repeated is the same write (decision 4)."""
    text = "\x1f".join(map(str, parts))
    return _spelled(prefix, hashlib.blake2b(text.encode(), digest_size=16, person=b"holdfast").digest())


def part_otid(message_id: str, index: int) -> str:
    """The otid of the index-th wire message made from one stored message."""
    if not 0 <= index < MAX_PARTS:
        raise ValueError(f"a message shows at most {MAX_PARTS} parts, not {index + 1}")
    tail = message_id.partition("-")[2]
    low = int(tail[-2:], 16)
    return f"{tail[:-2]}{low & ~_LOW_BITS | index:02x}"


def is_id(prefix: str, text: str) -> bool:
    head, _, tail = text.partition("-")
    return head == prefix and _UUID4.fullmatch(tail) is not None


def _spelled(prefix: str, random_bytes: bytes) -> str:
    """By hand, because a turn makes a dozen of them and the library's uuid takes several times as long."""
    value = int.from_bytes(random_bytes) & ~_MARKS & ~_LOW_BITS | _VERSION_4
    text = f"{value:032x}"
    return f"{prefix}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
