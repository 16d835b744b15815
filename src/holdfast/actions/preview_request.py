"""What a vendor would be sent for a request, without sending or storing anything."""

from __future__ import annotations

from typing import Any

from holdfast import ids
from holdfast.actions.run_spec import freeze
from holdfast.actions.send_message import Scene, Sending, input_rows, look, refuse_while_pending
from holdfast.core import prompt
from holdfast.core.context import HistoryBuilder
from holdfast.core.events import RunStarted
from holdfast.core.messages import Message
from holdfast.core.records import Run
from holdfast.core.run import NEW, CallModel, apply, plan
from holdfast.engine import requests
from holdfast.engine.clock import Clock
from holdfast.errors import BugError, Invalid
from holdfast.llm.base import Catalog
from holdfast.store.transaction import Database


async def preview_request(sending: Sending, *, database: Database, catalog: Catalog, clock: Clock) -> dict[str, Any]:
    """The vendor's own request object for the first model call of the run that the request would start."""
    scene = await database.read(lambda tx: look(tx, sending))
    if sending.parsed.decisions is not None:
        raise Invalid("Only messages can be previewed: after an answer to an approval, tools run first.")
    refuse_while_pending(scene)
    spec = await freeze(
        catalog, scene.agent, scene.thread, scene.tools, sending.request, stream_tokens=sending.stream_tokens
    )
    intent = plan(apply(NEW, RunStarted(spec, ())))
    if not isinstance(intent, CallModel):
        raise BugError("a run that begins with messages begins with a model call")
    run = _unstored_run(scene, clock.now_us())
    window = [*await _current_window(database, scene, clock.now_us()), *input_rows(run, sending.parsed.messages)]
    request = requests.build(spec, intent, window, run.id, HistoryBuilder())
    return catalog.open(await catalog.find(spec.model.handle)).payload(request)


def _unstored_run(scene: Scene, now_us: int) -> Run:
    return Run(
        id=ids.new("run"), agent_id=scene.agent.id, thread_id=scene.thread.id, status="created", created_us=now_us
    )


async def _current_window(database: Database, scene: Scene, now_us: int) -> list[Message]:
    """With the system message as a run would bring it up to date."""
    conversation_id = scene.thread.conversation_id
    if prompt.digest(scene.agent, scene.blocks, conversation_id) == scene.system_digest:
        return scene.window
    stored, archived = await database.read(lambda tx: requests.counts(tx, scene.agent.id, scene.thread.id))
    system = requests.system_message(
        scene.window[0],
        scene.agent,
        scene.blocks,
        conversation_id=conversation_id,
        hidden=max(0, stored - len(scene.window)),
        archived=archived,
        now_us=now_us,
    )
    return [system, *scene.window[1:]]
