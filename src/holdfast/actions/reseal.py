"""Seals every stored secret with the newest key, so that older keys can be thrown away."""

from __future__ import annotations

import msgspec

from holdfast.errors import WrongKey
from holdfast.secretbox import SecretBox
from holdfast.store import sealed
from holdfast.store.transaction import Database, Transaction


class Resealed(msgspec.Struct, frozen=True):
    changed: int
    unreadable: int  # by any of the keys; they stay as they are


async def reseal(database: Database, secretbox: SecretBox) -> Resealed:
    """Servers may run meanwhile, if they have the newest key too."""

    async def job(tx: Transaction) -> Resealed:
        unreadable = 0

        def with_newest(value: bytes) -> bytes:
            nonlocal unreadable
            if secretbox.is_sealed_with_newest(value):
                return value
            try:
                return secretbox.seal(secretbox.open(value))
            except WrongKey:
                unreadable += 1
                return value

        changed = await sealed.replace(tx, with_newest)
        return Resealed(changed, unreadable)

    return await database.write(job)
