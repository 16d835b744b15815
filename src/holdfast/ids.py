"""Identifiers: `<prefix>-<uuid4>`, some of them derived so that a repeated write is the same write.

Message ids keep their lowest seven bits clear. A stored message is shown to clients as several messages that share its
id; each of those carries an `otid`, which is the id's uuid with the index of the shown message in those seven bits.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

DEFAULT_USER: Final = "user-00000000-0000-4000-8000-000000000000"
DEFAULT_ORG: Final = "org-00000000-0000-4000-8000-000000000000"
MAX_PARTS: Final = 128

UUID4_PATTERN: Final = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_UUID4 = re.compile(UUID4_PATTERN)
_LOW_BITS: Final = MAX_PARTS - 1


def new(prefix: str) -> str:
    return f"{prefix}-{_clear_low_bits(uuid.uuid4().int)}"


def derive(prefix: str, *parts: object) -> str:
    """The same parts give the same id, for ever."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=16, person=b"holdfast").digest()
    return f"{prefix}-{_clear_low_bits(uuid.UUID(bytes=digest, version=4).int)}"


def part_otid(message_id: str, index: int) -> str:
    """The otid of the index-th wire message made from one stored message."""
    if not 0 <= index < MAX_PARTS:
        raise ValueError(f"a message shows at most {MAX_PARTS} parts, not {index + 1}")
    value = uuid.UUID(message_id.partition("-")[2]).int
    return str(uuid.UUID(int=(value & ~_LOW_BITS) | index))


def is_id(prefix: str, text: str) -> bool:
    head, _, tail = text.partition("-")
    return head == prefix and _UUID4.fullmatch(tail) is not None


def _clear_low_bits(value: int) -> uuid.UUID:
    return uuid.UUID(int=value & ~_LOW_BITS)
