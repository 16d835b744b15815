"""The log: lines for people, or one JSON object per line for programs that gather them.

Which request and which run a line belongs to is kept in context variables, so that whoever logs need not say it. A task
inherits them from the one that started it: a run has the id of the request that asked for it.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.core.records import Run
from holdfast.settings import Settings

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


current_request: ContextVar[str | None] = ContextVar("current_request", default=None)
current_run: ContextVar[Run | None] = ContextVar("current_run", default=None)


def configure(settings: Settings) -> None:
    stream = logging.StreamHandler()
    stream.setFormatter(JsonLines() if settings.log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=settings.log_level, handlers=[stream])
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it narrates its own loading


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request := current_request.get()) is not None:
            line["request_id"] = request
        if (run := current_run.get()) is not None:
            line |= {"run_id": run.id, "agent_id": run.agent_id, "thread_id": run.thread_id}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)  # in ASCII, so that no line break and no encoding of the terminal can spoil it
