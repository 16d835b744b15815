"""Seals every stored secret with the newest encryption key. How a key is replaced: docs/security.md."""

from __future__ import annotations

import argparse
import asyncio

from holdfast.actions.reseal import Resealed, reseal
from holdfast.commands import settings_from
from holdfast.settings import Settings
from holdfast.store.database import open_database
from holdfast.wiring import open_secretbox

UNREADABLE = 1


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    settings.make_data_dir()
    done = asyncio.run(_reseal(settings))
    print(f"Sealed with the newest key: {done.changed}.")
    if not done.unreadable:
        return 0
    print(f"Not readable with any of the keys, and left as they are: {done.unreadable}. Do not throw a key away yet.")
    return UNREADABLE


async def _reseal(settings: Settings) -> Resealed:
    database = await open_database(settings.database_address)
    try:
        return await reseal(database, open_secretbox(settings))
    finally:
        await database.aclose()
