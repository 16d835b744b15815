"""Messages to groups. Each speech is an ordinary run of one agent, and its end makes the next one due: a task, which
reads who has spoken and accepts the run of whoever is next. No worker waits meanwhile, and any server can go on.

A member whose run fails, is cancelled or waits for a decision ends the discussion.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.actions.messages.ask_agents import spoken_texts
from holdfast.actions.messages.send import SendMessage, SendRequest
from holdfast.core import discussions as core
from holdfast.core.discussions import Prompt, Speech
from holdfast.core.records import Agent, Discussion, Run
from holdfast.engine.clock import Clock
from holdfast.engine.run_reader import RunReader
from holdfast.engine.tasks import HeldTask, TaskWorker, TryAgain
from holdfast.engine.worker import Worker
from holdfast.errors import Busy, Conflict, HandedOver, HoldfastError, Invalid
from holdfast.store import agents, discussions, groups, messages, runs, tasks
from holdfast.store.groups import SLEEPTIME
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.requests import LettaRequest, MessageCreate, input_of

_EVERY: Final = Page(limit=None, order="asc")
_BUSY_AGAIN_S: Final = 1.0
_RUN_TYPE: Final = "send_group_message"
# Of a request to a group, what each of its agents is asked with.
_PASSED_ON: Final = (
    "max_steps",
    "include_compaction_messages",
    "include_return_message_types",
    "use_assistant_message",
    "assistant_message_tool_name",
    "assistant_message_tool_kwarg",
)
_FOR_ONE_AGENT: Final = ("client_tools", "client_skills", "override_model", "override_system")


class _Ended(HoldfastError):
    """The run that was just accepted has ended already: look who is next."""


class _Standing(msgspec.Struct, frozen=True):
    """How far a discussion has come."""

    discussion: Discussion
    agents: dict[str, Agent]
    speeches: list[Speech]
    last: Run | None


class Discuss:
    """The kind of task that is called `discussion`; its subject is the discussion."""

    def __init__(
        self, database: Database, send: SendMessage, worker: Worker, tasks: TaskWorker, reader: RunReader, clock: Clock
    ) -> None:
        self._database = database
        self._send = send
        self._worker = worker
        self._tasks = tasks
        self._reader = reader
        self._clock = clock

    async def begin(self, group_id: str, request: LettaRequest, *, stream_tokens: bool = False) -> Discussion:
        """The same request again leads to the same discussion."""
        self._worker.refuse_if_draining()
        sent, parsed = _checked(request), input_of(request)
        key = parsed.request_key
        if parsed.image_urls:
            raise Invalid("Images for a group are sent as base64, not by url: each of its agents would fetch them.")
        now_us = self._clock.now_us()

        async def write(tx: Transaction) -> Discussion:
            group = await groups.get(tx, group_id, lock=True)
            if group.manager_type == SLEEPTIME:
                raise Invalid(f"Send the message to the agent that the group looks after: {group.manager_agent_id}.")
            if not group.agent_ids:
                raise Invalid(f"The group {group_id} has no agents any more: name some in its agent_ids.")
            known = None if key is None else await discussions.by_request_key(tx, group_id, key)
            if known is not None:
                return known
            discussion = Discussion(
                id=ids.new(core.TASK),
                group_id=group_id,
                manager_type=group.manager_type,
                agent_ids=group.agent_ids,
                manager_agent_id=group.manager_agent_id,
                termination_token=group.termination_token,
                max_turns=group.max_turns,
                request=sent | {"stream_tokens": stream_tokens},
                request_key=key,
                created_us=now_us,
            )
            if not await discussions.insert(tx, discussion):
                raise Conflict(
                    f"The group {group_id} still discusses an earlier message. Send this one when it is done."
                )
            await tasks.add(tx, core.TASK, discussion.id)
            return discussion

        discussion = await self._database.write(write)
        self._tasks.wake()
        return discussion

    async def speaking_runs(self, discussion_id: str) -> AsyncGenerator[Run]:
        """One after the other, each as soon as there is one. Not those in which the manager only names a speaker."""
        number = 0
        with self._worker.bus.watch(discussion_id) as watch:
            while True:
                run_id = core.run_id(discussion_id, number)
                run, is_open = await self._database.read(lambda tx: _look(tx, discussion_id, run_id))  # noqa: B023
                if run is not None:
                    number += 1
                    if core.CHOOSES not in run.metadata:
                        yield run
                elif not is_open:
                    return
                elif self._worker.draining:
                    raise HandedOver(f"the server stops before discussion {discussion_id} ends")
                else:
                    await self._worker.until_changed(watch)

    async def outcome(self, discussion_id: str) -> Discussion | None:
        """None when its group was deleted meanwhile."""
        return await self._database.read(lambda tx: discussions.find(tx, discussion_id))

    async def perform(self, held: HeldTask) -> None:
        while True:
            standing = await self._database.read(lambda tx: _standing(tx, held.task.subject_id))
            if standing is None or standing.discussion.ended_us is not None:
                return
            prompt = None
            if standing.last is None or _went_well(standing.last):
                prompt = core.next_prompt(standing.discussion, standing.agents, standing.speeches)
            if prompt is None:
                await self._end(held, standing)
                return
            try:
                if await self._speak(held, standing, prompt):
                    return
            except Busy as busy:
                raise TryAgain(f"the agent {prompt.agent_id} is busy", _BUSY_AGAIN_S, counts=False) from busy

    async def give_up(self, held: HeldTask, error: Exception) -> None:
        """The next speaker cannot be asked: it waits for a decision, say, or was deleted."""
        told = error.message if isinstance(error, HoldfastError) else str(error)
        what = {"error_type": "internal_error", "message": "The next agent could not be asked.", "detail": told}
        discussion_id, now_us = held.task.subject_id, self._clock.now_us()
        await held.finish(lambda tx: discussions.end(tx, discussion_id, now_us, "error", what))
        self._worker.bus.run_changed(discussion_id)

    async def _speak(self, held: HeldTask, standing: _Standing, prompt: Prompt) -> bool:
        """Whether the run that was accepted is under way: then its end makes the next speech due."""
        sending = _request(standing, prompt)
        await self._send(sending)
        self._worker.bus.run_changed(standing.discussion.id)
        try:
            await held.write(lambda tx: _let_go(tx, held, str(sending.run_id)))
        except _Ended:
            return False
        held.finished = True
        return True

    async def _end(self, held: HeldTask, standing: _Standing) -> None:
        discussion_id, last, now_us = standing.discussion.id, standing.last, self._clock.now_us()
        reason = (last.stop_reason if last is not None else None) or "end_turn"
        error = last.metadata.get("error") if last is not None else None
        await held.finish(lambda tx: discussions.end(tx, discussion_id, now_us, reason, error))
        self._worker.bus.run_changed(discussion_id)


async def _look(tx: Transaction, discussion_id: str, run_id: str) -> tuple[Run | None, bool]:
    """The run, and whether one may still come."""
    discussion = await discussions.find(tx, discussion_id)
    return await runs.find(tx, run_id), discussion is not None and discussion.ended_us is None


async def _standing(tx: Transaction, discussion_id: str) -> _Standing | None:
    discussion = await discussions.find(tx, discussion_id)
    if discussion is None:
        return None
    speeches: list[Speech] = []
    last: Run | None = None
    while (run := await runs.find(tx, core.run_id(discussion_id, len(speeches)))) is not None:
        rows = await messages.list_of_run(tx, run.id, _EVERY)
        words = "\n".join(text for row in rows for text in spoken_texts(row))
        speeches.append(Speech(run.agent_id, words))
        last = run
    named = [*discussion.agent_ids, *([discussion.manager_agent_id] if discussion.manager_agent_id else [])]
    return _Standing(discussion, await agents.find_many(tx, named), speeches, last)


async def _let_go(tx: Transaction, held: HeldTask, run_id: str) -> None:
    """The run's end adds this task anew. Not if it came while the task was still there: then it is not let go."""
    if not (await discussions.locked_run(tx, run_id)).is_active:
        raise _Ended("it ended at once")
    await tasks.finish(tx, held.task)


