"""Discussions: a message to a group, and what its agents say about it, one after the other. Pure.

Who speaks next, and what they are told, follows from who has spoken. So a discussion can be carried on by any server,
from the runs that are stored.

- `round_robin`: the members in their order, each told what was said since it last spoke.
- `supervisor`: each member once, told the message alone; then the manager, told what they said.
- `dynamic`: the manager names who speaks next, until it or a speaker says the termination token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast import ids
from holdfast.core.records import Agent, Discussion

ID: Final = "discussion_id"  # in the metadata of a run that is part of one
CHOOSES: Final = "chooses_speaker"  # there, too: the manager's words go to nobody
TASK: Final = "discussion"
_FINISHED: Final = "DONE!"
_GO_ON: Final = "Nobody else has spoken since. Go on."


class Speech(msgspec.Struct, frozen=True):
    agent_id: str
    words: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks next, and what they are told first."""

    agent_id: str
    with_message: bool  # the message that the discussion is about
    told: tuple[int, ...] = ()  # the speeches
    instruction: str | None = None
    chooses: bool = False


def run_id(discussion_id: str, number: int) -> str:
    """Of the speech with this number, from 0."""
    return ids.derive("run", TASK, discussion_id, number)


def next_prompt(discussion: Discussion, agents: Mapping[str, Agent], speeches: Sequence[Speech]) -> Prompt | None:
    """None: all has been said."""
    match discussion.manager_type:
        case "supervisor":
            return _supervised(discussion, speeches)
        case "dynamic":
            return _dynamic(discussion, agents, speeches)
        case _:
            return _round_robin(discussion, speeches)


def _round_robin(discussion: Discussion, speeches: Sequence[Speech]) -> Prompt | None:
    members, number = discussion.agent_ids, len(speeches)
    if number >= (discussion.max_turns or len(members)):
        return None
    return _prompt(members[number % len(members)], speeches, range(number))


def _supervised(discussion: Discussion, speeches: Sequence[Speech]) -> Prompt | None:
    members, number = discussion.agent_ids, len(speeches)
    if number < len(members):
        return Prompt(agent_id=members[number], with_message=True)
    if number > len(members) or discussion.manager_agent_id is None:
        return None
    return Prompt(agent_id=discussion.manager_agent_id, with_message=True, told=tuple(range(number)))


def _dynamic(discussion: Discussion, agents: Mapping[str, Agent], speeches: Sequence[Speech]) -> Prompt | None:
    """The manager speaks at even places, and the one that it has named after it."""
    manager, number = discussion.manager_agent_id, len(speeches)
    token = discussion.termination_token or _FINISHED
    if manager is None or (speeches and token in speeches[-1].words):
        return None
    if number % 2:
        chosen = _named(discussion, agents, speeches[-1].words)
        return None if chosen is None else _prompt(chosen, speeches, range(1, number, 2))
    if number // 2 >= (discussion.max_turns or len(discussion.agent_ids)):
        return None
    told = () if number == 0 else (number - 1,)
    listed = "\n".join(_introduced(agents[each]) for each in discussion.agent_ids if each in agents)
    instruction = (
        f"You lead a discussion, and decide who speaks next. You may choose among these agents:\n{listed}\n"
        f"Answer with nothing but the id of the agent that is to speak next, or with {token} when all has been said."
    )
    return Prompt(agent_id=manager, with_message=number == 0, told=told, instruction=instruction, chooses=True)


def _prompt(agent_id: str, speeches: Sequence[Speech], heard: Sequence[int]) -> Prompt:
    """Told what others have said since it last spoke."""
    own = [number for number in heard if speeches[number].agent_id == agent_id]
    new = tuple(number for number in heard if not own or number > own[-1])
    return Prompt(agent_id=agent_id, with_message=not own, told=new, instruction=None if new or not own else _GO_ON)


def _named(discussion: Discussion, agents: Mapping[str, Agent], words: str) -> str | None:
    """Whoever is named first by its id; else by its name."""
    by_id = {agent_id: words.find(agent_id) for agent_id in discussion.agent_ids}
    by_name = {agent_id: _place_of(agents[agent_id].name, words) for agent_id in by_id if agent_id in agents}
    for places in (by_id, by_name):
        found = [agent_id for agent_id, place in places.items() if place >= 0]
        if found:
            return min(found, key=lambda agent_id: places[agent_id])
    return None


def _place_of(name: str, words: str) -> int:
    """As a word of its own, whatever its case; -1 when it is not there."""
    found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words, re.IGNORECASE)
    return -1 if found is None else found.start()


def _introduced(agent: Agent) -> str:
    return f"- {agent.id}: {agent.name}" + (f", {agent.description}" if agent.description else "")
