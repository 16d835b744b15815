"""One or more real servers on one database, and what must hold of it once they are idle."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx

from holdfast.core.messages import ToolCall
from holdfast.store.database import open_database
from tests import histories
from tests.histories import REPLAY, Record
from tests.invariants import Snapshot, assert_invariants
from tests.serving import ServerProcess, WorkerProcess

from .clients import Client, Line, Reader, before_middle
from .tally import TALLY, Tally

SETTLE_S = 90.0
FINISH_S = 90.0  # for what clients do last
_LOOK_AGAIN_S = 0.05  # over a socket there is no event to wait for
T = TypeVar("T")
Role = Literal["serve", "serve --no-worker", "worker"]


class Fleet:
    """Every server has a data directory of its own. They share the database and the key that seals secrets."""

    def __init__(
        self,
        directory: Path,
        database_url: str | None,
        size: int = 1,
        own: Sequence[Mapping[str, str]] = (),
        roles: Sequence[Role] = (),
        /,
        **environment: str,
    ) -> None:
        """Without an address: one server on SQLite, in its data directory. `own`: variables of single processes;
        `roles`: theirs, if they do not all serve and drive runs."""
        assert size == 1 or database_url is not None, "SQLite is for one server"
        shared = {"HOLDFAST_LOG_LEVEL": "WARNING", "HOLDFAST_ENCRYPTION_KEY": "the key that the servers share"}
        if database_url is not None:
            shared["HOLDFAST_DATABASE_URL"] = database_url
        homes = [directory / f"server-{number}" for number in range(1, size + 1)]
        for home in homes:
            home.mkdir(parents=True, exist_ok=True)
        self.servers = [
            _process(home, role or "serve", shared | environment | dict(single or {}))
            for home, single, role in zip_longest(homes, own, roles)
        ]
        self.database_url = database_url or f"sqlite:///{homes[0]}/holdfast.db"

    @property
    def urls(self) -> list[str]:
        """Of those that serve."""
        return [server.url for server in self.servers if not isinstance(server, WorkerProcess)]

    async def start(self) -> None:
        """Side by side: starting takes a second each."""
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in self.servers))

    async def stop(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(server.stop) for server in self.servers))

    async def read_database(self, *, idle: bool) -> Snapshot:
        """Checks the invariants."""
        database = await open_database(self.database_url)
        try:
            return await assert_invariants(database, idle=idle)
        finally:
            await database.aclose()

    def check_alive(self) -> None:
        """Those that we have not ended ourselves."""
        dead = [server for server in self.servers if server.exit_code is not None and not server.may_be_dead]
        assert not dead, f"a server ended with {dead[0].exit_code}:\n{dead[0].read_log()[-5_000:]}"

    async def watch(self) -> None:
        """Fails as soon as a server ends by itself: whoever talks to it would wait for a long time."""
        while True:
            self.check_alive()
            await asyncio.sleep(_LOOK_AGAIN_S)

    def check_logs(self) -> None:
        """What goes wrong outside of a server is a line in its log, not a traceback."""
        for server in self.servers:
            log = _without_expected(server.log.read_text(errors="replace"))
            assert "Traceback" not in log, _around_traceback(log)


def _process(home: Path, role: Role, environment: dict[str, str]) -> ServerProcess:
    if role == "worker":
        return WorkerProcess(home, **environment)
    return ServerProcess(home, **environment | ({} if role == "serve" else {"HOLDFAST_WORKER": "no"}))


@asynccontextmanager
async def running(
    directory: Path,
    database_url: str | None,
    size: int = 1,
    own: Sequence[Mapping[str, str]] = (),
    roles: Sequence[Role] = (),
    /,
    **environment: str,
) -> AsyncGenerator[Fleet]:
    fleet = Fleet(directory, database_url, size, own, roles, **environment)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.stop()


# The driver itself reports, with a traceback, that PostgreSQL could not be reached while it was down.
_EXPECTED = ("asyncpg.pool: Failed to restore",)


def _without_expected(log: str) -> str:
    records = re.split(r"(?m)^(?=\d{4}-\d\d-\d\d \d\d:)", log)
    return "".join(record for record in records if not any(known in record.split("\n")[0] for known in _EXPECTED))


def _around_traceback(log: str) -> str:
    """What was raised stands first: whoever shows a failed run may cut the rest."""
    shown = log[max(0, log.index("Traceback") - 1_000) :][:5_000]
    raised = re.search(r"(?m)^Traceback.*\n(?:^[ ].*\n|^\n)*(\S.*)", shown)
    return f"{raised[1] if raised else ''}\n{shown}"


# --- what a user does ---


async def make_tools(url: str) -> list[str]:
    """`mark`, and `ask`, which needs an approval."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        made: list[str] = []
        for name in ("mark", "ask"):
            body = {"source_code": TALLY.format(name=name), "default_requires_approval": name == "ask"}
            answer = await http.post("/v1/tools/", json=body)
            assert answer.status_code == 200, answer.text
            made.append(answer.json()["id"])
        return made


