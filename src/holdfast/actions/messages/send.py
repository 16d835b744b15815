"""Accepts a request: one transaction holds its input, its run and the run's first event. Then the worker drives it.

Order of refusals: unknown thread, repeated request (answered, not refused), busy thread, busy server, answer that does
not fit. A refused request leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.actions.runs.spec import freeze
from holdfast.core.calls import resume
from holdfast.core.events import AnyEvent, Resumed, RunStarted
from holdfast.core.hold import answers_same_calls, check_answer, cut_answer, identity_of, run_names
from holdfast.core.messages import Decision, Message, Text
from holdfast.core.model_history import return_char_limit
from holdfast.core.records import PARENT, PARENT_WAITS, Agent, Block, Run, Step, Thread, Tool
from holdfast.core.run import NEW, CallModel, apply, plan
from holdfast.core.spec import RunSpec
from holdfast.engine.admission import Admission
from holdfast.engine.attached_files import directories_in_view
from holdfast.engine.clock import Clock
from holdfast.engine.run_loading import LoadedRun, SharedParts, blocks_in_view, own_part
from holdfast.engine.run_session import pending_step
from holdfast.engine.streams import RunStream
from holdfast.engine.worker import Worker
from holdfast.errors import Busy, HoldfastError, Invalid, PendingApproval
from holdfast.llm.base import Catalog
from holdfast.store import agents, holds, journal, messages, runs, specs, steps, threads
from holdfast.store.holds import HoldRow
from holdfast.store.specs import SharedSpec
from holdfast.store.transaction import CommitUnknown, Database, DatabaseError, IntegrityError, Transaction
from holdfast.wire.requests import LettaRequest, NewMessage, ParsedInput

KEEP_ALIVE: Final = (
    "<system-alert>Automated keep-alive ping. Ignore this message and continue from where you stopped.</system-alert>"
)
_LONGEST_WINDOW: Final = 500  # messages that are read on the event loop: about 5 ms
_KNOWN_SPECS: Final = 10_000  # of which this process remembers that they are stored: 2 MB
_encode = msgspec.json.Encoder().encode


class SendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is well-formed, and how it came in."""

    thread_id: str
    parsed: ParsedInput
    request: LettaRequest
    run_type: str
    request_config: dict[str, Any]
    stream_tokens: bool = False
    background: bool = False
    callback_url: str | None = None
    wait_s: float = 0.0  # how long to stand in line for a busy thread
    run_id: str | None = None  # derived from what makes the run due, so that it is accepted once; None: a new one
    parent_run_id: str | None = None  # of the run whose tool sends it
    parent_waits: bool = False
    marks: dict[str, Any] = {}  # more of the run's metadata

    @property
    def metadata(self) -> dict[str, Any]:
        """Of the run that it starts."""
        asked = {} if self.parent_run_id is None else {PARENT: self.parent_run_id, PARENT_WAITS: self.parent_waits}
        return {"run_type": self.run_type, **asked, **self.marks}


class Accepted(msgspec.Struct, frozen=True):
    """`stream` is None when the run is not driven by this request's worker: it was accepted before, by a request with
    the same otids and content, or it waits for a worker."""

    run: Run
    stream: RunStream | None
    agent: Agent


