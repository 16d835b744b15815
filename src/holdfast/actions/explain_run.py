"""Reads what is known of a run, so that its standing can be put into words."""

from __future__ import annotations

import logging

import msgspec

from holdfast.core.events import AnyEvent
from holdfast.core.hold import changed_secrets
from holdfast.core.records import Run
from holdfast.core.run import Phase, RunState, replay
from holdfast.errors import IllegalEvent
from holdfast.store import agents, journal, runs
from holdfast.store.transaction import Transaction
from holdfast.wire.why import RunDetails

_event = msgspec.json.Decoder(AnyEvent)
log = logging.getLogger(__name__)


async def explain_run(tx: Transaction, run_id: str, now_us: int) -> RunDetails:
    run = await runs.get(tx, run_id)
    texts = await journal.load_timed(tx, run_id)
    state: RunState | None = None
    try:
        events = [(at_us, _event.decode(text)) for at_us, text in texts]
        state = replay(event for _, event in events) if events else None
    except (msgspec.MsgspecError, IllegalEvent) as error:
        # The one run most in need of an explanation must not be the one that cannot be asked about.
        log.warning("the journal of run %s cannot be replayed: %s", run_id, error)
        events = []
    return RunDetails(
        run=run,
        state=state,
        events=events,
        now_us=now_us,
        changed_secrets=await _changed(tx, run, state),
        journal_removed=not texts,
    )


async def _changed(tx: Transaction, run: Run, state: RunState | None) -> list[str]:
    """Only while the run waits for a decision, because only then does anybody need to know."""
    if state is None or state.phase is not Phase.PARKED or state.hold is None:
        return []
    return changed_secrets(state.hold, await agents.secret_ids_of(tx, run.agent_id))
