"""Sends spans to a collector, when one is named and the extra `telemetry` is installed. The SDK is loaded only then."""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace

from holdfast.settings import Settings
from holdfast.version import VERSION

_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http"
_LAST_SPANS_S: Final = 3.0
_log = logging.getLogger(__name__)


@contextmanager
def exporting(settings: Settings) -> Generator[bool]:
    """Whether spans are sent; what is left of them is sent at the end, if the collector takes it at once."""
    endpoint = settings.otlp_endpoint
    if endpoint is None:
        yield False
        return
    if not _is_installed():
        _log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but nothing is sent there, because the OpenTelemetry SDK and its "
            "exporter are not installed: pip install 'holdfast[telemetry]'."
        )
        yield False
        return
    with _sending_to(endpoint):
        yield True


@contextmanager
def _sending_to(endpoint: str) -> Generator[None]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - optional

    known = {"service.version": VERSION}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        known["service.name"] = "holdfast"
    provider = TracerProvider(resource=Resource.create(known), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        # In a thread: the SDK tries for half a minute, and no server should take that long to stop for its spans.
        ending = threading.Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(_LAST_SPANS_S)
        if ending.is_alive():
            _log.warning("the last spans are lost: the collector did not take them within %g s.", _LAST_SPANS_S)


def _is_installed() -> bool:
    try:
        return bool(importlib.util.find_spec(_EXPORTER) and importlib.util.find_spec("opentelemetry.sdk.trace"))
    except ModuleNotFoundError:  # a package on the way to it is missing
        return False
