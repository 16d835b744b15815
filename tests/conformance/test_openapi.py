"""Whatever the API's own description allows is sent to it, valid and not; nothing may make the server fail.

In process, on one event loop, in a thread beside the one in which Hypothesis makes up requests. Ids are often those of
records that exist, as otherwise nearly every answer would be 404.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from holdfast.actions.dependencies import Holdfast
from holdfast.api.server import ROUTERS, create_app
from holdfast.asgi_transport import AsgiTransport
from holdfast.settings import Settings
from holdfast.wiring import build
from tests.clients import AS_1X
from tests.effort import EFFORT

pytestmark = pytest.mark.slow

EXAMPLES = 8 if EFFORT == 1 else 20
LIMIT_S = 60
SOURCE = 'def greet(name: str) -> str:\n    """Greets.\n\n    Args:\n        name: whom\n    """\n    return name\n'
T = TypeVar("T")
ENDLESS = "/v1/events"


UNDESCRIBED = {
    "GET /",
    "GET /console/{folder}/{name}",
    "GET /console/{name}",
    "GET /docs",
    "GET /metrics",
    "GET /v1/models/embeddings",
}
NAMES = sorted(
    f"{method} {route.path}"
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, Route)
    for method in route.methods or ()
    if method != "HEAD" and f"{method} {route.path}" not in UNDESCRIBED
)


@cache
def operations() -> dict[str, Any]:
    """Of an application that nothing stands behind; only its description is used. To read it takes seconds, for which
    whoever only collects tests does not wait."""
    parts: dict[str, Any] = dict.fromkeys(Holdfast.__struct_fields__)
    parts["settings"] = Settings(data_dir=Path("unused"))
    described: Any = schemathesis.openapi.from_dict(create_app(Holdfast(**parts)).openapi())
    found: list[Any] = [result.ok() for result in described.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


# Made-up requests to these would have real vendors called, there and then or when models are listed.
CALLING_VENDORS = {"POST /v1/providers/", "POST /v1/providers/check"}


class Served:
    """The whole server on an event loop of its own."""

    def __init__(self, data_dir: Path) -> None:
        self._settings = Settings(data_dir=data_dir, default_model="holdfast/offline", queue_wait_s=1, drain_s=0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._build = build(self._settings)

    def __enter__(self) -> Served:
        self._thread.start()
        self._deps = self.do(self._build.__aenter__())
        transport = AsgiTransport(create_app(self._deps))
        self._http = httpx.AsyncClient(transport=transport, base_url="http://holdfast", headers=AS_1X)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._http.aclose())
        self.do(self._build.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    def send(self, method: str, url: str, **request: Any) -> httpx.Response:
        return self.do(self._send(method, url, **request))

    async def _send(self, method: str, url: str, **request: Any) -> httpx.Response:
        async with self._http.stream(method, url, **request) as answer:
            if answer.status_code == 200 and answer.request.url.path.rstrip("/") == ENDLESS:
                await anext(answer.aiter_bytes())  # as much as proves that it has begun
            else:
                await answer.aread()
            return answer

    def make(self, url: str, **body: Any) -> Any:
        answer = self.send("POST", url, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("openapi")) as server:
        yield server


def records(served: Served) -> dict[str, str]:
    """One of each kind, by the names that parameters have."""
    tool = served.make("/v1/tools/", source_code=SOURCE)
    agent = served.make("/v1/agents/", tool_ids=[tool["id"]], memory_blocks=[{"label": "human", "value": "Ada"}])
    answer = served.make(f"/v1/agents/{agent['id']}/messages", input="Call greet with 'Ada'")
    conversation = served.make(f"/v1/conversations/?agent_id={agent['id']}")
    message = answer["messages"][0]
    name = agent["id"]  # is taken once
    folder = served.make("/v1/folders/", name=name)
    upload = served.send("POST", f"/v1/folders/{folder['id']}/upload", files={"file": ("a.txt", b"text")})
    identity = served.make("/v1/identities/", identifier_key=name, name="Ada", identity_type="user")
    group = served.make("/v1/groups/", agent_ids=[agent["id"]], description="")
    return {
        "agent_id": agent["id"],
        "tool_id": tool["id"],
        "tool_name": tool["name"],
        "block_id": agent["blocks"][0]["id"],
        "block_label": "human",
        "conversation_id": conversation["id"],
        "run_id": message["run_id"],
        "step_id": message["step_id"],
        "message_id": message["id"],
        "folder_id": folder["id"],
        "source_id": folder["id"],
        "file_id": upload.json()["id"],
        "identity_id": identity["id"],
        "group_id": group["id"],
    }


@pytest.mark.parametrize("name", sorted(set(NAMES) - CALLING_VENDORS))
def test_no_request_makes_the_server_fail(name: str, served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast")
    known = records(served)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operations()[name].as_strategy(), real=st.integers(0, 3))
    def sent(case: Any, real: int) -> None:
        if real:
            _use_known(case, known)
        request: Any = requests.Request(**case.as_transport_kwargs(base_url="http://holdfast")).prepare()
        body: bytes = request.body.encode() if isinstance(request.body, str) else request.body or b""
        assume(b"http" not in body)  # addresses outside: callbacks and images
        answer = served.send(case.method, request.url, headers=dict(request.headers), content=body)
        assert answer.status_code < 500 or answer.status_code == 501, f"{answer.text}\n{case.as_curl_command()}"
        if answer.status_code >= 400:
            assert {"detail", "error"} & answer.json().keys()

    sent()


def test_the_description_names_every_operation_that_is_tested() -> None:
    assert sorted(operations()) == NAMES
    assert "POST /v1/agents/{agent_id}/messages" in NAMES
    assert set(NAMES) >= CALLING_VENDORS
    assert len(NAMES) > 50


def _use_known(case: Any, known: dict[str, str]) -> None:
    containers: list[dict[str, Any]] = [case.path_parameters or {}, case.query or {}]
    for container in containers:
        container.update({name: known[name] for name in container if name in known})