async def make_agent(url: str, **fields: Any) -> str:
    body = {"model": "holdfast/offline", "include_base_tools": False, **fields}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await http.post("/v1/agents/", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])


async def begin(url: str, agent_id: str, text: str) -> str:
    """The id of a run that goes on without us."""
    body = {"messages": [{"role": "user", "content": text}]}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await http.post(f"/v1/agents/{agent_id}/messages/async", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])


async def send(url: str, agent_id: str, text: str) -> httpx.Response:
    """A blocking message. The answer may be a refusal."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        return await http.post(f"/v1/agents/{agent_id}/messages", json={"input": text})


async def get(url: str, path: str, within_s: float = SETTLE_S, **query: str) -> Any:
    """Asked again while the server or its database is away."""
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:

        async def answered() -> httpx.Response | None:
            try:
                answer = await http.get(path, params=query)
            except httpx.TransportError:
                return None
            return None if answer.status_code == 503 else answer

        answer = await poll(answered, within_s)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def wait_for_end(url: str, run_id: str, within_s: float = SETTLE_S) -> dict[str, Any]:
    async def ended() -> dict[str, Any] | None:
        run = await get(url, f"/v1/runs/{run_id}")
        return None if run["status"] in ("created", "running") else run

    return await poll(ended, within_s)


async def wait_until_running(url: str, run_id: str) -> None:
    async def running() -> bool | None:
        return (await get(url, f"/v1/runs/{run_id}"))["status"] == "running" or None

    await poll(running, SETTLE_S)


async def wait_until_busy(url: str, runs: int) -> None:
    async def busy() -> bool | None:
        return len(await get(url, "/v1/runs/", active="true")) >= runs or None

    await poll(busy, SETTLE_S)


async def wait_until_idle(url: str) -> None:
    async def idle() -> bool | None:
        return not await get(url, "/v1/runs/", active="true") or None

    await poll(idle, SETTLE_S)


async def poll(look: Callable[[], Awaitable[T | None]], within_s: float = SETTLE_S) -> T:
    """The first answer that is not None."""
    async with asyncio.timeout(within_s):
        while True:
            if (found := await look()) is not None:
                return found
            await asyncio.sleep(_LOOK_AGAIN_S)


@asynccontextmanager
async def busy_clients(
    fleet: Fleet, tally: Tally, seed: int, count: int = 4, excused: str | None = None
) -> AsyncGenerator[list[Client]]:
    """Clients at work on every server while the body runs. At its end they finish what they do."""
    tool_ids, history = await make_tools(fleet.urls[0]), list[Record]()
    clients = [Client(fleet.urls, tally, history, seed * count + number, excused) for number in range(count)]
    for client in clients:
        await client.set_up(tool_ids)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(fleet.watch())
        busy = [group.create_task(client.keep_busy(stop)) for client in clients]
        yield clients
        stop.set()
        async with asyncio.timeout(FINISH_S):
            await asyncio.gather(*busy)
        watching.cancel()


# --- what must hold ---


async def check_all(
    fleet: Fleet, clients: Sequence[Client], tally: Tally, excused: str | None = None, *, clocks_agree: bool = True
) -> None:
    """Once the clients have finished: nothing was lost, nothing was done twice, every stream can be read again."""
    fleet.check_alive()
    url, history = fleet.urls[-1], clients[0].history
    await wait_until_idle(url)
    await read_again(url, [run_id for client in clients for run_id in client.background], history)
    snapshot = await fleet.read_database(idle=True)
    broken = histories.violations([*history, *tally.effects], snapshot, clocks_agree=clocks_agree)
    assert not broken, "\n".join(broken)
    assert all(client.accepted for client in clients), "a client never got through"
    check_marks(snapshot, tally, len(clients))
    check_ends(snapshot, excused)


def told(clients: Sequence[Client], tally: Tally) -> str:
    """How much there was to check."""
    kinds = Counter(type(record).__name__.lower() for record in clients[0].history)
    return f"{', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}, {len(tally.effects)} effects"


async def read_again(url: str, run_ids: Sequence[str], history: list[Record]) -> None:
    """The streams of background runs, as readers that come late see them: from the beginning, and from the middle."""
    line = Line([url], history, random.Random(0))
    async with line.http:
        for run_id in run_ids:
            whole = Reader(line, f"{REPLAY}{run_id}", run_id)
            await whole.attach()
            await Reader(line, f"{run_id} from its middle", run_id, before_middle(whole.after)).attach()


async def check_replays(url: str, run_ids: Sequence[str]) -> None:
    """The stream of every background run can still be read whole, from its beginning and from its middle."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for run_id in run_ids:
            whole = await replay(http, run_id, 0)
            kinds = [event.get("message_type") for event in whole]
            assert kinds.count("stop_reason") == 1, kinds
            assert kinds[-2] == "stop_reason", kinds
            numbers = [event["seq_id"] for event in whole if event.get("seq_id") is not None]
            assert numbers == sorted(numbers)
            middle = numbers[len(numbers) // 2]
            assert await replay(http, run_id, middle) == [e for e in whole if (e.get("seq_id") or middle + 1) > middle]


async def replay(http: httpx.AsyncClient, run_id: str, after: int) -> list[dict[str, Any]]:
    body = {"starting_after": after, "include_pings": False}
    answer = await http.post(f"/v1/runs/{run_id}/stream", json=body)
    lines = events_in(answer.text)
    assert lines[-1] == "[DONE]", answer.text[-500:]
    return [json.loads(line) for line in lines[:-1]]


def events_in(shown: str) -> list[str]:
    return [line.removeprefix("data: ") for line in shown.splitlines() if line.startswith("data: ")]


def check_marks(snapshot: Snapshot, tally: Tally, at_least: int) -> None:
    """No tool ran twice, and none is said to have run that did not."""
    twice = {key: count for key, count in tally.marks.items() if count > 1}
    assert not twice
    calls: dict[str, ToolCall] = {call.id: call for row in snapshot.messages.values() for call in row.calls}
    succeeded = [part for row in snapshot.messages.values() for part in row.returns if part.status == "success"]
    assert len(succeeded) >= at_least, "not even those that nobody disturbed ran to their end"
    for part in succeeded:
        key = str(part.content).removeprefix("marked ")
        assert tally.marks[key] == 1, f"{calls[part.call_id]} did not leave its mark"


def check_ends(snapshot: Snapshot, excused: str | None = None) -> None:
    """No run fails because of what happens to a server or to its database, unless its error has the excuse in it."""
    failed = [f"{run.id}: {run.metadata.get('error')}" for run in snapshot.runs.values() if run.status == "failed"]
    unexcused = [told for told in failed if excused is None or excused not in told]
    assert not unexcused, "\n".join(unexcused)
