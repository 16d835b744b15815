"""Keeps what a vendor was sent and what it said, when the server was told to: cleaned, cut to size, with the step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.core.deltas import Reply
from holdfast.core.records import ProviderTrace
from holdfast.core.redaction import Redactor, cut
from holdfast.engine.clock import Clock
from holdfast.engine.scope import Interrupted
from holdfast.engine.session import Session
from holdfast.llm.base import Model, ModelRequest
from holdfast.store import agents
from holdfast.store.transaction import Database


class Recording:
    """One try at a model call, from its request on."""

    def __init__(
        self, session: Session, step_id: str, request: dict[str, Any], redactor: Redactor, clock: Clock, most_bytes: int
    ) -> None:
        self._session = session
        self._step_id = step_id
        self._redactor = redactor
        self._clock = clock
        self._most_bytes = most_bytes
        self._request = self._clean(request)

    def end(self, said: Reply, error: BaseException | None) -> None:
        """The next checkpoint stores it, whatever it is about."""
        told, earlier = self._clean(_told(error)), self._session.failed_tries
        response = _response(said) | told | ({"earlier_tries": list(earlier)} if earlier else {})
        if told:
            earlier.append(told)
        self._session.traced(
            ProviderTrace(
                step_id=self._step_id,
                run_id=self._session.run.id,
                agent_id=self._session.run.agent_id,
                request=self._request,
                response=self._clean(response),
                created_us=self._clock.now_us(),
            )
        )

    def _clean(self, value: dict[str, Any]) -> dict[str, Any]:
        return cut(self._redactor.hide(value), self._most_bytes)


class ProviderTraces:
    def __init__(
        self,
        database: Database,
        open_secret: Callable[[bytes], str],
        clock: Clock,
        *,
        most_bytes: int,
        hidden: Iterable[str] = (),
    ) -> None:
        """`hidden`: the server's own secrets. An agent's are read anew for each call."""
        self._database = database
        self._open_secret = open_secret
        self._clock = clock
        self._most_bytes = most_bytes
        self._hidden = tuple(hidden)

    async def begin(self, session: Session, step_id: str, model: Model, request: ModelRequest) -> Recording:
        agent_id = session.run.agent_id
        sealed = (await self._database.read(lambda tx: agents.secrets_of(tx, [agent_id]))).get(agent_id, [])
        redactor = Redactor([*self._hidden, *(self._open_secret(secret.sealed) for secret in sealed)])
        # An adapter may hand over bytes, or objects of a library; a trace must not be what a run fails of.
        payload: dict[str, Any] = msgspec.to_builtins(model.payload(request), enc_hook=repr, str_keys=True)
        return Recording(session, step_id, payload, redactor, self._clock, self._most_bytes)


def _response(said: Reply) -> dict[str, Any]:
    usage = None if said.usage is None else msgspec.structs.asdict(said.usage)
    return {"parts": msgspec.to_builtins(said.parts), "finish": said.finish, "usage": usage}


def _told(error: BaseException | None) -> dict[str, Any]:
    match error:
        case None:
            return {}
        case asyncio.CancelledError() | Interrupted():
            return {"interrupted": True}
        case _:
            return {"error": {"type": type(error).__name__, "message": str(error)}}
