"""Messages that an agent sends to others with a tool: accepted like any other message, by this server itself.

Each starts a run of its own, which names the run that started it; so a cancel finds what is to be cancelled with it.
An agent that waits for an answer is never asked for one by those who are to give it: nobody would ever answer. Nor
does one wait for a busy agent that, by way of others or not, waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from holdfast import ids
from holdfast.actions.messages.send import Accepted, SendMessage, SendRequest
from holdfast.core.arguments import arguments_of, converted
from holdfast.core.messages import Message, ToolReturn
from holdfast.core.records import PARENT, PARENT_WAITS, Run
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec, Speaking
from holdfast.engine.database_retries import until_database_answers
from holdfast.engine.run_reader import RunReader
from holdfast.engine.tool_calls import Execute
from holdfast.engine.worker import Worker
from holdfast.errors import Busy, NotFound, RequestError, ShuttingDown, ToolFailed
from holdfast.store import agents, messages, runs
from holdfast.store.agents import AgentFilter
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, DatabaseError, Transaction
from holdfast.tools import agents as talk
from holdfast.tools.base import cut_to_limit, failure_text
from holdfast.wire.messages import to_wire
from holdfast.wire.requests import LettaRequest, MessageCreate, input_of

_AT_ONCE: Final = 10  # agents with matching tags that answer at the same time
_EVERY: Final = Page(limit=None, order="asc")
T = TypeVar("T")


class AskAgents:
    """Carries out the tools of `tools.agents`."""

    def __init__(self, database: Database, send: SendMessage, worker: Worker, reader: RunReader, wait_s: float) -> None:
        """`wait_s`: how long to wait for an agent that is busy."""
        self._database = database
        self._send = send
        self._worker = worker
        self._reader = reader
        self._wait_s = wait_s
        self._awaited: dict[str, Counter[str]] = {}  # by thread: those whose answer or whose end it waits for

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        """The run that makes the call is the one that is active on its thread: there is only one."""
        run = await self._database.read(lambda tx: runs.active_of_thread(tx, spec.thread_id))
        name, tool = call.call.name, spec.tool(call.call.name)

        async def execute() -> ToolReturn:
            try:
                if run is None:
                    raise ToolFailed("The run that sends the message has ended.")
                text = await self._perform(run, name, arguments_of(call.call.arguments))
            except (RequestError, ToolFailed) as error:
                text = failure_text(name, "ValueError", error.message)
                return ToolReturn(call.call.id, name, "error", text, (), ())
            except DatabaseError as error:
                # The call has begun: were this left to the run, it would be made again.
                text = failure_text(name, "Unknown", f"the message may have been sent, or not: {error}")
                return ToolReturn(call.call.id, name, "error", text, (), ())
            content = cut_to_limit(text, tool.return_char_limit) if tool else text
            return ToolReturn(call.call.id, name, "success", content, (), ())

        return execute

    async def _perform(self, asking: Run, name: str, arguments: Mapping[str, Any]) -> str:
        if name == talk.ASK_TAGGED:
            given = converted(arguments, talk.ToTagged)
            found = await self._tagged(asking.agent_id, given.match_all or [], given.match_some or [])
            return repr(await self._ask_all(asking, found, given.message))
        one = converted(arguments, talk.ToOne)
        if not ids.is_id("agent", one.other_agent_id):
            raise _no_agent(one.other_agent_id)
        if name == talk.ASK:
            return repr(await self._ask(asking, one.other_agent_id, one.message))
        with self._waiting(asking.thread_id, one.other_agent_id):  # in line, if it is busy
            await self._deliver(asking, one.other_agent_id, one.message, waits=False)
        return talk.SENT

    async def _ask_all(self, asking: Run, agent_ids: list[str], message: str) -> list[dict[str, Any]]:
        free = asyncio.Semaphore(_AT_ONCE)

        async def ask(agent_id: str) -> dict[str, Any]:
            try:
                async with free:
                    return await self._ask(asking, agent_id, message)
            except (RequestError, ToolFailed) as error:
                return talk.no_reply(agent_id, error.message)

        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(ask(agent_id)) for agent_id in agent_ids]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures  # such as that the server stops, which ends all of them
        return [task.result() for task in asked]

    async def _ask(self, asking: Run, agent_id: str, message: str) -> dict[str, Any]:
        with self._waiting(asking.thread_id, agent_id):
            return await self._answer(asking, agent_id, message)

    async def _answer(self, asking: Run, agent_id: str, message: str) -> dict[str, Any]:
        """Once the message is sent, a database that does not answer is waited for: the message cannot be sent again."""
        child = (await self._deliver(asking, agent_id, message, waits=True)).run.id
        run = await until_database_answers(lambda: self._reader.until_stopped(child), f"run {child}")
        if run.is_active:
            raise ShuttingDown(f"the server stops before agent {agent_id} has answered")
        _require_answer(run)
        rows = await until_database_answers(
            lambda: self._database.read(lambda tx: messages.list_of_run(tx, child, _EVERY)), f"run {child}"
        )
        return talk.reply(agent_id, [text for row in rows for text in spoken_texts(row)])

    async def _deliver(self, asking: Run, agent_id: str, message: str, *, waits: bool) -> Accepted:
        if agent_id in await self._database.read(lambda tx: _waiting_agents(tx, asking)):
            raise ToolFailed(
                f"Agent {agent_id} cannot be sent a message now: it is the one that acts, or it waits for this answer."
            )
        text = talk.incoming(asking.agent_id, message, waits=waits)
        request = LettaRequest(messages=[MessageCreate(role="system", content=text, sender_id=asking.agent_id)])
        sending = SendRequest(
            thread_id=agent_id,
            parsed=input_of(request),
            request=request,
            run_type="send_message" if waits else "send_message_async",
            request_config=request.request_config(),
            background=not waits,
            parent_run_id=asking.id,
            parent_waits=waits,
        )
        return await self._accepted(asking, sending)

    async def _accepted(self, asking: Run, sending: SendRequest) -> Accepted:
        """Waits for a busy agent here, not within the acceptance, which must not be left half way."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        while True:
            try:
                return await _to_its_end(self._send(sending))
            except NotFound as error:
                raise _no_agent(sending.thread_id) from error
            except Busy as busy:
                left_s = deadline - loop.time()
                if left_s <= 0:
                    raise
                if asking.thread_id in self._awaited_by(sending.thread_id):
                    raise ToolFailed(
                        f"Agent {sending.thread_id} cannot be sent a message now: it waits for this agent, which it "
                        "has sent a message itself. End this turn, and it will come."
                    ) from busy
                await self._until_free(busy.run_id, left_s)

    @contextmanager
    def _waiting(self, thread_id: str, agent_id: str) -> Generator[None]:
        """Whoever closes a ring of waiting is the last to come here, and sees the others."""
        awaited = self._awaited.setdefault(thread_id, Counter())
        awaited[agent_id] += 1
        try:
            yield
        finally:
            awaited[agent_id] -= 1
            if not +awaited:
                del self._awaited[thread_id]

    def _awaited_by(self, thread_id: str) -> set[str]:
        """The threads that it waits for, and those that they wait for. Only those of this server are known."""
        found: set[str] = set()
        following = [thread_id]
        while following:
            for each in +self._awaited.get(following.pop(), Counter[str]()):
                if each not in found:
                    found.add(each)
                    following.append(each)
        return found

    async def _until_free(self, run_id: str | None, left_s: float) -> None:
        """`run_id`: of the run that the agent is busy with, if it is known."""
        with self._worker.bus.watch(run_id or "") as watch:
            await self._worker.until_changed(watch, left_s)

    async def _tagged(self, own_id: str, every: list[str], some: list[str]) -> list[str]:
        """Agents that have all tags of the one list and any of the other, where it has any; never the one that asks."""
        if not every and not some:
            raise ToolFailed("Name at least one tag in match_all or match_some.")

        async def find(tx: Transaction) -> list[str]:
            wanted = [AgentFilter(tags=tuple(every), match_all_tags=True), AgentFilter(tags=tuple(some))]
            found = [await agents.list_agents(tx, filters, _EVERY) for filters in wanted if filters.tags]
            kept = {agent.id for agent in found[-1]} - {own_id}
            return [agent.id for agent in found[0] if agent.id in kept]

        return await self._database.read(find)


