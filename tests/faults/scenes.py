"""What is played while things go wrong: conversations that together pass every await and every commit of the driver.

The last turn of a scene is the one that is disturbed; those before it only lead up to it. Every scene is played in four
ways: whole messages or tokens, in front of the caller or in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from holdfast.actions.messages.send import Accepted
from holdfast.core.hold import Hold
from holdfast.core.messages import Approve, ClientReturn, Decision, Deny
from holdfast.core.records import Run
from holdfast.store.group_tables import group_turns
from holdfast.store.tables import tasks
from holdfast.store.transaction import Row, Transaction
from tests.effort import EFFORT
from tests.scenario import NO_ARGUMENTS, Node, World

from .remote import give_mcp_tools

Answer = Callable[[Hold], tuple[Decision, ...]]
ASK_CLIENT = {
    "client_tools": [{"name": "ask_client", "description": "The client runs it.", "parameters": NO_ARGUMENTS}]
}
QUIET = "[[no_reasoning]]"


class Turn(msgspec.Struct, frozen=True):
    text: str | None = None
    answer: Answer | None = None
    request: dict[str, Any] = {}


class Scene(msgspec.Struct, frozen=True):
    name: str
    turns: tuple[Turn, ...]
    speaks_through_tool: bool = False  # played by an agent that calls send_message
    looked_after: bool = False  # by a sleeptime agent, whom each turn sets to work
    calls_mcp_server: bool = False  # played by an agent that has tools of one

    @property
    def prelude(self) -> tuple[Turn, ...]:
        return self.turns[:-1]

    @property
    def act(self) -> Turn:
        return self.turns[-1]


class Mode(msgspec.Struct, frozen=True):
    tokens: bool
    background: bool

    def __str__(self) -> str:
        return f"{'tokens' if self.tokens else 'steps'}-{'background' if self.background else 'foreground'}"


def approve(hold: Hold) -> tuple[Decision, ...]:
    return tuple(Approve(call_id) for call_id in hold.asked_ids)


def deny(hold: Hold) -> tuple[Decision, ...]:
    return tuple(Deny(call_id, "not today") for call_id in hold.asked_ids)


def client_returns(hold: Hold) -> tuple[Decision, ...]:
    return tuple(ClientReturn(call_id, "from the client") for call_id in hold.asked_ids)


_ASKS = Turn(f"[[call:guarded {{}}]] [[say:Done.]] {QUIET}")
_ASKS_THREE = Turn(f"[[call:guarded {{}}]] [[call:note {{}}]] [[call:lookup {{}}]] [[say:Done.]] {QUIET}")
_ASKS_CLIENT = Turn(f"[[call:ask_client {{}}]] [[say:Done.]] {QUIET}", request=ASK_CLIENT)
_WITH_HEARTBEAT = '[[call:{} {{"request_heartbeat": true}}]]'
_LONG_AGO = tuple(Turn(f"{'This is said at length. ' * 40} {number} [[say:Yes.]] {QUIET}") for number in range(3))

SCENES = (
    Scene("greeting", (Turn("Hello [[say:Good day to you.]] [[reasoning:2]]"),)),
    Scene("one tool", (Turn(f"[[call:note {{}}]] [[say:All done.]] {QUIET}"),)),
    Scene("a tool that may be repeated", (Turn(f"[[call:lookup {{}}]] [[say:Found.]] {QUIET}"),)),
    Scene(
        "three parallel tools",
        (Turn(f"[[call:note {{}}]] [[call:slow {{}}]] [[call:slow_lookup {{}}]] [[say:Done.]] {QUIET}"),),
    ),
    Scene("pause for approval", (_ASKS,)),
    Scene("pause with siblings", (_ASKS_THREE,)),
    Scene("resume with an approval", (_ASKS_THREE, Turn(answer=approve))),
    Scene("resume with a denial", (_ASKS, Turn(answer=deny))),
    Scene("resume with a client's return", (_ASKS_CLIENT, Turn(answer=client_returns, request=ASK_CLIENT))),
    Scene("resume with a message", (_ASKS, Turn(f"And then? [[say:That is all.]] {QUIET}", approve))),
    Scene(
        "memory tool",
        (Turn(f'[[call:memory_insert {{"label": "notes", "new_string": "tea"}}]] [[say:Noted.]] {QUIET}'),),
    ),
    Scene(
        "a try that fails",
        (Turn(f"[[error:overloaded]] [[error_after:2]] [[error_times:1]] [[say:At last now.]] {QUIET}"),),
    ),
    Scene(
        "compaction",
        (
            *_LONG_AGO,
            Turn(
                f"Enough [[usage:120000,4]] [[say:Indeed.]] {QUIET}",
                request={"include_compaction_messages": True},
            ),
        ),
    ),
    Scene("send_message", (Turn("Hello [[say:Good day to you.]]"),), speaks_through_tool=True),
    Scene("a heartbeat", (Turn(f"{_WITH_HEARTBEAT.format('note')} [[say:Done.]]"),), speaks_through_tool=True),
    Scene(
        "a heartbeat after an approval",
        (Turn(f"{_WITH_HEARTBEAT.format('guarded')} [[say:Done.]]"), Turn(answer=approve)),
        speaks_through_tool=True,
    ),
    Scene(
        "a heartbeat after a denial",
        (Turn(f"{_WITH_HEARTBEAT.format('guarded')} [[say:Done.]]"), Turn(answer=deny)),
        speaks_through_tool=True,
    ),
    Scene("a turn that sets a sleeptime agent to work", (Turn("Hello [[say:Good day.]]"),), looked_after=True),
    Scene("a tool of an MCP server", (Turn(f"[[call:remote {{}}]] [[say:Done.]] {QUIET}"),), calls_mcp_server=True),
    Scene(
        "a tool of an MCP server that may be repeated",
        (Turn(f"[[call:remote_lookup {{}}]] [[say:Done.]] {QUIET}"),),
        calls_mcp_server=True,
    ),
)
BY_NAME = {scene.name: scene for scene in SCENES}
MODES = tuple(Mode(tokens, background) for background in (False, True) for tokens in (False, True))


async def play(node: Node, turn: Turn, mode: Mode, *, otid: str | None = None, hold: Hold | None = None) -> Accepted:
    decisions = turn.answer(hold) if turn.answer is not None and hold is not None else None
    return await node.send(
        turn.text,
        decisions=decisions,
        otid=otid,
        stream_tokens=mode.tokens,
        background=mode.background,
        **turn.request,
    )


async def lead_up(node: Node, scene: Scene) -> None:
    """Everything before the turn that is to be disturbed."""
    if scene.speaks_through_tool:
        await node.world.speak_through_send_message()
    if scene.looked_after:
        await node.world.be_looked_after()
    if scene.calls_mcp_server:
        await give_mcp_tools(node.world)
    for turn in scene.prelude:
        await play(node, turn, MODES[0])
        await node.settled()


async def pending_hold(world: World) -> Hold | None:
    row = await world.pending()
    return row.hold if row else None


async def check_counted(world: World, scene: Scene, run: Run) -> None:
    """A turn is kept for the sleeptime agent once, and sets it to work if it came to its end."""

    async def read(tx: Transaction) -> tuple[list[Row], list[Row]]:
        return await tx.fetch_all(select(group_turns)), await tx.fetch_all(select(tasks))

    turns, due = await world.database.read(read)
    assert [turn["run_id"] for turn in turns] == ([run.id] if scene.looked_after else [])
    sets_to_work = scene.looked_after and run.status == "completed"
    assert [turn["shown_by_run_id"] is not None for turn in turns] == [sets_to_work] * len(turns)
    assert [task["kind"] for task in due] == ["sleeptime"] * sets_to_work


# --- where they are played ---

on_both_databases = pytest.mark.parametrize("template", ["sqlite", "postgres"], indirect=True)


def played(modes: Sequence[Mode], on_postgres: Collection[tuple[str, Mode]]) -> pytest.MarkDecorator:
    """Every scene on SQLite, in one of these modes or, with more effort, in each of them; and a few besides on
    PostgreSQL, where a trial takes many times as long."""
    everything = [("sqlite", scene, mode) for number, scene in enumerate(SCENES) for mode in _some(modes, number)]
    few = [("postgres", BY_NAME[name], mode) for name, mode in on_postgres]
    return pytest.mark.parametrize(
        ("template", "scene", "mode"),
        [pytest.param(*each, id=f"{each[0]}-{each[1].name}-{each[2]}") for each in (*everything, *few)],
        indirect=["template"],
    )


def _some(modes: Sequence[Mode], number: int) -> Sequence[Mode]:
    """One after the other, so that each has its share of the scenes."""
    return modes if EFFORT > 1 else [modes[number % len(modes)]]
