"""What a vendor would be sent for a request, without sending or storing anything."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import ids
from holdfast.actions.messages.send import (
    AcceptContext,
    SendRequest,
    input_rows,
    load_accept_context,
    refuse_while_pending,
)
from holdfast.actions.runs.spec import freeze
from holdfast.core import system_prompt
from holdfast.core.events import RunStarted
from holdfast.core.messages import Message
from holdfast.core.model_history import HistoryBuilder
from holdfast.core.records import Run
from holdfast.core.run import NEW, CallModel, apply, plan
from holdfast.engine.clock import Clock
from holdfast.engine.model_call import build_request
from holdfast.engine.run_loading import prompt_counts
from holdfast.errors import BugError, Invalid
from holdfast.llm.base import Catalog
from holdfast.store import threads
from holdfast.store.transaction import Database, Transaction


async def preview_request(
    sending: SendRequest, *, database: Database, catalog: Catalog, clock: Clock
) -> dict[str, Any]:
    """The vendor's own request object for the first model call of the run that the request would start."""

    async def read(tx: Transaction) -> AcceptContext:
        found = await load_accept_context(tx, sending)
        return msgspec.structs.replace(found, window=await threads.window(tx, found.thread.id))

    context = await database.read(read)
    if sending.parsed.decisions is not None:
        raise Invalid("Only messages can be previewed: after an answer to an approval, tools run first.")
    refuse_while_pending(context)
    spec = await freeze(
        catalog, context.agent, context.thread, context.tools, sending.request, stream_tokens=sending.stream_tokens
    )
    intent = plan(apply(NEW, RunStarted(spec, ())))
    if not isinstance(intent, CallModel):
        raise BugError("a run that begins with messages begins with a model call")
    run = _unstored_run(context, clock.now_us())
    window = [*await _current_window(database, context, clock.now_us()), *input_rows(run, sending.parsed.messages)]
    request = build_request(spec, intent, window, run.id, HistoryBuilder())
    return catalog.open(await catalog.find(spec.model.handle)).payload(request)


def _unstored_run(context: AcceptContext, now_us: int) -> Run:
    return Run(
        id=ids.new("run"), agent_id=context.agent.id, thread_id=context.thread.id, status="created", created_us=now_us
    )


async def _current_window(database: Database, context: AcceptContext, now_us: int) -> list[Message]:
    """With the system message as a run would bring it up to date."""
    conversation_id = context.thread.conversation_id
    digest = system_prompt.digest(context.agent, context.blocks, conversation_id, context.directories)
    if digest == context.system_digest:
        return context.window
    stored, archived = await database.read(lambda tx: prompt_counts(tx, context.agent.id, context.thread.id))
    system = system_prompt.recompiled(
        context.window[0],
        context.agent,
        context.blocks,
        conversation_id=conversation_id,
        hidden=max(0, stored - len(context.window)),
        archived=archived,
        directories=context.directories,
        now_us=now_us,
    )
    return [system, *context.window[1:]]
