"""Lists of agents: a page of 50 among 100,000 agents against the same page among 100, through the API, on both
databases. The small database is the floor: whatever a page costs that does not grow with the number of agents, it
costs there, too.

`python -m bench.lists [sqlite|postgresql]` prints the ratios of one database.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select, text

from bench.calibration import Gauge
from bench.client import Client
from bench.postgres import Kind, databases
from bench.process import Server
from bench.sections import Row, at_most
from bench.socket_client import Line
from holdfast import ids
from holdfast.store.database import open_database
from holdfast.store.group_tables import identities, identity_agents
from holdfast.store.statements import insert_into
from holdfast.store.tables import agent_tags, agents
from holdfast.store.transaction import Transaction

FEW, MANY = 100, 100_000
PAGE: Final = 50
SOME: Final = 60  # agents of one tag, one identity, one name: more than a page
TIMES: Final = 30
GOAL: Final = 1.5
_AT_ONCE: Final = 5_000
# What is asked for, by what it is called. Both databases have the same number of agents that each of these finds.
QUERIES: Final = {
    "the newest": "",
    "the oldest": "order=asc",
    "a cursor deep inside": "after={middle}",
    "a cursor deep inside, oldest first": "order=asc&after={middle}",
    "before a cursor": "before={middle}",
    "by change": "order_by=updated_at",
    "by change, a cursor deep inside": "order_by=updated_at&after={middle}",
    "a tag of some": "tags=some",
    "a tag of all": "tags=all",
    "both tags": "tags=some&tags=all&match_all_tags=true",
    "a tag of all, a cursor deep inside": "tags=all&after={middle}",
    "a name": "name=Agent%2077",
    "a text in all names": "query_text=AGENT",
    "a text in some names": "query_text=quay",
    "an identity of some": "identity_id={identity}",
    "a key of an identity": "identifier_keys=some",
}


async def lists(data_dir: Path) -> list[Row]:
    kinds: tuple[Kind, ...] = ("sqlite", "postgresql")
    # In a thread, because it waits without an event loop.
    return [row for kind in kinds for row in await asyncio.to_thread(_measured, kind, data_dir / kind)]


def _measured(kind: Kind, data_dir: Path) -> list[Row]:
    gauge = Gauge()
    with ExitStack() as stack:
        settings = stack.enter_context(databases(kind, 2))
        ready: list[tuple[Server, dict[str, str]]] = []
        for count, environment in zip((FEW, MANY), settings, strict=True):
            folder = data_dir / str(count)
            folder.mkdir(parents=True)
            with Server(folder, **environment) as server:
                first = asyncio.run(_first(server.url))
            url = environment.get("HOLDFAST_DATABASE_URL", f"sqlite:///{folder}/holdfast.db")
            named = asyncio.run(_filled(url, first, count))
            ready.append((stack.enter_context(Server(folder, **environment)), named))
        # Not earlier: a server does not wait long for somebody who says nothing.
        lines = [(stack.enter_context(Line(server.url)), named) for server, named in ready]
        for _ in range(TIMES):
            for what, query in QUERIES.items():
                for count, (line, named) in zip((FEW, MANY), lines, strict=True):
                    path = f"/agents/?limit={PAGE}&{query.format(**named)}"
                    gauge.take(f"{what} {count}", partial(line.ask, "GET", path), 1)
    return [
        at_most(
            f"list of {PAGE} agents among {MANY:,}, {what}, against {FEW} ({kind})",
            gauge.median_ms(f"{what} {MANY}").at_full_pace / gauge.median_ms(f"{what} {FEW}").at_full_pace,
            "×",
            GOAL,
        )
        for what in QUERIES
    ]


async def _first(url: str) -> str:
    async with Client(url) as client:
        return await client.agent()


async def _filled(url: str, first: str, count: int) -> dict[str, str]:
    """Copies of the first agent, in the order of their ages. What the queries name."""
    database = await open_database(url)
    try:
        row = (await database.read(lambda tx: tx.fetch_all(select(agents).where(agents.c.id == first))))[0]
        known = {column.name: row[column.name] for column in agents.c}
        rows = [
            known
            | {
                "id": ids.new("agent"),
                "name": f"Agent {number}{' of the quay' if _is_one_of_some(number, count) else ''}",
                "created_us": known["created_us"] + number,
                # Changed in an order that is not that of their ages.
                "updated_us": known["created_us"] + number * 7_919 % count,
            }
            for number in range(1, count)
        ]
        identity = ids.new("identity")
        await database.write(lambda tx: _fill_identity(tx, identity))
        for begin in range(0, len(rows), _AT_ONCE):
            await database.write(lambda tx, some=rows[begin : begin + _AT_ONCE]: _fill(tx, some, identity))
        if url.startswith("postgresql"):  # which does it by itself, within a minute
            await database.write(lambda tx: tx.execute(text("ANALYZE")))
        return {"middle": rows[len(rows) // 2]["id"], "identity": identity}
    finally:
        await database.aclose()


def _is_one_of_some(number: int, count: int) -> bool:
    """Spread over all of them."""
    return number % (count // SOME) == 0


async def _fill_identity(tx: Transaction, identity: str) -> None:
    row = {"id": identity, "organization_id": ids.DEFAULT_ORG, "project_id": "", "identifier_key": "some"}
    about = {"name": "Some", "identity_type": "user", "properties": "[]", "created_us": 1, "updated_us": 1}
    await tx.execute(insert_into(identities), row | about)


async def _fill(tx: Transaction, rows: Sequence[dict[str, Any]], identity: str) -> None:
    some = [row["id"] for row in rows if "quay" in row["name"]]
    tags = [{"agent_id": row["id"], "tag": "all"} for row in rows]
    tags += [{"agent_id": agent_id, "tag": "some"} for agent_id in some]
    await tx.execute_many(insert_into(agents), rows)
    await tx.execute_many(insert_into(agent_tags), tags)
    if some:
        await tx.execute_many(
            insert_into(identity_agents), [{"identity_id": identity, "agent_id": agent_id} for agent_id in some]
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as _folder:
        for _kind in sys.argv[1:] or ("sqlite", "postgresql"):
            for _row in _measured("sqlite" if _kind == "sqlite" else "postgresql", Path(_folder) / _kind):
                print(f"{'ok  ' if _row.met else 'MISS'} {_row.what}: {_row.value:,.2f} {_row.unit} (goal {_row.goal})")