def _no_agent(agent_id: str) -> ToolFailed:
    return ToolFailed(f"There is no agent with the id {agent_id!r}.")


async def _waiting_agents(tx: Transaction, asking: Run) -> set[str]:
    """The agent that asks, and those that wait for its answer, and those that wait for theirs."""
    waiting = {asking.agent_id}
    run: Run | None = asking
    while run is not None and run.metadata.get(PARENT_WAITS):
        run = await runs.find(tx, run.metadata[PARENT])
        if run is not None and run.is_active:
            waiting.add(run.agent_id)
    return waiting


def _require_answer(run: Run) -> None:
    if run.status == "failed":
        error: dict[str, Any] = run.metadata.get("error") or {}
        raise ToolFailed(f"Agent {run.agent_id} could not answer: {error.get('detail') or run.stop_reason}")
    if run.status == "cancelled":
        raise ToolFailed(f"Agent {run.agent_id} was stopped before it had answered.")
    if run.stop_reason == "requires_approval":
        raise ToolFailed(f"Agent {run.agent_id} waits for a decision about a tool call, and has not answered yet.")


def spoken_texts(row: Message) -> list[str]:
    shown: list[dict[str, Any]] = [dict(each) for each in to_wire(row, speaking=Speaking())]
    return [str(each["content"]) for each in shown if each["message_type"] == "assistant_message"]


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Also when whoever waits is cancelled: whether there is a run must be known before its parent ends, or a cancel
    of the parent would miss it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # taken notice of
        raise
