"""How far a reader has to follow a request: the files of ours that it runs through, and how often it changes file.

python -m bench.flows [--files]

In this process, SQLite, the offline model, all threads; the second request of each kind, so that what is built once is
not counted. The figures are the same on any machine. `--files` lists the files of each flow with their lines.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import uvloop
from tests.costs import AGENT, TOOL, application, ask, ask_bytes
from tests.sqlite import new_database

import holdfast
from bench.client import until

_ROOT: Final = str(Path(holdfast.__file__).parent) + "/"
_SLEEP: Final = '''def nap(seconds: int) -> str:
    """Sleep.

    Args:
        seconds (int): How long.
    """
    import time

    time.sleep(seconds)
    return "rested"
'''


class Trace:
    """The files of ours that were entered, in order, of all threads together."""

    def __init__(self) -> None:
        self.on = False
        self.entered: list[str] = []

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            self.entered.append(frame.f_code.co_filename.removeprefix(_ROOT))


class Flow(NamedTuple):
    what: str
    calls: int
    files: list[str]
    file_switches: int
    package_switches: int


def _switches(names: list[str]) -> int:
    return sum(before != after for before, after in pairwise(names))


def _flow(what: str, entered: list[str]) -> Flow:
    packages = [name.partition("/")[0] for name in entered]
    return Flow(what, len(entered), sorted(set(entered)), _switches(entered), _switches(packages))


async def _flows(trace: Trace, directory: Path) -> list[Flow]:
    async with application(directory, None) as app:
        return [await _second(trace, what, act) for what, act in (await _requests(app)).items()]


async def _second(trace: Trace, what: str, act: Callable[[Callable[[], None]], Awaitable[None]]) -> Flow:
    """`act` begins the count when its preparations are made."""

    def begin() -> None:
        trace.entered = []
        trace.on = True

    for _ in range(2):
        await act(begin)
        trace.on = False
    return _flow(what, trace.entered)


async def _requests(app: Any) -> dict[str, Callable[[Callable[[], None]], Awaitable[None]]]:
    echo = await ask(app, "PUT", "/tools/", {"source_code": TOOL})
    say = {"source_code": TOOL.replace("echo", "say"), "default_requires_approval": True}
    guarded = await ask(app, "PUT", "/tools/", say)
    nap = await ask(app, "PUT", "/tools/", {"source_code": _SLEEP})
    plain, calling, held, napping = [
        await ask(app, "POST", "/agents/", AGENT | {"tool_ids": [tool["id"] for tool in tools]})
        for tools in ([], [echo], [guarded], [nap])
    ]

    async def create(begin: Callable[[], None]) -> None:
        begin()
        await ask(app, "POST", "/agents/", AGENT)

    async def list_agents(begin: Callable[[], None]) -> None:
        begin()
        await ask(app, "GET", "/agents/", None)

    async def list_messages(begin: Callable[[], None]) -> None:
        begin()
        await ask(app, "GET", f"/agents/{plain['id']}/messages", None)

    async def turn(begin: Callable[[], None]) -> None:
        begin()
        await ask(app, "POST", f"/agents/{plain['id']}/messages", {"input": "hello"})

    async def tool_turn(begin: Callable[[], None]) -> None:
        begin()
        await ask(app, "POST", f"/agents/{calling['id']}/messages", {"input": "Call echo with 'hi'"})

    async def hold(begin: Callable[[], None]) -> None:
        begin()
        asked = await ask(app, "POST", f"/agents/{held['id']}/messages", {"input": "Call say with 'hi'"})
        await ask(app, "POST", f"/agents/{held['id']}/messages", {"messages": [_answer(asked, approve=False)]})

    async def approve(begin: Callable[[], None]) -> None:
        asked = await ask(app, "POST", f"/agents/{held['id']}/messages", {"input": "Call say with 'hi'"})
        begin()
        await ask(app, "POST", f"/agents/{held['id']}/messages", {"messages": [_answer(asked, approve=True)]})

    async def background(begin: Callable[[], None]) -> None:
        begin()
        body = {"input": "hello", "background": True, "streaming": True, "stream_tokens": True}
        await ask_bytes(app, "POST", f"/agents/{plain['id']}/messages", body)

    async def resume(begin: Callable[[], None]) -> None:
        run = next(run for run in await ask(app, "GET", "/runs/", None) if run["background"])
        begin()
        await ask_bytes(app, "POST", f"/runs/{run['id']}/stream", {})

    async def cancel(begin: Callable[[], None]) -> None:
        sent = asyncio.create_task(
            ask(app, "POST", f"/agents/{napping['id']}/messages", {"input": "Call nap with 60 seconds"})
        )
        await until(lambda: _a_step_is_stored(app))
        begin()
        await ask(app, "POST", f"/agents/{napping['id']}/messages/cancel", {})
        await sent

    return {
        "create an agent": create,
        "list agents": list_agents,
        "blocking message, no tool": turn,
        "list messages": list_messages,
        "blocking message, one tool": tool_turn,
        "ask for an approval, and deny it": hold,
        "answer it, run one sandboxed tool, answer": approve,
        "cancel while a tool runs": cancel,
        "background token stream": background,
        "resume a finished stream": resume,
    }


async def _a_step_is_stored(app: Any) -> bool:
    """Of a run that has not ended: then its tool runs."""
    active = await ask(app, "GET", "/runs/active", None)
    return bool(active) and bool(await ask(app, "GET", f"/runs/{active[0]['id']}/steps", None))


def _answer(asked: Any, *, approve: bool) -> dict[str, Any]:
    request = next(message for message in asked["messages"] if message["message_type"] == "approval_request_message")
    return {"type": "approval", "approve": approve, "approval_request_id": request["id"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flows", description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files of each flow")
    given = parser.parse_args()
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        new_database(Path(folder))
        threading.setprofile(trace.profile)
        sys.setprofile(trace.profile)
        flows = uvloop.run(_flows(trace, Path(folder)))
        sys.setprofile(None)
        threading.setprofile(None)
    print("| flow | calls of ours | files | file switches | package switches |\n|---|---|---|---|---|")
    for flow in flows:
        print(f"| {flow.what} | {flow.calls:,} | {len(flow.files)} | {flow.file_switches} | {flow.package_switches} |")
    if given.files:
        for flow in flows:
            print(f"\n{flow.what}:")
            for name in flow.files:
                print(f"  {len(Path(_ROOT + name).read_text().splitlines()):5} {name}")


if __name__ == "__main__":
    main()