def _went_well(run: Run) -> bool:
    return run.status == "completed" and run.stop_reason != "requires_approval"


def _checked(request: LettaRequest) -> dict[str, Any]:
    """What is kept of the request."""
    for name in _FOR_ONE_AGENT:
        if getattr(request, name):
            raise Invalid(f"{name} belongs to one agent; a message to a group has none: leave it out.")
    items = request.messages or [MessageCreate(role="user", content=request.input or "")]
    told = [item for item in items if isinstance(item, MessageCreate)]
    if len(told) < len(items):
        raise Invalid("An approval is sent to the agent that asked for it, not to its group.")
    kept = request.model_dump(mode="json", include=set(_PASSED_ON))
    return kept | {"messages": [item.model_dump(mode="json", exclude={"otid"}) for item in told]}


def _request(standing: _Standing, prompt: Prompt) -> SendRequest:
    discussion = standing.discussion
    sent = {name: value for name, value in discussion.request.items() if name in _PASSED_ON}
    told: list[Any] = list(discussion.request["messages"]) if prompt.with_message else []
    told += [_relayed(standing, number) for number in prompt.told]
    if prompt.instruction is not None:
        told.append({"role": "system", "content": prompt.instruction})
    sent["messages"] = [each | {"group_id": discussion.group_id} for each in told]
    request = LettaRequest.model_validate(sent)
    run_id = core.run_id(discussion.id, len(standing.speeches))
    return SendRequest(
        thread_id=prompt.agent_id,
        parsed=msgspec.structs.replace(input_of(request), request_key=run_id),
        request=request,
        run_type=_RUN_TYPE,
        request_config=request.request_config(),
        stream_tokens=discussion.request["stream_tokens"],
        background=True,
        run_id=run_id,
        marks={core.ID: discussion.id} | ({core.CHOOSES: True} if prompt.chooses else {}),
    )


def _relayed(standing: _Standing, number: int) -> dict[str, Any]:
    speech = standing.speeches[number]
    agent = standing.agents.get(speech.agent_id)
    name = agent.name if agent is not None else speech.agent_id
    return {"role": "user", "content": f"{name}: {speech.words}", "sender_id": speech.agent_id}
