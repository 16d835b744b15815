"""Makes the trace that a caller named with `traceparent` the one that its runs belong to.

Runs are started within the request that asked for them, and inherit its context. When the program around us has a span
of its own for the request, that one is current already, and stays.
"""

from __future__ import annotations

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Receive, Scope, Send

_propagator = TraceContextTextMapPropagator()
_NAMES = frozenset({b"traceparent", b"tracestate"})


class TraceContext:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = {name: value for name, value in scope.get("headers", ()) if name in _NAMES}
        if not given or trace.get_current_span().get_span_context().is_valid:
            await self._app(scope, receive, send)
            return
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in given.items()}
        token = context.attach(_propagator.extract(carrier))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)