class AcceptContext(msgspec.Struct, frozen=True):
    """What the decision to accept is based on, read in one go."""

    agent: Agent
    thread: Thread
    tools: list[Tool]
    blocks: list[Block]
    window: list[Message]
    end: int  # where the thread's history ended then
    directories: str
    system_digest: str | None
    active: Run | None
    repeated: Run | None
    hold: HoldRow | None
    answered: HoldRow | None  # the decided hold that this answer answers again
    claims: bool  # whether this process meant to drive the run; if not, neither blocks nor window were read
    secret_names: frozenset[str] = frozenset()  # of the agent; read only for an answer


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the accepting transaction writes."""

    run: Run
    spec: RunSpec
    rows: tuple[Message, ...]
    end: int
    hold: HoldRow | None = None
    decisions: tuple[Decision, ...] = ()


class _Overtaken(HoldfastError):
    """Rolls the acceptance back: the thread, or the request key, is no longer as it was when this was decided."""


class SendMessage:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        worker: Worker,
        clock: Clock,
        retries: int = 0,
        admission: Admission | None = None,
    ) -> None:
        """`retries`: of each model call that fails in passing. `admission`: without it there are no limits."""
        self._database = database
        self._catalog = catalog
        self._worker = worker
        self._clock = clock
        self._retries = retries
        self._admission = admission or Admission(database, worker)
        self._shared_parts = SharedParts()
        self._known_specs: set[str] = set()  # hashes of specs that were stored when last used

    async def __call__(self, sending: SendRequest) -> Accepted:
        deadline = asyncio.get_running_loop().time() + sending.wait_s
        if sending.wait_s <= 0:
            return await self._try_until(sending, deadline)
        queues = self._worker.thread_queues
        await queues.enter(sending.thread_id)
        try:
            return await self._try_until(sending, deadline)
        finally:
            queues.leave(sending.thread_id)

    async def _try_until(self, sending: SendRequest, deadline: float) -> Accepted:
        while True:
            self._worker.refuse_if_draining()  # also whoever has waited until then
            context = await self._load_context(sending)
            if context.repeated is not None:
                return Accepted(context.repeated, None, context.agent)
            if context.active is not None:
                await self._wait(context.active, deadline)
                continue
            await self._admission.enter(background=sending.background, of_run=sending.parent_run_id is not None)
            try:
                accepted = await self._accept(sending, context)
            finally:
                self._admission.leave(background=sending.background)
            if accepted is not None:
                return accepted

    async def _load_context(self, sending: SendRequest) -> AcceptContext:
        claims, context = self._worker.claims(background=sending.background), None
        if not sending.parsed.request_key and sending.parsed.decisions is None:
            context = await self._database.read_one(lambda tx: _load_new_message(tx, sending, claims=claims))
        if context is None:
            context = await self._database.read(lambda tx: load_accept_context(tx, sending, claims=claims))
        if not claims or context.repeated is not None or context.active is not None:
            return context
        return msgspec.structs.replace(context, window=await self._window(context.thread.id, context.end))

    async def _window(self, thread_id: str, end: int) -> list[Message]:
        """Read by itself, after all else: whoever changes a window moves the end of its thread, and then the message
        is not accepted. A long one that is not in memory is read where it holds up nobody."""
        known = self._worker.windows.of(thread_id, end)
        if known is not None:
            return known
        read = self._database.read_long if end > _LONGEST_WINDOW else self._database.read_one
        return await read(lambda tx: threads.window(tx, thread_id))

    async def _wait(self, active: Run, deadline: float) -> None:
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise Busy(active.id)
        with self._worker.bus.watch(active.id) as watch:
            await self._worker.until_changed(watch, left_s)

    async def _accept(self, sending: SendRequest, context: AcceptContext) -> Accepted | None:
        """None when somebody else was quicker: look again."""
        accepting = await self._prepare(sending, context)
        claimed_s, now_us = time.monotonic(), self._clock.now_us()
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        begun: list[RunStream | None] = []  # one, once it is stored

        def begin(started: RunStarted) -> None:
            """The model is asked while the input is on its way to the disk. Nobody hears of it before it is there."""
            if accepting.run.lease_owner is None:
                begun.append(None)
            else:
                begun.append(self._worker.drive(_loaded(accepting, context, started), stored, claimed_s=claimed_s))

        def settle(error: BaseException | None) -> None:
            """Also when the sender has left meanwhile: a run that has begun must learn whether it is stored."""
            if begun:
                stored.set_result(error is None)
            if begun == [None] and error is None:
                self._worker.dispatch(accepting.run.id)

        def store() -> Awaitable[None]:
            return self._store(accepting, sending, now_us, begin, settle)

        try:
            self._worker.expect(accepting.run)
            try:
                await store()
            except CommitUnknown:
                await store()  # the same run, so it is refused if it is stored after all
        except (_Overtaken, DatabaseError) as error:
            if begun or not await self._is_stored(accepting.run.id):
                if isinstance(error, _Overtaken):
                    return None
                raise
            begin(_started(accepting, _places(accepting)[1]))
            settle(None)
        finally:
            self._worker.expect_no_more(accepting.run.id)
        return Accepted(accepting.run, begun[0], context.agent)

    async def _store(
        self,
        accepting: _Plan,
        sending: SendRequest,
        now_us: int,
        begin: Callable[[RunStarted], None],
        settle: Callable[[BaseException | None], None],
    ) -> None:
        """A spec that is known to be stored is not written again. Should it have been deleted since, because no journal
        referred to it, the database refuses the new one, and the spec is written after all."""
        shared, ttl_us = self._shared_parts.of(accepting.spec), self._worker.lease_ttl_us

        def write(*, spec_known: bool) -> Awaitable[RunStarted]:
            return self._database.write(
                lambda tx: _write(tx, accepting, sending, now_us, ttl_us, shared, spec_known=spec_known), begin, settle
            )

        known = shared.hash in self._known_specs
        try:
            await write(spec_known=known)
        except IntegrityError:
            if not known:
                raise
            await write(spec_known=False)
        if len(self._known_specs) >= _KNOWN_SPECS:
            self._known_specs.clear()
        self._known_specs.add(shared.hash)

    async def _is_stored(self, run_id: str) -> bool:
        """After a commit that was cut off. Were it denied wrongly, the client would send the same message again."""
        return await self._database.read(lambda tx: runs.find(tx, run_id)) is not None

    async def _prepare(self, sending: SendRequest, context: AcceptContext) -> _Plan:
        run_id, now_us = sending.run_id or ids.new("run"), self._clock.now_us()
        spec = await freeze(
            self._catalog,
            context.agent,
            context.thread,
            context.tools,
            sending.request,
            stream_tokens=sending.stream_tokens,
            retries=self._retries,
            kept=_kept_tools(context, sending.parsed),
        )
        # Asked again: others may have taken the place meanwhile. From here to `expect` nothing is waited for.
        parsed = sending.parsed
        claims = context.claims and self._worker.claims(background=sending.background)
        run = Run(
            id=run_id,
            agent_id=context.agent.id,
            thread_id=context.thread.id,
            status="created" if sending.background else "running",
            background=sending.background,
            metadata=sending.metadata,
            request_config=sending.request_config,
            request_key=parsed.request_key,
            callback_url=sending.callback_url,
            created_us=now_us,
            started_us=None if sending.background else now_us,
            lease=1 if claims else 0,
            lease_owner=self._worker.owner if claims else None,
        )
        if parsed.decisions is None:
            refuse_while_pending(context)
            return _Plan(run=run, spec=spec, rows=input_rows(run, parsed.messages), end=context.end)
        return _answer(run, spec, context, parsed)


def _loaded(accepting: _Plan, context: AcceptContext, started: RunStarted) -> LoadedRun:
    """What `load_run` would read, if it were asked after the commit."""
    return LoadedRun(
        run=accepting.run,
        agent=context.agent,
        thread=context.thread,
        state=apply(NEW, started),
        journalled=1,
        window=[*context.window, *accepting.rows],
        blocks=context.blocks,
        directories=context.directories,
        system_digest=context.system_digest,
        next_position=_places(accepting)[0][-1] + 1,
        step=_first_step(accepting, started),
    )


async def load_accept_context(tx: Transaction, sending: SendRequest, *, claims: bool = True) -> AcceptContext:
    """All of it but the window."""
    standing, tools_of_agent = await threads.head_with_tools(tx, sending.thread_id)
    thread, parsed = standing.thread, sending.parsed
    repeated = await runs.by_request_key(tx, thread.id, parsed.request_key) if parsed.request_key else None
    hold = await holds.open_of_thread(tx, thread.id) if standing.is_held else None
    answered = None
    if parsed.decisions and hold is None:
        decided = await holds.recently_decided(tx, thread.id)
        answered = next((row for row in decided if answers_same_calls(row.hold, parsed.decisions)), None)
    return AcceptContext(
        agent=standing.agent,
        thread=thread,
        tools=tools_of_agent,
        blocks=await blocks_in_view(tx, thread) if claims else [],
        window=[],
        end=standing.end,
        directories=await directories_in_view(tx, standing.agent) if standing.has_folders else "",
        system_digest=standing.system_digest,
        active=await runs.active_of_thread(tx, thread.id) if standing.is_busy else None,
        repeated=repeated,
        hold=hold,
        answered=answered,
        claims=claims,
        secret_names=frozenset(await agents.secret_ids_of(tx, thread.agent_id))
        if parsed.decisions and hold is not None
        else frozenset(),
    )


async def _load_new_message(tx: Transaction, sending: SendRequest, *, claims: bool) -> AcceptContext | None:
    """As `load_accept_context`, in one statement, for a message that is no answer. None when more must be read: the
    thread is not free, or the agent sees more than its own blocks."""
    in_view: list[Block] = []
    if claims:
        standing, tools_of_agent, in_view = await threads.head_with_tools_and_blocks(tx, sending.thread_id)
    else:
        standing, tools_of_agent = await threads.head_with_tools(tx, sending.thread_id)
    if standing.is_busy or standing.is_held:
        return None
    if claims and (standing.has_folders or standing.thread.isolated_block_ids):
        return None
    return AcceptContext(
        agent=standing.agent,
        thread=standing.thread,
        tools=tools_of_agent,
        blocks=in_view,
        window=[],
        end=standing.end,
        directories="",
        system_digest=standing.system_digest,
        active=None,
        repeated=None,
        hold=None,
        answered=None,
        claims=claims,
    )


async def _write(
    tx: Transaction,
    accepting: _Plan,
    sending: SendRequest,
    now_us: int,
    lease_ttl_us: int,
    shared: SharedSpec,
    *,
    spec_known: bool,
) -> RunStarted:
    run, rows = accepting.run, accepting.rows
    overtaken = _Overtaken("another run was quicker, or has come and gone since we looked")
    await runs.insert(tx, run, lease_ttl_us if run.lease_owner is not None else None, otherwise=overtaken)
    places, return_position = _places(accepting)
    await threads.extend(tx, run.thread_id, accepting.end, places[-1] + 1 - accepting.end, now_us, otherwise=overtaken)
    if accepting.hold is not None and not await holds.decide(tx, accepting.hold.run_id, now_us, run.id):
        raise Busy(None)  # rolls the run back; the winner of the race holds the thread
    await messages.insert_many(tx, run.agent_id, rows)
    await threads.place(tx, run.thread_id, [(place, row.id) for place, row in zip(places, rows, strict=True)])
    started = _started(accepting, return_position)
    if not spec_known:
        await specs.keep(tx, shared, now_us)
    await journal.append_start(tx, run.id, own_part(started), shared.hash, now_us)
    if accepting.hold is not None:
        await journal.append_next(tx, accepting.hold.run_id, [_event(Resumed(run.id))], now_us)
    if sending.parsed.otids:
        await runs.add_otids(tx, run.thread_id, run.id, sending.parsed.otids)
    step = _first_step(accepting, started)
    if step is not None:
        await steps.save(tx, step)
    return started


def _places(accepting: _Plan) -> tuple[list[int], int | None]:
    """Messages that came with an answer stand after the returns of the tools it lets run: their place is kept free."""
    end, count = accepting.end, len(accepting.rows)
    if accepting.hold is None or count == 1:
        return list(range(end, end + count)), None
    return [end, *range(end + 2, end + 1 + count)], end + 1


def _started(accepting: _Plan, return_position: int | None) -> RunStarted:
    input_ids = tuple(row.id for row in accepting.rows)
    if accepting.hold is None:
        return RunStarted(accepting.spec, input_ids)
    hold = accepting.hold.hold
    return RunStarted(accepting.spec, input_ids, resume(hold, accepting.decisions), hold.step_id, return_position)


def _first_step(accepting: _Plan, started: RunStarted) -> Step | None:
    """On record before the model is called; it costs nothing here."""
    intent = plan(apply(NEW, started))
    if not isinstance(intent, CallModel):
        return None
    return pending_step(accepting.run, accepting.spec.model, intent.number, accepting.run.created_us)


def refuse_while_pending(context: AcceptContext) -> None:
    if context.hold is not None:
        raise PendingApproval(context.hold.request_id)


def _kept_tools(context: AcceptContext, parsed: ParsedInput) -> frozenset[str]:
    """The tools that an answer lets run: no client tool takes their place."""
    return run_names(context.hold.hold, parsed.decisions) if context.hold and parsed.decisions else frozenset()


def _answer(run: Run, spec: RunSpec, context: AcceptContext, parsed: ParsedInput) -> _Plan:
    decisions = parsed.decisions or ()
    if context.hold is None:
        if context.answered is None:
            raise Invalid(
                "Cannot process approval response: No tool call is currently awaiting approval. "
                "Please send a regular message to interact with the agent."
            )
        # The same answer again: the first one stands, and the turn goes on from where it is.
        again = parsed.messages or (NewMessage(role="user", parts=(Text(KEEP_ALIVE),)),)
        return _Plan(run=run, spec=spec, rows=input_rows(run, again), end=context.end)
    hold = context.hold.hold
    asked = {held.call.name for held in hold.calls if held.asks}
    names, tools = context.secret_names, context.tools
    current = {tool.name: identity_of(tool, names, tools) for tool in tools if tool.name in asked}
    limit = return_char_limit(spec.model.context_window)
    checked = tuple(cut_answer(each, limit) for each in check_answer(hold, decisions, current))
    answer = Message(
        id=ids.new("message"),
        role="approval",
        parts=checked,
        created_us=run.created_us,
        run_id=run.id,
        step_id=hold.step_id,
        otid=parsed.decision_otid,
    )
    rows = (answer, *input_rows(run, parsed.messages))
    return _Plan(run=run, spec=spec, rows=rows, end=context.end, hold=context.hold, decisions=checked)


def input_rows(run: Run, new: Sequence[NewMessage]) -> tuple[Message, ...]:
    return tuple(
        Message(
            id=ids.new("message"),
            role=each.role,
            parts=each.parts,
            created_us=run.created_us,
            run_id=run.id,
            otid=each.otid or str(uuid.uuid4()),
            name=each.name,
            sender_id=each.sender_id,
            group_id=each.group_id,
            batch_item_id=each.batch_item_id,
        )
        for each in new
    )


def _event(event: AnyEvent) -> str:
    return _encode(event).decode()
