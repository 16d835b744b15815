"""Brings the database to the newest schema. `serve` does the same at its start; this is for doing it beforehand."""

from __future__ import annotations

import argparse
import asyncio

from holdfast.commands import settings_from
from holdfast.store.database import open_database


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    settings.make_data_dir()
    asyncio.run(_open_and_close(settings.database_address))
    print("The database is up to date.")
    return 0


async def _open_and_close(address: str) -> None:
    database = await open_database(address)
    await database.aclose()
