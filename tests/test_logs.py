"""The log as JSON lines, and whose line each is."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import logs
from holdfast.errors import ConfigError
from holdfast.settings import Settings

from .api.application import client_of
from .api.resources import Served, serving
from .serving import ServerProcess

NEW_ID = re.compile(r"[0-9a-f]{32}")


class Kept(logging.Handler):
    """Keeps the lines as they would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logs.JsonLines())
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(self.format(record))

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text]

    def about(self, words: str) -> dict[str, Any]:
        [line] = [line for line in self.lines if words in line["message"]]
        return line


@pytest.fixture
def kept() -> Iterator[Kept]:
    keeping, root = Kept(), logging.getLogger()
    level = root.level
    root.addHandler(keeping)
    root.setLevel(logging.INFO)
    yield keeping
    root.removeHandler(keeping)
    root.setLevel(level)


def record(message: str, *arguments: object, failure: BaseException | None = None) -> logging.LogRecord:
    info = (type(failure), failure, failure.__traceback__) if failure is not None else None
    return logging.LogRecord("holdfast.test", logging.WARNING, __file__, 1, message, arguments, info)


def test_a_line_is_one_object_whatever_is_said() -> None:
    text = logs.JsonLines().format(record('a "quoted"\nsecond line \x00 %s é \ud800', "and ☕"))
    assert "\n" not in text
    assert text.isascii()
    line = json.loads(text)
    assert (line["level"], line["logger"]) == ("WARNING", "holdfast.test")
    assert line["message"] == 'a "quoted"\nsecond line \x00 and ☕ é \ud800'
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    assert line.keys() == {"time", "level", "logger", "message"}


def test_an_exception_is_text_within_the_line() -> None:
    try:
        raise ValueError("it broke")
    except ValueError as error:
        text = logs.JsonLines().format(record("oh", failure=error))
    assert "\n" not in text
    assert json.loads(text)["exception"].startswith("Traceback")
    assert "ValueError: it broke" in json.loads(text)["exception"]


@pytest.mark.parametrize(
    ("given", "kept_as"),
    [
        ({}, None),
        ({"x-request-id": "abc-123"}, "abc-123"),
        ({"x-trace-id": "trace/7"}, "trace/7"),
        ({"x-trace-id": "trace/7", "x-request-id": "abc"}, "abc"),
        ({"x-request-id": "x" * 128}, "x" * 128),
        ({"x-request-id": "x" * 129}, None),
        ({"x-request-id": "two words"}, None),
        ({"x-request-id": 'quo"ted'}, None),
        ({"x-request-id": ""}, None),
    ],
)
async def test_an_answer_carries_the_callers_id_if_it_makes_sense_and_else_a_new_one(
    given: dict[str, str], kept_as: str | None
) -> None:
    async with client_of() as client:
        answer = await client.get("/v1/health/", headers=given)
        again = await client.get("/v1/health/", headers=given)
    told = answer.headers["x-request-id"]
    assert told == kept_as if kept_as else NEW_ID.fullmatch(told)
    assert (told == again.headers["x-request-id"]) is (kept_as is not None)


async def test_refusals_and_failures_carry_it_too_and_the_failure_is_logged_with_it(kept: Kept) -> None:
    async with client_of(api_key="s3cret") as client:
        refused = await client.get("/v1/notes/", headers={"x-request-id": "refused-1"})
    assert (refused.status_code, refused.headers["x-request-id"]) == (401, "refused-1")
    async with client_of(failure=RuntimeError("it broke")) as client:
        failed = await client.get("/v1/failure", headers={"x-request-id": "failed-1"})
    assert (failed.status_code, failed.headers["x-request-id"]) == (500, "failed-1")
    [line] = [line for line in kept.lines if "it broke" in line.get("exception", "")]
    assert line["request_id"] == "failed-1"
    assert logs.current_request.get() is None


async def send(served: Served, agent_id: str, request_id: str) -> httpx.Response:
    headers = {"x-request-id": request_id}
    return await served.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Hello!"}, headers=headers)


async def test_lines_of_a_run_have_its_ids_and_those_of_the_request_that_asked_for_it(
    sqlite_url: str, tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(sqlite_url, tmp_path) as served:
        agents = [await served.create(name=name) for name in ("one", "two")]
        runner = served.deps.worker._runner
        drive = runner.drive

        async def telling(session: Any, scope: Any) -> None:
            await asyncio.create_task(_log(f"driving {session.run.agent_id}"))
            await drive(session, scope)

        monkeypatch.setattr(runner, "drive", telling)
        await asyncio.gather(*(send(served, agent["id"], f"asked-{agent['name']}") for agent in agents))
        runs = {run["agent_id"]: run["id"] for run in await served.ok("GET", "/v1/runs/")}
    for agent in agents:
        line = kept.about(f"driving {agent['id']}")
        assert line["request_id"] == f"asked-{agent['name']}"
        assert (line["run_id"], line["agent_id"]) == (runs[agent["id"]], agent["id"])
        assert line["thread_id"] == agent["id"]
    assert logs.current_run.get() is None


async def _log(message: str) -> None:
    logging.getLogger("holdfast.test").info(message)


def test_the_format_is_a_setting() -> None:
    assert Settings.from_environment({}).log_format == "text"
    assert Settings.from_environment({"HOLDFAST_LOG_FORMAT": "JSON"}).log_format == "json"
    with pytest.raises(ConfigError, match="HOLDFAST_LOG_FORMAT must be one of text, json"):
        Settings.from_environment({"HOLDFAST_LOG_FORMAT": "xml"})


@pytest.mark.slow
def test_a_server_logs_nothing_but_objects_when_told_to(tmp_path: Path) -> None:
    environment = {"HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_LOG_LEVEL": "DEBUG", "HOLDFAST_MODEL_RETRY_S": "0.001"}
    with ServerProcess(tmp_path, **environment) as server:
        client = server.client(default_headers={"x-request-id": "asked-1"})
        agent = client.agents.create(name="scout")
        client.agents.messages.create(agent.id, input="Hello! [[error:server]] [[error_times:1]]")
        server.stop()
        written = server.log.read_text().splitlines()
    parsed = [json.loads(line) for line in written if line.startswith("{")]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in parsed)
    [tried] = [line for line in parsed if "try 1 of 4 failed" in line["message"]]
    assert tried["run_id"].startswith("run-")
    assert (tried["request_id"], tried["agent_id"]) == ("asked-1", agent.id)
    # The rest is the welcome, which goes to standard output; the two share a file here.
    assert [line for line in written if not line.startswith(("{", "  ", "Holdfast "))] == []
